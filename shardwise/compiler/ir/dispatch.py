"""Dispatch of applied ops: to the innermost open frame that accepts the op, else to the installed executor.

A frame stages ops into a program (see `trace/`). A frame with `stages_all` (jit) accepts every op. Other frames (grad,
vmap) accept ops that touch one of their own tracers, so that work on outer values stays outside, and ops that use an
axis name that the frame binds (vmap).

Higher layers install what lower layers call: `executor` runs an op on concrete arrays, `transforms` rewrites the
programs that ops hold, `namespace` is the module of array functions, some of which are also methods of arrays,
`type_sharding` returns the sharding of a type as users see it, and `explicit_sharding` the part of it in types;
`constrain_sharding` and `decided_by` apply the parameter `out_sharding` of methods of arrays.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, final

from shardwise.errors import UnexpectedTracerError

if TYPE_CHECKING:
    from shardwise.compiler.ir.op import BatchAxis, Op
    from shardwise.compiler.ir.program import Program, Value
    from shardwise.compiler.ir.types import ArrayType
    from shardwise.compiler.shardings.explicit import ExplicitSharding


class Frame(Protocol):
    """A function that is being staged; see `trace.tracer.Frame` for the attributes."""

    stages_all: bool
    axes: Mapping[Any, int]
    tracked: frozenset[Any]

    def owns(self, value: object) -> bool: ...
    def bind(self, op: "Op", args: Sequence[Any]) -> tuple[Any, ...]: ...


class Executor(Protocol):
    """Runs ops on concrete arrays."""

    def run(self, op: "Op", args: Sequence[Any]) -> tuple[Any, ...]: ...
    def call(self, function: Callable[..., Any], args: Sequence[Any], static: dict[str, Any]) -> Any: ...
    def call_list(self, function: Callable[..., Any], args: Sequence[Any], static: dict[str, Any]) -> list[Any]: ...
    def place(self, value: Any, beside: Any = None) -> Any: ...
    def transfer(self, array: Any, sharding: Any) -> Any: ...


class Transforms(Protocol):
    """Transformations of programs, for the rules of ops that hold a program or a function."""

    def jvp(
        self, program: "Program", active: tuple[bool, ...], instantiate: tuple[bool, ...] = ()
    ) -> "tuple[Program, tuple[bool, ...]]": ...
    def linearize(
        self, program: "Program", active: tuple[bool, ...], instantiate: tuple[bool, ...] = ()
    ) -> "tuple[Program, Program, tuple[bool, ...]]": ...
    def transpose(
        self,
        program: "Program",
        linear: tuple[bool, ...],
        cotangents: tuple[bool, ...],
        instantiate: tuple[bool, ...] = (),
    ) -> "tuple[Program, tuple[bool, ...]]": ...
    def build(
        self, function: Callable[..., Sequence[Any]], types: "Sequence[ArrayType]", name: str
    ) -> "tuple[Program, list[Any]]": ...
    def rewrite(self, name: str, types: "Sequence[ArrayType]", body: Callable[..., Sequence[Any]]) -> "Program": ...
    def inline(self, program: "Program", opaque: bool = True) -> "Program": ...
    def shrink_loop_residuals(
        self, forward: "Program", linear: "Program", count: int, free: "Collection[Value]"
    ) -> "tuple[Program, Program]": ...
    def dce(self, program: "Program") -> "Program": ...
    def without_effects(self, op: "Op") -> "Op": ...
    def erase_varying(self, program: "Program") -> "Program": ...
    def lower_keys(self, program: "Program") -> "Program": ...
    def vmap(
        self,
        program: "Program",
        axis: "BatchAxis",
        dims: tuple[int | None, ...],
        everywhere: bool | tuple[bool, ...] = False,
    ) -> "tuple[Program, tuple[int | None, ...]]": ...
    def map_function(
        self,
        function: Callable[..., Sequence[Any]],
        axis: "BatchAxis",
        args: Sequence[Any],
        dims: Sequence[int | None],
        name: str,
    ) -> tuple[list[Any], list[int | None]]: ...
    def rematerialize(
        self, program: "Program", active: tuple[bool, ...], policy: Callable[..., Any] | None
    ) -> "tuple[Program, Program, tuple[bool, ...]]": ...


class _Stack(threading.local):
    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.resolves = False


class _Installed:
    executor: Executor
    transforms: Transforms
    namespace: Any
    type_sharding: "Callable[[ArrayType], Any]"
    constrain_sharding: Callable[[Any, Any], Any]
    decided_by: Callable[[Any], AbstractContextManager[None]]
    explicit_sharding: "Callable[[Any, tuple[int, ...]], ExplicitSharding | None]"


_stack = _Stack()
installed = _Installed()


def open_frames() -> list[Frame]:
    """Return the open frames of this thread, innermost last."""
    return _stack.frames


@contextmanager
def use_frames(stack: list[Frame]) -> Iterator[None]:
    """Replace the open frames of this thread inside a `with` block."""
    before = _stack.frames
    _stack.frames = stack
    try:
        yield
    finally:
        _stack.frames = before


@final
class _EagerConstants:
    """A mark in the stack of frames: frames below it record only ops on their own tracers, and other ops run."""

    stages_all = False
    axes: Mapping[Any, int] = {}
    tracked: frozenset[Any] = frozenset()

    def owns(self, value: object) -> bool:
        return False

    def bind(self, op: "Op", args: Sequence[Any]) -> tuple[Any, ...]:
        raise AssertionError(f"{op.name} was applied in a frame that records nothing")


_EAGER_CONSTANTS = _EagerConstants()


@contextmanager
def evaluate_constants() -> Iterator[None]:
    """Run ops on concrete operands in a `with` block, inside traced functions too; ops on tracers are recorded."""
    with use_frames([*_stack.frames, _EAGER_CONSTANTS]):
        yield


def recording_frame(args: Sequence[Any], axis_names: frozenset[Any] = frozenset()) -> Frame | None:
    """Return the innermost frame that records an op with these operands and axis names; None if the op runs."""
    evaluates_constants = False
    for frame in reversed(_stack.frames):
        if frame is _EAGER_CONSTANTS:
            evaluates_constants = True
            continue
        if (frame.stages_all and not evaluates_constants) or any(frame.owns(arg) for arg in args):
            return frame
        if axis_names and frame.axes and not axis_names.isdisjoint(frame.axes):
            return frame
    return None


@contextmanager
def resolve_shardings(resolves: bool = True) -> Iterator[None]:
    """Resolve conflicts between types along Explicit mesh axes in a `with` block, instead of raising errors.

    For derivatives and functions with `out_sharding`, which reshard the results. With `resolves=False`, conflicts are
    errors again: a transformation calls a function of the user.
    """
    before, _stack.resolves = _stack.resolves, resolves
    try:
        yield
    finally:
        _stack.resolves = before


def resolves_shardings() -> bool:
    """Return whether `resolve_shardings` is active in this thread."""
    return _stack.resolves


def is_staging() -> bool:
    """Return whether a frame records all ops: no value is concrete here."""
    return recording_frame(()) is not None


def bound_axes() -> dict[Any, int]:
    """Return the axis names that ops can use here, with their sizes; an inner axis shadows an outer one."""
    return {name: size for frame in _stack.frames for name, size in frame.axes.items()}


def tracked_axes() -> frozenset[Any]:
    """Return the bound axes for which types track varying values: manual axes that no vmap shadows."""
    tracked: frozenset[Any] = frozenset()
    for frame in _stack.frames:
        tracked = (tracked - frozenset(frame.axes)) | frame.tracked
    return tracked


class _AxisNames:
    """A frame that only binds axis names, while a program is rewritten that uses them."""

    stages_all = False

    def __init__(self, axes: Mapping[Any, int], tracked: frozenset[Any]):
        self.axes = axes
        self.tracked = tracked

    def owns(self, value: object) -> bool:
        return False

    def bind(self, op: "Op", args: Sequence[Any]) -> tuple[Any, ...]:
        raise AssertionError(f"{op.name} was applied in a frame that only binds axis names")


def bind_axis_names(axes: Mapping[Any, int], tracked: frozenset[Any]) -> AbstractContextManager[None]:
    """Bind axis names in a `with` block, to rewrite a program of a manual region outside of the region."""
    return use_frames([*_stack.frames, _AxisNames(axes, tracked)])


def bind(op: "Op", args: Sequence[Any]) -> tuple[Any, ...]:
    """Apply `op` to operands (arrays or tracers) in the innermost frame that accepts it, or run it.

    Raises:
        UnexpectedTracerError: if an operand is a tracer whose frame is closed.
    """
    if _stack.frames and (frame := recording_frame(args, op.axis_names)) is not None:
        return frame.bind(op, args)
    for arg in args:
        if (closed_frame := getattr(arg, "frame", None)) is not None:
            raise UnexpectedTracerError(closed_frame.leak_message(arg))
    return installed.executor.run(op, args)
