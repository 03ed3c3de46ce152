"""Reductions, cumulative reductions, sorts and windows."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise import lax
from shardwise.api.transformations.differentiate import jvp, vjp
from shardwise.api.transformations.vmap import vmap
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.dtypes import highest, lowest
from shardwise.inside_jax.primitives.parameters import require


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
        x: Array,
        *,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        padding: Sequence[tuple[int, int]],
        base_dilation: Sequence[int],
        window_dilation: Sequence[int],
    ) -> Array:
        return lax.reduce_window(
            x, start(x.dtype), combine, window_dimensions, window_strides, padding, base_dilation, window_dilation
        )

    return reduce_window


def _reduce_window(
    *operands: Array,
    jaxpr: object,
    consts: object,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> list[Array]:
    """Combine the elements of each window one after the other, in row-major order."""
    count = len(operands) // 2
    arrays, totals = operands[:count], list(operands[count:])
    combine: Any = jaxpr
    for _ in window_dimensions:
        combine = vmap(combine)
    padded = [
        lax.pad(x, init, [(low, high, base - 1) for (low, high), base in zip(padding, base_dilation, strict=True)])
        for x, init in zip(arrays, totals, strict=True)
    ]
    spans = [dilation * (size - 1) for size, dilation in zip(window_dimensions, window_dilation, strict=True)]
    for position in np.ndindex(*window_dimensions):
        start = [int(index) * dilation for index, dilation in zip(position, window_dilation, strict=True)]
        limit = [size - span + first for size, span, first in zip(padded[0].shape, spans, start, strict=True)]
        elements = [lax.slice(x, start, limit, window_strides) for x in padded]
        totals = [lax.broadcast_in_dim(x, elements[0].shape, ()) if not x.ndim else x for x in totals]
        totals = combine(*totals, *elements)
    return totals


def _extremum_of_window(select_prim: Any, **window: Any) -> Callable[[Array], Array]:
    """Return the windowed maximum or minimum whose elements `select_prim`, the primitive `ge` or `le`, selects."""
    start, combine = (lowest, lax.max) if select_prim.name == "ge" else (highest, lax.min)
    return lambda x: lax.reduce_window(x, start(x.dtype), combine, **window)


def _select_and_gather_add(tangents: Array, x: Array, *, select_prim: object, **window: object) -> Array:
    return jvp(_extremum_of_window(select_prim, **window), (x,), (tangents,))[1]


def _select_and_scatter_add(source: Array, x: Array, *, select_prim: object, **window: object) -> Array:
    return vjp(_extremum_of_window(select_prim, **window), x)[1](source)[0]


def _approx_top_k(
    x: Array,
    *,
    k: int,
    reduction_dimension: int,
    recall_target: float,
    is_max_k: bool,
    reduction_input_size_override: int,
    aggregate_to_topk: bool,
) -> list[Array]:
    # The search is exact, so that its recall is 1.
    require("approx_top_k", aggregate_to_topk=(aggregate_to_topk, True))
    return (lax.approx_max_k if is_max_k else lax.approx_min_k)(x, k, reduction_dimension)


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "approx_top_k": _approx_top_k,
    "reduce": _reduce,
    "reduce_window": _reduce_window,
    "reduce_window_max": _window(lowest, lax.max),
    "reduce_window_min": _window(highest, lax.min),
    "reduce_window_sum": _window(lambda dtype: dtype.type(0), lax.add),
    "select_and_gather_add": _select_and_gather_add,
    "select_and_scatter_add": _select_and_scatter_add,
    "sort": _sort,
    "top_k": lax.top_k,
}
