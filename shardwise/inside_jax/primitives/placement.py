"""Shardings and devices."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.trace.provenance import provenance
from shardwise.errors import UnsupportedError
from shardwise.experimental.shard_alike import shard_alike
from shardwise.inside_jax import _jax
from shardwise.inside_jax.primitives.parameters import unsupported_parameter


def constrain(x: Array, sharding: object) -> Array:
    """Return a value with a sharding; unchanged if `sharding` is None or JAX's value for an unspecified one."""
    return lax.with_sharding_constraint(x, sharding) if isinstance(sharding, NamedSharding) else x


def _sharding_constraint(
    x: Array, *, sharding: object, layout: object, context_mesh: object, unconstrained_dims: object
) -> Array:
    return lax.with_sharding_constraint(x, sharding)


def _reshard(x: Array, *, dst_sharding: object, **_: object) -> Array:
    return x  # the type of the result states the sharding


def _device_put(*operands: Array, devices: Sequence[Any], srcs: object, copy_semantics: object) -> list[Array]:
    return [_put(x, target) for x, target in zip(operands, devices, strict=True)]


def _put(x: Array, target: object) -> Array:
    if target is None or target == _jax.jax.memory.Space.Device:
        return x
    if not isinstance(target, NamedSharding):
        raise unsupported_parameter("device_put", "device", target)
    return lax.with_sharding_constraint(x, target)


def _inspect_sharding(x: Array, *, callback: object) -> list[Array]:
    raise UnsupportedError(
        f"jax.debug.inspect_array_sharding at {provenance.source} is not supported in functions that Shardwise plans: "
        "`inside_jax.explain` shows the sharding of every value."
    )


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "device_put": _device_put,
    "inspect_sharding": _inspect_sharding,
    "layout_constraint": lambda x, *, layout: x,  # XLA chooses the layout in memory, which no value depends on
    "reshard": _reshard,
    "shard_alike": shard_alike,
    "sharding_constraint": _sharding_constraint,
}
