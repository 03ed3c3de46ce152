"""Gathers and scatters."""

from collections.abc import Callable
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
        flags = {"indices_are_sorted": indices_are_sorted, "unique_indices": unique_indices, "mode": mode}
        return function(x, indices, updates, dimension_numbers, **flags)

    return scatter


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "gather": lax.gather,
    "scatter": _scatter(lax.scatter),
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
