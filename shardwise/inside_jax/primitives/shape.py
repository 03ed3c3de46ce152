"""Primitives that move elements."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwise import lax
from shardwise.compiler.arrays.methods import Array


def _split(x: Array, *, sizes: Sequence[int], axis: int) -> list[Array]:
    return lax.split(x, [int(size) for size in sizes], axis)


def _reshape(x: Array, *, new_sizes: Sequence[int], dimensions: Sequence[int] | None, sharding: object) -> Array:
    return lax.reshape(x, new_sizes, dimensions)


def _broadcast_in_dim(
    x: Array, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], sharding: object
) -> Array:
    # The type of the result states the sharding. Dims of size 1 may grow, which those of the op `Broadcast` may not.
    return lax.broadcast_in_dim(x, shape, broadcast_dimensions)


def _empty(*, shape: Sequence[int] = (), dtype: Any, **_: Any) -> Array:
    # The values are undefined; the type of the result states the sharding.
    return lax.empty(shape, dtype)


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "broadcast_to": lambda x, *, shape: lax.broadcast_in_dim(x, shape, range(len(shape) - x.ndim, len(shape))),
    "empty": _empty,
    "empty2": _empty,
    "fft": lax.fft,
    "reshape": _reshape,
    "split": _split,
    "squeeze": lax.squeeze,
    "stack": lambda *arrays, axis: lax.stack(arrays, axis),
    "tile": lax.tile,
    "unstack": lax.unstack,
}
