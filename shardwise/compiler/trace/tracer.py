"""Tracer: an array without a concrete value. Frame: a function that is being traced (JAX: trace).

A tracer belongs to one frame. If an inner frame uses it, it becomes an explicit input of the inner frame's program. If
it is used after its frame is closed, it is a leaked tracer; the error message has the line that created it.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ref

import numpy as np

from shardwise.base.config import config
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.scalars import check_index, check_scalar, check_truth_value
from shardwise.compiler.dtypes import DTypeLike
from shardwise.compiler.ir.dispatch import current_value, open_frames, resolves_shardings, use_frames
from shardwise.compiler.ir.op import Op, check_scope, check_shardings, result_types
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import NOWHERE, Equation, Program, Source, Value
from shardwise.compiler.ir.types import ArrayType, ManualAxisType
from shardwise.compiler.ops.collective.named import PVary
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.movement import Reshape, Transpose
from shardwise.compiler.shardings.mesh import mesh_context
from shardwise.compiler.trace.provenance import current_source, provenance
from shardwise.compiler.trace.referrers import describe_referrers
from shardwise.compiler.trace.running_call import running_call, shared_numpy_name
from shardwise.errors import (
    ConcretizationTypeError,
    ShardingTypeError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
    UnexpectedTracerError,
)

MAX_NAMED_ARGUMENTS = 4  # in a message


class Frame:
    """A function that is being staged into a Program.

    Attributes:
        name: the name of the function.
        stages_all: whether the frame stages every op. Otherwise it stages only ops on its own tracers.
        axes: the axis names that the frame binds, with their sizes.
        tracked: the bound axes for which types track varying values.
        inputs: the inputs of the program so far.
        input_names: returns the names of the first inputs, for messages; None if they are not arguments of the user's.
        equations: the equations of the program so far.
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
        self.input_names: Callable[[], Sequence[str]] | None = None
        self.equations: list[Equation] = []
        self._tracers: list[ref[Tracer]] | None = [] if config.check_tracer_leaks else None
        self._captured: dict[int, tuple[Any, Value]] = {}
        self._varied: dict[tuple[Value, tuple[str, ...]], Value] = {}

    @property
    def main(self) -> "Frame":
        """The frame itself, under the name by which libraries read the main trace of JAX's tracers."""
        return self

    def input(self, type: ArrayType) -> "Tracer":
        """Add an input to the program, and return its tracer."""
        value = Value(type)
        self.inputs.append(value)
        return self.note_tracers([Tracer(self, value, None, current_source())])[0]

    def note_tracers(self, tracers: "list[Tracer]") -> "tuple[Tracer, ...]":
        """Return new tracers of this frame, and remember them for `check_leaks`."""
        if self._tracers is not None:
            self._tracers += map(ref, tracers)
        return tuple(tracers)

    def check_leaks(self) -> None:
        """Raise an error if a tracer outlives the trace, if the setting `check_tracer_leaks` is on."""
        if self._tracers is None or all(reference() is None for reference in self._tracers):
            return
        gc.collect()  # tracers in reference cycles are not leaked
        for reference in self._tracers:
            leaked = reference()
            if leaked is not None:
                raise UnexpectedTracerError(
                    f"Leaked trace: {leaked} of `{self.name}` still exists after `{self.name}` returned.\n"
                    f"  It was created at {leaked.source}{leaked.origin}.\n{describe_referrers(leaked)}"
                    "  Return it from the function instead of storing it in an outer variable."
                )

    def owns(self, value: object) -> bool:
        """Return whether `value` is a tracer of this frame."""
        return isinstance(value, Tracer) and value.frame is self

    def bind(self, op: Op, args: Sequence[Any]) -> "tuple[Tracer, ...]":
        """Add an equation that applies `op`, and return the tracers of its results."""
        inputs = [self.lift(arg) for arg in args]
        types = tuple([value.type for value in inputs])
        for type in types:
            if type.varying:
                inputs = self._cast_operands(inputs, op.operand_varying(*types))
                types = tuple([value.type for value in inputs])
                break
        self._check_shardings(op, args, types)
        outputs = [Value(type) for type in result_types(op, types)]
        source = current_source()
        equation = Equation(op, inputs, outputs, source, provenance.reason)
        self.equations.append(equation)
        return self.note_tracers([Tracer(self, value, equation, source) for value in outputs])

    def _check_shardings(self, op: Op, args: Sequence[Any], types: tuple[ArrayType, ...]) -> None:
        """Raise an error with the lines of the operands if their types conflict along Explicit mesh axes."""
        if resolves_shardings():
            return
        for type in types:
            if type.explicit is not None:
                try:
                    check_scope(op, types)
                    check_shardings(op, types)
                except ShardingTypeError as error:
                    lines = [
                        f"\n  operand {index}, {arg.type}, was created at {arg.source}"
                        for index, arg in enumerate(args)
                        if isinstance(arg, Tracer)
                    ]
                    raise ShardingTypeError(f"{error}{''.join(lines)}") from None
                break

    def _cast_operands(self, inputs: Sequence[Value], varying: Sequence[tuple[str, ...]]) -> list[Value]:
        """Cast replicated operands to varying when they are mixed with varying ones.

        `varying` holds the axes over which each operand must vary.
        """
        cast = []
        for value, axes in zip(inputs, varying, strict=True):
            missing = tuple([axis for axis in axes if axis not in value.type.varying])
            cast.append(self._vary(value, missing) if missing else value)
        return cast

    def _vary(self, value: Value, axes: tuple[str, ...]) -> Value:
        """Return `value` marked as varying over `axes`.

        The transpose of `Vary` is a sum over devices. The result is cached, so that all uses share one sum. The source
        of a broadcast, reshape or transpose is marked instead of its result, so that the sum is small.
        """
        varied = self._varied.get((value, axes))
        if varied is None:
            producer = next((equation for equation in reversed(self.equations) if value in equation.outputs), None)
            if producer and isinstance(producer.op, (Broadcast, Reshape, Transpose)) and producer.inputs:
                source = Tracer(self, self._vary(producer.inputs[0], axes), None)
                varied = self.bind(producer.op, [source])[0].value
            else:
                varied = self.bind(PVary(axes), [Tracer(self, value, None)])[0].value
            self._varied[value, axes] = varied
        return varied

    def lift(self, x: Operand) -> Value:
        """Return the value that represents `x` in this frame's program; outer values become captured inputs."""
        x = current_value(x)
        if isinstance(x, Tracer):
            if x.frame is self:
                return x.value
            if x.frame not in open_frames():
                raise UnexpectedTracerError(x.frame.leak_message(x))
            if x.made_by is not None and not x.made_by.inputs and x.made_by.op.cheap_to_recompute:
                return self.bind(x.made_by.op, ())[0].value  # a constant is recomputed instead of captured
        captured = self._captured.get(id(x))
        if captured is None:
            captured = self._captured[id(x)] = (x, self.capture(x))
        return captured[1]

    def capture(self, x: Operand) -> Value:
        """Return a new input for an outer value."""
        return Value(_type_in_region(x.type))

    @property
    def captured(self) -> list[Any]:
        """The outer values that are the last inputs of the program, in order."""
        return [outer for outer, _ in self._captured.values()]

    def program(self, outputs: Sequence[Value]) -> Program:
        """Return the staged program. Its inputs are the frame's inputs, then the captured values."""
        inputs = (*self.inputs, *(value for _, value in self._captured.values()))
        return Program(inputs, tuple(self.equations), tuple(outputs), self.name)

    @contextmanager
    def open(self, over: Sequence[Any] | None = None) -> Iterator[None]:
        """Open the frame inside a `with` block, on top of the frames `over` (default: the open frames)."""
        with use_frames([*(open_frames() if over is None else over), self]):
            yield

    def concrete(
        self, tracer: "Tracer", error: type[ConcretizationTypeError], use: str, advice: Callable[[], str]
    ) -> Any:
        """Return the concrete value of `tracer`, in frames that have concrete values.

        Args:
            tracer: a tracer of this frame.
            error: the error to raise if there is none.
            use: why the value is needed, for the message.
            advice: returns what to write instead, for the message.
        """
        raise error(
            f"{use}, but the value of this {tracer.type} is not known while `{self.name}` is traced.\n"
            f"  It was created at {tracer.source}"
            + (f" by {tracer.made_by.op.name}" if tracer.made_by is not None else f" as an argument of `{self.name}`")
            + f".{self._describe_dependence(tracer.value)}\n"
            f"  Traced values are known only when the compiled function runs: {advice()}"
        )

    def _describe_dependence(self, value: Value) -> str:
        """Return a sentence with the arguments that a value is computed from; empty if their names are not known."""
        if self.input_names is None:
            return ""
        needed = {value}
        for equation in reversed(self.equations):
            if not needed.isdisjoint(equation.outputs):
                needed.update(equation.inputs)
        names = [name for input, name in zip(self.inputs, self.input_names(), strict=False) if input in needed]
        if not names:
            return ""
        shown = names if len(names) <= MAX_NAMED_ARGUMENTS else [*names[:MAX_NAMED_ARGUMENTS], f"{len(names)} in all"]
        return f"\n  It depends on the argument{'s' if len(names) > 1 else ''} {', '.join(shown)}."

    def leak_message(self, tracer: "Tracer") -> str:
        """Return the message for a tracer that is used after its frame is closed."""
        return (
            f"a traced {tracer.type} of `{self.name}` is used after `{self.name}` returned.\n"
            f"  It was created at {tracer.source}{tracer.origin} and is valid only in that trace.\n"
            "  Return it from the function instead of storing it in an outer variable."
        )


class Tracer(Array):
    """An array in a function that is being traced: it has a type, operators and methods, but no elements.

    Attributes:
        frame: the frame that it belongs to.
        value: its value in the frame's program. Tracers that libraries define are constructed with a type instead.
        made_by: the equation that defines it; None for inputs.
        source: the user's line that created it.
    """

    __slots__ = ("__weakref__", "frame", "made_by", "source", "type", "value")

    def __init_subclass__(cls) -> None:
        """Take the type of a tracer from its property `aval`, if the class defines one, as classes of libraries may."""
        if "aval" in vars(cls):
            cls.type = cls.aval  # type: ignore[assignment, misc]

    def __init__(
        self, frame: Frame, value: Value | ArrayType, made_by: Equation | None = None, source: Source = NOWHERE
    ):
        self.frame = frame
        self.value = value if isinstance(value, Value) else Value(value)
        self.type = self.value.type
        self.made_by = made_by
        self.source = source

    @property
    def _trace(self) -> Frame:
        """The frame, under JAX's name, which libraries with their own tracers read."""
        return self.frame

    @_trace.setter
    def _trace(self, frame: Frame) -> None:
        """Set the frame of a tracer, in the constructor of a class that defines `aval`."""
        self.frame, self.made_by, self.source = frame, None, NOWHERE

    @property
    def origin(self) -> str:
        """The op that created it, as the end of a sentence; empty for inputs."""
        return f" by {self.made_by.op.name}" if self.made_by is not None else ""

    @property
    def sharding(self) -> Any:
        """The sharding along Explicit mesh axes, on an abstract mesh."""
        return self.type.sharding

    @property
    def mat(self) -> ManualAxisType:
        """The Manual axes over which the value varies, is unreduced, or is reduced."""
        return self.type.mat

    @property
    def vma(self) -> frozenset[str]:
        """The Manual axes over which the value varies."""
        return self.type.vma

    def __bool__(self) -> bool:
        check_truth_value(self.type)
        use = "Python needs True or False here (`if`, `while`, `and`, `or`, `not`)"
        return bool(self.frame.concrete(self, TracerBoolConversionError, use, _choice_advice))

    def __index__(self) -> int:
        check_index(self.type)
        use = "Python needs an integer here"
        return int(self.frame.concrete(self, TracerIntegerConversionError, use, _integer_advice).__index__())

    def __int__(self) -> int:
        check_scalar(self.type)
        return int(self._number("`int()` needs a value"))

    def __float__(self) -> float:
        check_scalar(self.type)
        return float(self._number("`float()` needs a value"))

    def __complex__(self) -> complex:
        check_scalar(self.type)
        return complex(self._number("`complex()` needs a value"))

    def item(self, *args: int) -> Any:
        """Return the only element, or the element at this index, as a Python scalar, if the value is concrete."""
        return self._number("`item()` needs a value").item(*args)

    def tolist(self) -> Any:
        """Return the elements as nested lists, if the value is concrete."""
        return self._number("`tolist()` needs values").tolist()

    def _number(self, use: str) -> Any:
        return self.frame.concrete(self, ConcretizationTypeError, use, _number_advice)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Any:
        use = "numpy needs the elements of an array"
        concrete = self.frame.concrete(self, TracerArrayConversionError, use, self._numpy_advice)
        return np.asarray(concrete, dtype=dtype, copy=copy)

    def _numpy_advice(self) -> str:
        function = shared_numpy_name(running_call(), self.__array_namespace__())
        if not function:
            return (
                "use the functions of shardwise.numpy instead of numpy's, for\n  example `jnp.sin(x)` instead of "
                f"`np.sin(x)`, or {_STATIC}."
            )
        return (
            f"write `jnp.{function}` instead of\n  `np.{function}`; functions of shardwise.numpy accept traced arrays."
        )

    def __copy__(self) -> "Tracer":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tracer":
        return self

    def __repr__(self) -> str:
        return f"Traced<{self.type} in {self.frame.name}>"


def _type_in_region(type: ArrayType) -> ArrayType:
    """Return the type of an outer value inside the manual regions that are being traced."""
    explicit = type.explicit
    if explicit is None or not mesh_context.manual_axes:
        return type
    outer = [axis for axis in explicit.mesh.axis_names if axis not in explicit.mesh.abstract.manual_axes]
    axes = [axis for axis in outer if axis in mesh_context.manual_axes]
    used = {*explicit.unreduced, *explicit.reduced, *(axis for of_dim in explicit.dims for axis in of_dim)}
    if sharded := [axis for axis in axes if axis in used]:
        raise ShardingTypeError(
            f"shard_map: the function closes over a value of type {type}, whose sharding names {sharded[0]!r}, a "
            "Manual axis inside. Pass the value as an argument, so that in_specs says how it is split."
        )
    return type.with_explicit(explicit.inside_region(axes, tracked=True)) if axes else type


_STATIC = "make the argument static (`static_argnums` or `static_argnames` of jit)"


def _choice_advice() -> str:
    return (
        "choose between arrays with `jnp.where`,\n  between functions with `lax.cond`, loop with `lax.while_loop`, "
        f"or {_STATIC}."
    )


def _number_advice() -> str:
    return f"compute with the array itself, for example convert it with `.astype`,\n  or {_STATIC}."


def _integer_advice() -> str:
    loop = "`lax.fori_loop(0, n, body, init)` instead of `for i in range(n)`"
    if running_call() is range:
        return f"loop with\n  {loop},\n  or {_STATIC}."
    return f"a shape or an index of a list must be static: {_STATIC}.\n  For a loop, write {loop}."
