"""build: stage a function of arrays into a Program, with the outer values that it closes over."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.dispatch import bound_axes, tracked_axes
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.shape.constants import ArrayConstant, IdentityKey
from shardwise.compiler.trace.provenance import use_scope
from shardwise.compiler.trace.tracer import Frame, Tracer


@verifies_result
def build(
    function: Callable[..., Sequence[Any]],
    types: Sequence[ArrayType],
    name: str,
    axes: Mapping[Any, int] | None = None,
    tracked: frozenset[Any] = frozenset(),
) -> tuple[Program, list[Any]]:
    """`function` over arguments of these types, as a Program, and the outer values that are its further inputs.

    The user's scopes count from here: a program may be used again in another one, and `inline` adds that. `axes` get a
    name inside, and along those `tracked` types say what varies.
    """
    frame = Frame(name, stages_all=True, axes=axes, tracked=tracked)
    with frame.open(), use_scope(()):
        outputs = [frame.lift(as_operand(x)) for x in function(*(frame.input(type) for type in types))]
    return frame.program(outputs), frame.captured


@verifies_result
def rewrite(name: str, types: Sequence[ArrayType], body: Callable[..., Sequence[Any]]) -> Program:
    """A Program made by a transformation: `body` sees no other frame, but a user's rule may use the axes bound here."""
    frame = _ClosedFrame(name, stages_all=True, axes=bound_axes(), tracked=tracked_axes())
    with frame.open(over=()):
        outputs = [frame.lift(x) for x in body(*(frame.input(type) for type in types))]
    return frame.program(outputs)


@final
class _ClosedFrame(Frame):
    """A frame without captured inputs: an array from outside, which a user's rule may use, is held by the program."""

    def __init__(self, name: str, stages_all: bool, axes: Mapping[Any, int], tracked: frozenset[Any]):
        super().__init__(name, stages_all, axes, tracked)
        self._held: dict[int, Value] = {}

    def lift(self, x: Any) -> Value:
        if isinstance(x, Tracer):
            return super().lift(x)
        if id(x) not in self._held:
            self._held[id(x)] = self.bind(ArrayConstant(IdentityKey(x)), ())[0].value
        return self._held[id(x)]
