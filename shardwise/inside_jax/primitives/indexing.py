"""Gathers and scatters."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise import lax
from shardwise.api.jaxprs.jaxpr_forms import primitive_named
from shardwise.compiler.arrays.methods import Array
from shardwise.inside_jax.primitives.parameters import require


def _scatter(function: Callable[..., Array]) -> Callable[..., Array]:
    def scatter(
        x: Array,
        indices: Array,
        updates: Array,
        *,
        dimension_numbers: object,
        indices_are_sorted: bool,
        unique_indices: bool,
        mode: object,
        update_jaxpr: object,
        update_consts: object,
    ) -> Array:
        # The function is the primitive's: a sum for `scatter_add`.
        flags = {"indices_are_sorted": indices_are_sorted, "unique_indices": unique_indices, "mode": mode}
        return function(x, indices, updates, dimension_numbers, **flags)

    return scatter


def _scatter_or_apply(
    x: Array,
    indices: Array,
    updates: Array,
    *,
    dimension_numbers: Any,
    indices_are_sorted: bool,
    unique_indices: bool,
    mode: Any,
    update_jaxpr: Any,
    update_consts: Sequence[Any],
) -> Array:
    flags = {"indices_are_sorted": indices_are_sorted, "unique_indices": unique_indices, "mode": mode}
    if update_jaxpr is None:
        return lax.scatter(x, indices, updates, dimension_numbers, **flags)
    # `x.at[i].apply(f)`: the function ignores the updates.
    require("scatter", update_consts=(tuple(update_consts), ()))
    return lax.scatter_apply(
        x,
        indices,
        lambda element: update_jaxpr(element, element)[0],
        dimension_numbers,
        update_shape=updates.shape,
        **flags,
    )


def _dynamic_slice(x: Array, *starts: Array, slice_sizes: Sequence[int]) -> Array:
    return primitive_named("dynamic_slice").bind(x, *map(_start_index, starts), slice_sizes=slice_sizes)


def _dynamic_update_slice(x: Array, update: Array, *starts: Array) -> Array:
    return primitive_named("dynamic_update_slice").bind(x, update, *map(_start_index, starts))


def _start_index(start: Array) -> Array:
    """Return a start index as a signed one. The slice is moved into bounds, so that a larger one may be clamped."""
    if start.dtype in (np.int32, np.int64):
        return start
    if start.dtype.itemsize >= np.dtype(np.int32).itemsize:
        start = lax.min(start, lax.full_like(start, np.iinfo(np.int32).max))
    return lax.convert_element_type(start, np.int32)


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": lax.gather,
    "scatter": _scatter_or_apply,
    "scatter-add": _scatter(lax.scatter_add),
    "scatter-max": _scatter(lax.scatter_max),
    "scatter-min": _scatter(lax.scatter_min),
    "scatter-mul": _scatter(lax.scatter_mul),
    "scatter-sub": _scatter(lax.scatter_sub),
    "scatter_add": _scatter(lax.scatter_add),
    "scatter_max": _scatter(lax.scatter_max),
    "scatter_min": _scatter(lax.scatter_min),
    "scatter_mul": _scatter(lax.scatter_mul),
    "scatter_sub": _scatter(lax.scatter_sub),
}
