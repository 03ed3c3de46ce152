"""Gathers and scatters."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwise import lax
from shardwise.compiler.arrays.methods import Array


def _scatter(function: Callable[..., Array]) -> Callable[..., Array]:
    def scatter(
        x: Array,
        indices: Array,
        updates: Array,
        *,
        dimension_numbers: Any,
        indices_are_sorted: bool,
        unique_indices: bool,
        mode: Any,
        update_jaxpr: Any,
        update_consts: Any,
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
    return lax.scatter_apply(
        x,
        indices,
        lambda element: update_jaxpr(*update_consts, element, element)[0],
        dimension_numbers,
        update_shape=updates.shape,
        **flags,
    )


PRIMITIVES: dict[str, Callable[..., Any]] = {
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
