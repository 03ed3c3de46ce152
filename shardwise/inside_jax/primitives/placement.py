"""Shardings and devices."""

from collections.abc import Callable
from typing import Any

from shardwise import lax
from shardwise.compiler.arrays.methods import Array


def _sharding_constraint(x: Array, *, sharding: Any, layout: Any, context_mesh: Any, unconstrained_dims: Any) -> Array:
    return lax.with_sharding_constraint(x, sharding)


def _reshard(x: Array, *, dst_sharding: Any, **_: Any) -> Array:
    return x  # the type of the result states the sharding


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "reshard": _reshard,
    "sharding_constraint": _sharding_constraint,
}
