"""dce: dead-code elimination."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import is_

from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result


@verifies_result
def dce(program: Program) -> Program:
    """Remove equations with unused results, inside control ops too. Effects and unused inputs are kept.

    Returns:
        The smaller program; `program` itself if nothing was removed.
    """
    live = live_equations(program.equations, program.outputs)
    if len(live) == len(program.equations) and all(map(is_, live, program.equations)):
        return program
    return program.with_equations(live)


def live_equations(equations: Sequence[Equation], outputs: Iterable[Value]) -> list[Equation]:
    """Return the equations that `outputs` depend on, or that have an effect, in order."""
    used = set(outputs)
    kept: list[Equation] = []
    for equation in reversed(equations):
        if used.isdisjoint(equation.outputs) and not equation.op.effect:
            continue
        live = _trim_control(equation, equation.op, used) if isinstance(equation.op, Control) else equation
        kept.append(live)
        used.update(live.inputs)
    return kept[::-1]


def _trim_control(equation: Equation, op: Control, used: set[Value]) -> Equation:
    """Remove the bindings of a control op on which neither a used result nor the control flow depends.

    A binding is live if one of its results is used, or if a live equation of a program reads one of its entries. More
    entries become live as programs keep more outputs, so this iterates to a fixed point.
    """
    results = [value in used for value in equation.outputs]
    kept = [
        not binding.targets or any(end.kind == "result" and results[end.number] for end in binding.targets)
        for binding in op.bindings
    ]
    while True:
        programs = []
        for n, program in enumerate(op.programs):
            exits = op.endpoint_marks(kept, "exit", n)
            outputs = tuple(value for value, is_kept in zip(program.outputs, exits, strict=True) if is_kept)
            programs.append(dce(program if all(exits) else replace(program, outputs=outputs)))
        used_inside = [program.used for program in programs]
        more = [
            is_kept
            or any(
                end.kind == "entry" and op.programs[end.program].inputs[end.number] in used_inside[end.program]
                for end in binding.targets
            )
            for binding, is_kept in zip(op.bindings, kept, strict=True)
        ]
        if more == kept:
            break
        kept = more
    if all(kept) and all(new is old for new, old in zip(programs, op.programs, strict=True)):
        return equation
    ports = op.ports(equation.inputs, [p.inputs for p in op.programs], [p.outputs for p in op.programs])
    smaller, operands, places = op.rebuild(
        [port for port, is_kept in zip(ports, kept, strict=True) if is_kept], programs
    )
    result_of = dict(zip((n for n, s in enumerate(ports) if s.has_result), equation.outputs, strict=True))
    numbers = [index for index, is_kept in enumerate(kept) if is_kept]
    return equation.replace(op=smaller, inputs=operands, outputs=[result_of[numbers[place]] for place in places])
