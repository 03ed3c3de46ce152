"""Dispatch of applied ops: to the innermost open frame that accepts the op, else to the executor.

A frame stages ops into a program (see `trace/`). A frame with `stages_all` (jit) accepts every op. Other frames (grad,
vmap) accept ops on their own tracers, so that work on outer values stays outside, and ops that use an axis name that
the frame binds (vmap).

Lower layers call the executor, a higher layer, only through `executor`. `execute/executor.py`, which runs compiled
programs, sets it when the package is imported.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, final

from shardwise.errors import UnexpectedTracerError

if TYPE_CHECKING:
    from shardwise.compiler.ir.op import Op


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


class _Stack(threading.local):
    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.resolves = False
        self.rebound: dict[int, tuple[Any, Any]] = {}  # by id: a captured value, kept alive, and its current value


_stack = _Stack()
executor: Executor = None  # type: ignore[assignment]  # before `execute/executor.py` is imported


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
    """A mark in the stack of frames. Frames below it record only ops on their own tracers; other ops run eagerly."""

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
    """Run ops on concrete operands in a `with` block, even inside traced functions. Ops on tracers are recorded."""
    with use_frames([*_stack.frames, _EAGER_CONSTANTS]):
        yield


def recording_frame(args: Sequence[Any], axis_names: frozenset[Any] = frozenset()) -> Frame | None:
    """Return the innermost frame that records an op with these operands and axis names; None if the op runs eagerly."""
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
def rebind(captured: Sequence[Sequence[Any]], values: Sequence[Any]) -> Iterator[None]:
    """Use `values` in place of captured values inside a `with` block.

    A derivative rule of a user may close over tracers of an outer function. It runs again when a program that contains
    it is transformed, where the operands of its op hold these values.

    Args:
        captured: the names of each captured value: the objects that the rule may refer to.
        values: the current value of each.
    """
    before = _stack.rebound
    _stack.rebound = {
        **before,
        **{id(name): (name, value) for names, value in zip(captured, values, strict=True) for name in names},
    }
    try:
        yield
    finally:
        _stack.rebound = before


def current_value(x: Any) -> Any:
    """Return the value that `rebind` puts in place of `x`; otherwise `x`."""
    return _stack.rebound[id(x)][1] if id(x) in _stack.rebound else x


def rebound_names(x: Any) -> tuple[Any, ...]:
    """Return `x` and the values in whose place `rebind` puts it."""
    return (x, *[name for name, value in _stack.rebound.values() if value is x])


@contextmanager
def resolve_shardings(resolves: bool = True) -> Iterator[None]:
    """Resolve conflicts between types along Explicit mesh axes in a `with` block, instead of raising errors.

    Derivatives and functions with `out_sharding` use this, because they reshard the results. `resolves=False` makes
    conflicts errors again, for calls of user functions inside a transformation.
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
    """Return whether a frame records all ops, so that no value is concrete."""
    return recording_frame(()) is not None


def bound_axes() -> dict[Any, int]:
    """Return the bound axis names with their sizes; an inner axis shadows an outer one."""
    return {name: size for frame in _stack.frames for name, size in frame.axes.items()}


def tracked_axes() -> frozenset[Any]:
    """Return the bound axes for which types track varying values: manual axes that no vmap shadows."""
    tracked: frozenset[Any] = frozenset()
    for frame in _stack.frames:
        tracked = (tracked - frozenset(frame.axes)) | frame.tracked
    return tracked


class _AxisNames:
    """A frame that only binds axis names, for rewriting a program that uses them."""

    stages_all = False

    def __init__(self, axes: Mapping[Any, int], tracked: frozenset[Any]):
        self.axes = axes
        self.tracked = tracked

    def owns(self, value: object) -> bool:
        return False

    def bind(self, op: "Op", args: Sequence[Any]) -> tuple[Any, ...]:
        raise AssertionError(f"{op.name} was applied in a frame that only binds axis names")


def bind_axis_names(axes: Mapping[Any, int], tracked: frozenset[Any]) -> AbstractContextManager[None]:
    """Bind axis names in a `with` block, to rewrite the program of a manual region outside the region."""
    return use_frames([*_stack.frames, _AxisNames(axes, tracked)])


def bind(op: "Op", args: Sequence[Any]) -> tuple[Any, ...]:
    """Apply `op` to operands (arrays or tracers) in the innermost frame that accepts it, or run it.

    Raises:
        UnexpectedTracerError: if an operand is a tracer whose frame is closed.
    """
    if _stack.rebound:
        args = [current_value(arg) for arg in args]
    if _stack.frames and (frame := recording_frame(args, op.axis_names)) is not None:
        return frame.bind(op, args)
    for arg in args:
        if (closed_frame := getattr(arg, "frame", None)) is not None:
            raise UnexpectedTracerError(closed_frame.leak_message(arg))
    return executor.run(op, args)
