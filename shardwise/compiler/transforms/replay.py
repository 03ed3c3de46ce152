"""replay: apply the ops of a program one by one in the open frame, keeping the source line of each equation."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shardwise.compiler.ir.dispatch import resolve_shardings
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.trace.provenance import provenance


@contextmanager
def restore_source() -> Iterator[None]:
    """Restore the current source at the end of a `with` block."""
    before = provenance.source
    try:
        yield
    finally:
        provenance.source = before


def for_each_equation(equations: Iterable[Equation], emit: Callable[[Equation], None]) -> None:
    """Call `emit` on every equation. Equations that `emit` adds get the source line of that equation.

    Conflicts along Explicit mesh axes were reported when the equations were recorded, and are not errors here.
    """
    with restore_source(), resolve_shardings():
        for equation in equations:
            provenance.source = equation.source
            emit(equation)


def replay(program: Program, args: Sequence[Any]) -> list[Any]:
    """Return the outputs of a program for `args`, applying its ops one by one in the open frame."""
    env: dict[Value, Any] = dict(zip(program.inputs, args, strict=True))

    def emit(equation: Equation) -> None:
        results = equation.op(*(env[value] for value in equation.inputs))
        env.update(zip(equation.outputs, (results,) if equation.op.single else results, strict=True))

    for_each_equation(program.equations, emit)
    return [env[value] for value in program.outputs]
