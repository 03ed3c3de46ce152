"""Primitives that move elements."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwise import lax
from shardwise.compiler.arrays.methods import Array


def _split(x: Array, *, sizes: Sequence[int], axis: int) -> list[Array]:
    return lax.split(x, [int(size) for size in sizes], axis)


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "fft": lax.fft,
    "pad": lax.pad,
    "rev": lax.rev,
    "split": _split,
    "squeeze": lax.squeeze,
    "tile": lax.tile,
    "transpose": lax.transpose,
}
