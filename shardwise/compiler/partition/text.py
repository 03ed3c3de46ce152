"""A LocalProgram as text, and back.

local mlp on mesh(data=4, model=2)
in f32[30,16] P('data', None)
out f32[30,4] P('data', None)
program mlp(a: f32[8,16], …) { … }
"""

from shardwise.compiler.ir.text import format_program, parse_program
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.partition.local import LocalProgram, Placement, verify_local
from shardwise.compiler.shardings.layout import parse_layout
from shardwise.compiler.shardings.mesh import parse_mesh
from shardwise.errors import ProgramError


def format_local(local: LocalProgram) -> str:
    """The text of a local program."""
    lines = [f"local {local.program.name} on mesh({local.mesh})"]
    lines += [f"in {placement.type} {placement.layout}" for placement in local.inputs]
    lines += [f"out {placement.type} {placement.layout}" for placement in local.outputs]
    return "\n".join([*lines, format_program(local.program)])


def parse_local(text: str) -> LocalProgram:
    """The local program that prints as `text`."""
    head, mark, rest = text.partition("\nprogram ")
    first, *lines = head.splitlines()
    if not first.startswith("local ") or not mark:
        raise ProgramError("line 1: expected 'local NAME on mesh(…)', lines of placements, and a program")
    mesh = parse_mesh(first.partition(" on mesh(")[2].removesuffix(")"))
    ins = tuple(_parse(line.removeprefix("in ")) for line in lines if line.startswith("in "))
    outs = tuple(_parse(line.removeprefix("out ")) for line in lines if line.startswith("out "))
    return verify_local(LocalProgram(parse_program(f"program {rest}"), mesh, ins, outs))


def _parse(text: str) -> Placement:
    type, _, layout = text.partition(" ")
    return Placement(parse_type(type), parse_layout(layout))
