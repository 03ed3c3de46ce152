"""out_kinds: the memory kind of each output of a program, including outputs that calls compute."""

from shardwise.compiler.control.call import Call
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ops.placement.memory_space import InMemory


def out_kinds(program: Program) -> tuple[str | None, ...]:
    """Return the memory kind of each output of a program; None for the default memory."""
    producers = program.producers()
    kinds: list[str | None] = []
    for output in program.outputs:
        equation = producers.get(output)
        if equation is None:
            kinds.append(None)
        elif isinstance(equation.op, Call):
            kinds.append(out_kinds(equation.op.program)[list(equation.outputs).index(output)])
        else:
            kinds.append(equation.op.kind if isinstance(equation.op, InMemory) else None)
    return tuple(kinds)
