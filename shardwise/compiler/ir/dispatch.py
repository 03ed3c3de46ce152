"""Where an op goes when it is applied: the innermost open frame that wants it, else the installed executor.

A frame stages ops into a program (see `trace/`). Two kinds of frame differ in what they want: one that `stages_all`
(jit) takes every op; the others (grad, vmap) take only ops that touch one of their own tracers, so that work on
values from outside stays outside, and ops that compute along an axis which the frame has given a name (vmap).

Layers above install what layers below must reach: `executor` runs an op on concrete arrays, `transforms` rewrites
programs inside ops that hold one, `namespace` is the module of array functions, of which methods of arrays are some.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from shardwise.errors import UnexpectedTracerError

if TYPE_CHECKING:
    from shardwise.compiler.ir.op import BatchAxis, Op
    from shardwise.compiler.ir.program import Program
    from shardwise.compiler.ir.types import ArrayType


class Frame(Protocol):
    """A function being staged."""

    stages_all: bool
    axes: Mapping[Any, int]
    tracked: frozenset[Any]

    def owns(self, value: Any) -> bool: ...
    def bind(self, op: "Op", args: Sequence[Any]) -> tuple[Any, ...]: ...


class Executor(Protocol):
    """Runs ops on concrete arrays."""

    def run(self, op: "Op", args: Sequence[Any]) -> tuple[Any, ...]: ...
    def call(self, function: Callable[..., Any], args: Sequence[Any], static: dict[str, Any]) -> Any: ...
    def call_list(self, function: Callable[..., Any], args: Sequence[Any], static: dict[str, Any]) -> list[Any]: ...
    def place(self, value: Any) -> Any: ...
    def transfer(self, array: Any, sharding: Any) -> Any: ...


class Transforms(Protocol):
    """Program → Program, for the rules of ops that hold a program or a function."""

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
    def rewrite(self, name: str, types: "Sequence[ArrayType]", body: Callable[..., Sequence[Any]]) -> "Program": ...
    def inline(self, program: "Program", opaque: bool = True) -> "Program": ...
    def dce(self, program: "Program") -> "Program": ...
    def without_effects(self, op: "Op") -> "Op": ...
    def erase_varying(self, program: "Program") -> "Program": ...
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
        self, program: "Program", active: tuple[bool, ...], policy: Callable[..., bool] | None
    ) -> "tuple[Program, Program, tuple[bool, ...]]": ...


class _Stack(threading.local):
    def __init__(self) -> None:
        self.frames: list[Frame] = []


class _Installed:
    executor: Executor
    transforms: Transforms
    namespace: Any


_stack = _Stack()
installed = _Installed()


def open_frames() -> list[Frame]:
    """The frames of this thread, innermost last."""
    return _stack.frames


@contextmanager
def use_frames(stack: list[Frame]) -> Iterator[None]:
    """Replace the open frames for a while."""
    before = _stack.frames
    _stack.frames = stack
    try:
        yield
    finally:
        _stack.frames = before


def is_staging() -> bool:
    """Whether ops are being staged: no value is known here."""
    return any(frame.stages_all for frame in _stack.frames)


def bound_axes() -> dict[Any, int]:
    """The names of axes that ops can use here, and their sizes; an inner axis hides an outer one of its name."""
    return {name: size for frame in _stack.frames for name, size in frame.axes.items()}


def tracked_axes() -> frozenset[Any]:
    """Those of the bound axes along which types say what varies: of manual regions, unless a vmap hides the name."""
    found: frozenset[Any] = frozenset()
    for frame in _stack.frames:
        found = (found - frozenset(frame.axes)) | frame.tracked
    return found


class _Names:
    """A frame that only gives names to axes: programs are being rewritten that stand where they have them."""

    stages_all = False

    def __init__(self, axes: Mapping[Any, int], tracked: frozenset[Any]):
        self.axes = axes
        self.tracked = tracked

    def owns(self, value: Any) -> bool:
        return False

    def bind(self, op: "Op", args: Sequence[Any]) -> tuple[Any, ...]:
        raise AssertionError(f"{op.name} is applied where only programs are rewritten")


def bind_axis_names(axes: Mapping[Any, int], tracked: frozenset[Any]) -> AbstractContextManager[None]:
    """While programs from inside a manual region are rewritten outside of it: the axes that have a name there."""
    return use_frames([*_stack.frames, _Names(axes, tracked)])


def bind(op: "Op", args: Sequence[Any]) -> tuple[Any, ...]:
    """Apply `op` to operands (arrays or tracers) in the frame that wants it."""
    for frame in reversed(_stack.frames):
        if frame.stages_all or any(frame.owns(arg) for arg in args):
            return frame.bind(op, args)
        if frame.axes and not op.axis_names.isdisjoint(frame.axes):
            return frame.bind(op, args)
    for arg in args:
        if (closed := getattr(arg, "frame", None)) is not None:
            raise UnexpectedTracerError(closed.leak_message(arg))
    return installed.executor.run(op, args)
