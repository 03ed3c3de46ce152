"""dce: a program without the equations whose results nobody uses. Effects stay."""

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.control.control import Control


def dce(program: Program) -> Program:
    """`program` with the dead equations left out, inside ops that hold programs too; inputs stay, used or not."""
    wanted = set(program.outputs)
    kept: list[Equation] = []
    changed = False
    for equation in reversed(program.equations):
        if wanted.isdisjoint(equation.outputs) and not equation.op.effect:
            changed = True
            continue
        live = _trimmed(equation, equation.op, wanted) if isinstance(equation.op, Control) else equation
        changed |= live is not equation
        kept.append(live)
        wanted.update(live.inputs)
    return Program(program.inputs, tuple(reversed(kept)), program.outputs, program.name) if changed else program


def _trimmed(equation: Equation, op: Control, wanted: set[Value]) -> Equation:
    """A control op without the crossings that no wanted result and no decision depends on."""
    results = [value in wanted for value in equation.outputs]
    kept = [
        not crossing.gives or any(end.kind == "result" and results[end.number] for end in crossing.gives)
        for crossing in op.crossings
    ]
    while True:
        programs = []
        for n, program in enumerate(op.programs):
            exits = op.marked(kept, "exit", n)
            outputs = tuple(value for value, is_kept in zip(program.outputs, exits, strict=True) if is_kept)
            needed = program if all(exits) else Program(program.inputs, program.equations, outputs, program.name)
            programs.append(dce(needed))
        used = [_used(program) for program in programs]
        more = [
            is_kept
            or any(
                end.kind == "entry" and op.programs[end.program].inputs[end.number] in used[end.program]
                for end in crossing.gives
            )
            for crossing, is_kept in zip(op.crossings, kept, strict=True)
        ]
        if more == kept:
            break
        kept = more
    if all(kept) and all(new is old for new, old in zip(programs, op.programs, strict=True)):
        return equation
    strands = op.strands(equation.inputs, [p.inputs for p in op.programs], [p.outputs for p in op.programs])
    smaller, operands, places = op.woven(
        [strand for strand, is_kept in zip(strands, kept, strict=True) if is_kept], programs
    )
    given = dict(zip((n for n, s in enumerate(strands) if s.has_result), equation.outputs, strict=True))
    numbers = [number for number, is_kept in enumerate(kept) if is_kept]
    return Equation(smaller, operands, [given[numbers[place]] for place in places], equation.source, equation.reason)


def _used(program: Program) -> set[Value]:
    return {value for equation in program.equations for value in equation.inputs} | set(program.outputs)
