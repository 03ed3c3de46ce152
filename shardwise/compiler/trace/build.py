"""build: stage a function of arrays into a Program; rewrite: build a Program in a transformation.

The input is a Python function and the types of its arguments. The output is a verified Program, and the outer values
that the function captures, which are the last inputs of the Program.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.dispatch import bound_axes, resolve_shardings, tracked_axes
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.shape.constants import ArrayConstant, IdentityKey
from shardwise.compiler.trace.provenance import outside_scopes
from shardwise.compiler.trace.tracer import Frame, Tracer


@verifies_result
def build(
    function: Callable[..., Sequence[Any]],
    types: Sequence[ArrayType],
    name: str,
    axes: Mapping[Any, int] | None = None,
    tracked: frozenset[Any] = frozenset(),
    frame_type: Callable[..., Frame] = Frame,
    input_names: Callable[[], Sequence[str]] | None = None,
) -> tuple[Program, list[Any]]:
    """Stage `function` for arguments of the given types.

    The named scopes of the caller are not recorded, because the program may be called from several scopes. `inline`
    adds the scope of each call.

    Args:
        function: a function of arrays that returns a list of arrays.
        types: the types of its arguments.
        name: the name of the program.
        axes: the axis names that the frame binds, with their sizes.
        tracked: the bound axes for which types track varying values.
        frame_type: the class of the frame, or a function that creates the frame.
        input_names: returns the names of the arguments, for messages.

    Returns:
        The program, and the captured outer values, which are its last inputs.
    """
    frame = frame_type(name, stages_all=True, axes=axes, tracked=tracked)
    frame.input_names = input_names
    with frame.open(), outside_scopes():
        outputs = [frame.lift(as_operand(x)) for x in function(*(frame.input(type) for type in types))]
    frame.check_leaks()
    return frame.program(outputs), frame.captured


@verifies_result
def rewrite(name: str, types: Sequence[ArrayType], body: Callable[..., Sequence[Any]]) -> Program:
    """Build a Program in a transformation.

    `body` runs without outer frames, but user-defined rules in it may use the currently bound axis names. An outer
    array that such a rule uses becomes a constant of the program.
    """
    frame = _ClosedFrame(name, stages_all=True, axes=bound_axes(), tracked=tracked_axes())
    with frame.open(over=()), resolve_shardings():
        outputs = [frame.lift(x) for x in body(*(frame.input(type) for type in types))]
    return frame.program(outputs)


@final
class _ClosedFrame(Frame):
    """A frame that captures no inputs: outer arrays become constants of the program."""

    def __init__(self, name: str, stages_all: bool, axes: Mapping[Any, int], tracked: frozenset[Any]):
        super().__init__(name, stages_all, axes, tracked)
        self._constants: dict[int, Value] = {}

    def lift(self, x: Operand) -> Value:
        if isinstance(x, Tracer):
            return super().lift(x)
        if id(x) not in self._constants:
            self._constants[id(x)] = self.bind(ArrayConstant(IdentityKey(x)), ())[0].value
        return self._constants[id(x)]
