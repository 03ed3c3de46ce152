"""Reductions, cumulative reductions, sorts and windows."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwise import lax
from shardwise.compiler.arrays.methods import Array


def _along(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return the primitive of `argmax` or `argmin`, which has a tuple of one axis."""
    return lambda x, *, axes, index_dtype: function(x, axes[0], index_dtype)


def _reduce(
    *operands: Array, computation: Any = None, consts: Any = (), jaxpr: Any = None, dimensions: Any, **_: Any
) -> Any:
    count = len(operands) // 2

    def combine(xs: Sequence[Array], ys: Sequence[Array]) -> tuple[Array, ...]:
        return tuple(jaxpr(*xs, *ys))

    return lax.reduce(tuple(operands[:count]), tuple(operands[count:]), combine, dimensions)


def _sort(*operands: Array, dimension: int, is_stable: bool, num_keys: int) -> tuple[Array, ...]:
    return lax.sort(operands, dimension, is_stable, num_keys)


def _window(start: Callable[[Any], Any], combine: Callable[..., Any]) -> Callable[..., Array]:
    """Return the primitive of a windowed reduction that starts with `start(dtype)`."""

    def reduce_window(
        x: Array, *, window_dimensions: Any, window_strides: Any, padding: Any, base_dilation: Any, window_dilation: Any
    ) -> Array:
        return lax.reduce_window(
            x, start(x.dtype), combine, window_dimensions, window_strides, padding, base_dilation, window_dilation
        )

    return reduce_window


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "argmax": _along(lax.argmax),
    "argmin": _along(lax.argmin),
    "cumlogsumexp": lax.cumlogsumexp,
    "cummax": lax.cummax,
    "cummin": lax.cummin,
    "cumprod": lax.cumprod,
    "cumsum": lax.cumsum,
    "reduce": _reduce,
    "reduce_and": lax.reduce_and,
    "reduce_or": lax.reduce_or,
    "reduce_xor": lax.reduce_xor,
    "reduce_window_sum": _window(lambda dtype: dtype.type(0), lax.add),
    "sort": _sort,
    "top_k": lax.top_k,
}
