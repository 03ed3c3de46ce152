"""Parsers for the texts of a LayoutProblem, a LayoutPlan and a LocalProgram: they show that the texts are complete.

sharded mlp on mesh(data=4, model=2)    local mlp on mesh(data=4, model=2)      plan {
in P('data', None)                      in f32[30,16] P('data', None)             dot: P('data') ; P() -> P('data')
out free                                out f32[30,4] P('data', None)             return P('data')
program mlp(…) { … }                    program mlp(a: f32[8,16], …) { … }      }
"""

from shardwise.compiler.candidates.layout_problem import LayoutProblem, layout_problem
from shardwise.compiler.ir.parse import parse_program
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.partition.local_program import LocalProgram, Placement, verify_local
from shardwise.compiler.plan.plan import SEPARATOR, Choice, LayoutPlan
from shardwise.compiler.shardings.layout import Layout, Pin, parse_layout
from shardwise.compiler.shardings.mesh import AbstractMesh, parse_mesh
from shardwise.errors import ProgramError


def parse_sharded(text: str) -> LayoutProblem:
    """Return the sharded program that prints as `text`. `layout_problem` recomputes its candidates."""
    program, mesh, ins, outs = _parse_stage("sharded", text)
    pinned = [None if line == "free" else _parse_pin(line) for line in outs]
    return layout_problem(program, mesh, [_parse_pin(line) for line in ins], pinned)


def parse_plan(text: str, problem: LayoutProblem) -> LayoutPlan:
    """Return the plan for `sharded` that prints as `text`."""
    head, *rows, last, end = text.strip().splitlines()
    if head != "plan {" or end != "}" or not last.strip().startswith("return"):
        raise ProgramError("a plan consists of 'plan {', one line per equation, 'return …' and '}'")
    planned = problem.planned
    if len(planned) != len(rows):
        raise ProgramError(f"the plan has {len(rows)} lines for {len(planned)} equations of {problem.program.name}")
    choices = {}
    for index, (equation, row) in enumerate(zip(planned, rows, strict=True), 2):
        name, _, layouts = row.strip().partition(": ")
        if name != equation.op.name:
            raise ProgramError(f"line {index}: a choice for {name!r}, but the equation is {equation.op.name!r}")
        operands, _, results = layouts.partition("-> ")
        choices[equation] = Choice(_parse_layouts(operands), _parse_layouts(results))
    return LayoutPlan(choices, _parse_layouts(last.strip().removeprefix("return")))


def parse_local(text: str) -> LocalProgram:
    """Return the local program that prints as `text`."""
    program, mesh, ins, outs = _parse_stage("local", text)
    return verify_local(
        LocalProgram(program, mesh, tuple(map(_parse_placement, ins)), tuple(map(_parse_placement, outs)))
    )


def _parse_stage(kind: str, text: str) -> tuple[Program, AbstractMesh, list[str], list[str]]:
    """Return the program, the mesh, and the lines for inputs and outputs of a text that `format_stage` wrote."""
    head, separator, rest = text.partition("\nprogram ")
    first, *lines = head.splitlines()
    if not first.startswith(f"{kind} ") or " on mesh(" not in first or not separator:
        raise ProgramError(f"line 1: expected '{kind} NAME on mesh(…)', lines 'in …' and 'out …', and a program")
    mesh = parse_mesh(first.partition(" on mesh(")[2].removesuffix(")"))
    ins, outs = (
        [line.removeprefix(f"{word} ") for line in lines if line.startswith(f"{word} ")] for word in ("in", "out")
    )
    return parse_program(f"program {rest}"), mesh, ins, outs


def _parse_layouts(text: str) -> tuple[Layout, ...]:
    return tuple(parse_layout(part) for part in text.strip().split(SEPARATOR)) if text.strip() else ()


def _parse_placement(text: str) -> Placement:
    type, _, layout = text.partition(" ")
    return Placement(parse_type(type), parse_layout(layout))


def _parse_pin(text: str) -> Pin:
    layout, *dims = text.split(" open ")
    return Pin(parse_layout(layout), frozenset(map(int, dims)))
