"""Warnings about gradients that a `shard_map` sums over devices, although each device has its own loss.

Inside a `shard_map`, the gradient of a varying value with respect to a replicated one is the sum over all devices, as
in JAX. This surprises users who capture a parameter and expect per-device gradients. `grad` records such gradients
while the region is traced. A later `psum` or `pmean` of a replicated value over the same axes shows that the user
treats gradients as sums, and discards the records. The warning about the others is issued when the region is complete.

Gradients inside the rules of a `custom_vjp` are not recorded. The gradient that applies the rule is recorded instead;
it drops the cotangents of arguments that it does not differentiate. A captured array that is passed as an argument of a
`jit`, a loop or a conditional inside the region is not recognized as captured.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from shardwise.base.call_site import UserLine
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.dispatch import open_frames, tracked_axes
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.trace.tracer import Tracer

_noted: ContextVar[list[tuple[UserLine, str, frozenset[str]]] | None] = ContextVar("noted", default=None)


@contextmanager
def warn_of_summed_gradients() -> Iterator[None]:
    """Warn about the gradients that the body of a region records, when the body is complete."""
    token = _noted.set([])
    try:
        yield
        noted = _noted.get() or []
    finally:
        _noted.reset(token)
    for line, function, axes in noted:
        names = ", ".join(map(repr, sorted(axes)))
        line.warn(
            f"the gradient of {function} with respect to a captured array is the sum over all devices along {names}: "
            "the array is replicated, and each device has its own value of the function. For the gradient of each "
            f"device, differentiate with respect to `lax.pcast(x, {_axis_argument(axes)}, to='varying')`. For the sum, "
            "pass the array as an argument of shard_map, with the spec P()."
        )


def note_summed_gradients(function: str, operands: Sequence[Any], value_axes: Collection[str]) -> None:
    """Record the gradient of a function whose value varies over `value_axes`, with respect to captured operands.

    `function` describes the function.
    """
    noted = _noted.get()
    if noted is None:
        return
    axes = frozenset(
        axis
        for x in operands
        if is_inexact(x.type.dtype)
        for axis in (set(value_axes) & tracked_axes()).difference(x.type.varying)
        if _is_captured(x, axis)
    )
    if axes:
        noted.append((UserLine.current(), function, axes))


@contextmanager
def ignore_summed_gradients() -> Iterator[None]:
    """Return a context in which gradients are not recorded."""
    noted = _noted.get()
    before = list(noted or ())
    yield
    if noted:
        noted[:] = [each for each in noted if each in before]


def forget_summed_gradients(axes: Collection[str]) -> None:
    """Discard the records along `axes`, because the user reduces a replicated value over them."""
    noted = _noted.get()
    if noted:
        noted[:] = [each for each in noted if each[2].isdisjoint(axes)]


def _is_captured(x: Operand, axis: str) -> bool:
    """Return whether a value was created outside the region that binds `axis`."""
    frames = open_frames()
    inside = next((frames[index:] for index, frame in enumerate(frames) if axis in frame.tracked), [])
    return not (isinstance(x, Tracer) and any(x.frame is frame for frame in inside))


def _axis_argument(axes: Collection[str]) -> str:
    return repr(next(iter(axes))) if len(axes) == 1 else repr(tuple(sorted(axes)))
