"""Tracer: an array whose value is not known yet. Frame: the function in which it is traced.

A tracer belongs to one frame. Used in an inner frame it becomes an explicit input of that frame's program; used after
its frame has closed, it is a leak, and the error says where it was made.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np

from shardwise.compiler.arrays.methods import ArrayMethods
from shardwise.compiler.ir.dispatch import open_frames, use_frames
from shardwise.compiler.ir.op import Op, result_types
from shardwise.compiler.ir.program import NOWHERE, Equation, Program, Source, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.named import PVary
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.movement import Reshape, Transpose
from shardwise.compiler.trace.provenance import current_source, provenance
from shardwise.errors import (
    ConcretizationTypeError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
    UnexpectedTracerError,
)


class Frame:
    """One function being staged into a Program. `stages_all`: it takes every op, not only those on its own tracers.

    `axes`: the names that it gives to axes for the ops inside, and their sizes. `tracked`: those of them along which
    types say what varies.
    """

    def __init__(
        self,
        name: str,
        stages_all: bool,
        axes: Mapping[Any, int] | None = None,
        tracked: frozenset[Any] = frozenset(),
    ):
        self.name = name
        self.stages_all = stages_all
        self.axes = axes or {}
        self.tracked = tracked
        self.inputs: list[Value] = []
        self.equations: list[Equation] = []
        self._captured: dict[int, tuple[Any, Value]] = {}
        self._varied: dict[tuple[Value, tuple[str, ...]], Value] = {}

    def input(self, type: ArrayType) -> "Tracer":
        """A new input of the program."""
        value = Value(type)
        self.inputs.append(value)
        return Tracer(self, value, None, current_source())

    def owns(self, value: Any) -> bool:
        return isinstance(value, Tracer) and value.frame is self

    def bind(self, op: Op, args: Sequence[Any]) -> "tuple[Tracer, ...]":
        inputs = [self.lift(arg) for arg in args]
        types = tuple([value.type for value in inputs])
        for type in types:
            if type.varying:
                inputs = self._entering(inputs, op.operand_varying(*types))
                types = tuple([value.type for value in inputs])
                break
        outputs = [Value(type) for type in result_types(op, types)]
        source = current_source()
        equation = Equation(op, inputs, outputs, source, provenance.reason)
        self.equations.append(equation)
        return tuple(Tracer(self, value, equation, source) for value in outputs)

    def _entering(self, inputs: Sequence[Value], entering: Sequence[tuple[str, ...]]) -> list[Value]:
        """The operands of an op in a manual region: what is one value for all devices meets what each has its own of
        as a value that each has."""
        found = []
        for value, axes in zip(inputs, entering, strict=True):
            more = tuple([axis for axis in axes if axis not in value.type.varying])
            found.append(self._vary(value, more) if more else value)
        return found

    def _vary(self, value: Value, axes: tuple[str, ...]) -> Value:
        """`value` as each device's own along `axes`. This is where a derivative sums over devices: once for all uses,
        and of what a value is spread from or turned over from, rather than of itself."""
        found = self._varied.get((value, axes))
        if found is None:
            made_by = next((equation for equation in reversed(self.equations) if value in equation.outputs), None)
            if made_by and isinstance(made_by.op, (Broadcast, Reshape, Transpose)) and made_by.inputs:
                spread = Tracer(self, self._vary(made_by.inputs[0], axes), None)
                found = self.bind(made_by.op, [spread])[0].value
            else:
                found = self.bind(PVary(axes), [Tracer(self, value, None)])[0].value
            self._varied[value, axes] = found
        return found

    def lift(self, x: Any) -> Value:
        """The value that stands for `x` in this frame's program."""
        if isinstance(x, Tracer):
            if x.frame is self:
                return x.value
            if x.frame not in open_frames():
                raise UnexpectedTracerError(x.frame.leak_message(x))
            if x.made_by is not None and not x.made_by.inputs and x.made_by.op.cheap_to_recompute:
                return self.bind(x.made_by.op, ())[0].value  # a constant is made again rather than carried in
        found = self._captured.get(id(x))
        if found is None:
            found = self._captured[id(x)] = (x, self.capture(x))
        return found[1]

    def capture(self, x: Any) -> Value:
        """A new input that stands for a value from outside."""
        return Value(x.type)

    @property
    def captured(self) -> list[Any]:
        """The values from outside that the program takes as further inputs, in order."""
        return [outer for outer, _ in self._captured.values()]

    def program(self, outputs: Sequence[Value]) -> Program:
        """What was staged; inputs first, then the captured values."""
        inputs = (*self.inputs, *(value for _, value in self._captured.values()))
        return Program(inputs, tuple(self.equations), tuple(outputs), self.name)

    @contextmanager
    def open(self, over: Sequence[Any] | None = None) -> Iterator[None]:
        """Stage here while open; `over` are the frames below (those open now, unless given)."""
        with use_frames([*(open_frames() if over is None else over), self]):
            yield

    def concrete(self, tracer: "Tracer", error: type[ConcretizationTypeError], use: str) -> Any:
        """The value below this frame that `tracer` stands for, where one can be known."""
        raise error(
            f"{use}, but this {tracer.type} is not known while `{self.name}` is traced.\n"
            f"  It was made at {tracer.source}"
            + (f" by {tracer.made_by.op.name}" if tracer.made_by is not None else f" as an argument of `{self.name}`")
            + ".\n  A compiled function runs for values that come later: choose between arrays with "
            "`numpy.where`,\n  or move the decision out of the function, or make the argument static."
        )

    def leak_message(self, tracer: "Tracer") -> str:
        """The message for a tracer used after its frame has closed."""
        made = f" by {tracer.made_by.op.name}" if tracer.made_by is not None else ""
        return (
            f"a traced {tracer.type} of `{self.name}` is used after `{self.name}` returned.\n"
            f"  It was made at {tracer.source}{made} and stands for a value of that trace only.\n"
            "  Return it from the function instead of storing it in an outer variable."
        )


@final
class Tracer(ArrayMethods):
    """An array in a function that is being traced: it has a type, operators and methods, but no elements."""

    __slots__ = ("frame", "made_by", "source", "type", "value")

    def __init__(self, frame: Frame, value: Value, made_by: Equation | None, source: Source = NOWHERE):
        self.frame = frame
        self.value = value
        self.type = value.type
        self.made_by = made_by
        self.source = source

    def __bool__(self) -> bool:
        use = "Python needs True or False here (`if`, `while`, `and`, `or`, `not`)"
        return bool(self.frame.concrete(self, TracerBoolConversionError, use))

    def __index__(self) -> int:
        use = "Python needs an integer here"
        return int(self.frame.concrete(self, TracerIntegerConversionError, use).__index__())

    def __int__(self) -> int:
        return int(self.frame.concrete(self, ConcretizationTypeError, "`int()` needs a value"))

    def __float__(self) -> float:
        return float(self.frame.concrete(self, ConcretizationTypeError, "`float()` needs a value"))

    def __complex__(self) -> complex:
        return complex(self.frame.concrete(self, ConcretizationTypeError, "`complex()` needs a value"))

    def item(self) -> Any:
        """The only element, as a Python scalar; only where the value is known."""
        return self.frame.concrete(self, ConcretizationTypeError, "`item()` needs a value").item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        use = "numpy needs the elements of an array"
        return np.asarray(self.frame.concrete(self, TracerArrayConversionError, use), dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        return f"Traced<{self.type} in {self.frame.name}>"
