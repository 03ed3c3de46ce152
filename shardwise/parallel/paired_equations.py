"""paired_equations: compare, equation by equation, the programs of one function for arguments of other sizes."""

from collections.abc import Iterator

from shardwise.compiler.ir.program import Equation, Program


def paired_equations(program: Program, other: Program) -> Iterator[tuple[Equation, Equation, bool]]:
    """Yield the equations of two programs in pairs, and whether both read the results of paired equations.

    Further equations of the longer program are left out.
    """
    equal = dict(zip(program.inputs, other.inputs, strict=False))
    for one, counterpart in zip(program.equations, other.equations, strict=False):
        yield one, counterpart, [equal[value] for value in one.inputs] == list(counterpart.inputs)
        equal.update(zip(one.outputs, counterpart.outputs, strict=True))
