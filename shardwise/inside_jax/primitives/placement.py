"""Shardings and devices."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.inside_jax import _jax
from shardwise.inside_jax.primitives.parameters import unsupported_parameter


def _sharding_constraint(x: Array, *, sharding: Any, layout: Any, context_mesh: Any, unconstrained_dims: Any) -> Array:
    return lax.with_sharding_constraint(x, sharding)


def _reshard(x: Array, *, dst_sharding: Any, **_: Any) -> Array:
    return x  # the type of the result states the sharding


def _device_put(*operands: Array, devices: Sequence[Any], srcs: Any, copy_semantics: Any) -> list[Array]:
    return [_put(x, target) for x, target in zip(operands, devices, strict=True)]


def _put(x: Array, target: Any) -> Array:
    if target is None or target == _jax.jax.memory.Space.Device:
        return x
    if not isinstance(target, NamedSharding):
        raise unsupported_parameter("device_put", "device", target)
    return lax.with_sharding_constraint(x, target)


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "device_put": _device_put,
    "layout_constraint": lambda x, *, layout: x,  # XLA chooses the layout in memory, which no value depends on
    "reshard": _reshard,
    "sharding_constraint": _sharding_constraint,
}
