"""constrain: pin values to shardings inside a traced function, as constraints or as requests of a nested `jit`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shardwise.base.config import config
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.placement.memory_space import InMemory
from shardwise.compiler.ops.placement.reshard import reshard_to
from shardwise.compiler.shardings.mesh import mesh_context
from shardwise.compiler.shardings.named_sharding import NamedSharding, traced_sharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.errors import ShardingError
from shardwise.runtime.sharding import check_argument_type, is_scoped, mesh_of


def constrain_all(
    values: Sequence[Any], shardings: Sequence[Sharding | None], parameter: str, names: Sequence[str]
) -> list[Any]:
    """Pin values to the shardings that a parameter of `jit` requests.

    Raises:
        ShardingTypeError: if an argument has another sharding along Explicit axes than its `in_shardings`.
    """
    for x, sharding, name in zip(values, shardings, names, strict=True):
        if parameter == "in_shardings" and sharding is not None and x.type.explicit is not None:
            check_argument_type(name, x.type, sharding)
    return [
        x if sharding is None else constrain(x, sharding, f"{parameter} for {name}")
        for x, sharding, name in zip(values, shardings, names, strict=True)
    ]


def constrain(x: Array, sharding: Sharding, requested_by: str = "", pins_auto: bool = True) -> Array:
    """Pin `x` to a sharding, including its memory kind.

    Args:
        x: an array.
        sharding: the sharding.
        requested_by: the parameter of `jit` that requests it.
        pins_auto: whether the layout is pinned along the Auto axes of a mesh that has Explicit ones too.
    """
    pinned = _constrain_layout(x, sharding, requested_by, pins_auto)
    return InMemory(sharding.nondefault_memory)(pinned) if sharding.nondefault_memory else pinned


def _constrain_layout(x: Array, sharding: Sharding, requested_by: str, pins_auto: bool) -> Array:
    """Pin `x` to the layout of a sharding; one on one device, or on a mesh without axes, pins nothing."""
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else mesh_of(sharding)
    if mesh is None or not mesh.axis_names:
        return x
    scoped = is_scoped(sharding)
    pin = sharding.pin(x.type.shape)
    if config.is_exact:  # JAX ignores a constraint that would shard a dim unevenly
        pin = replace(pin, layout=pin.layout.evenly(x.type.shape, sharding.mesh_shape))
    if isinstance(sharding, NamedSharding) and (
        sums := mesh_context.manual_axes & (sharding.spec.unreduced | sharding.spec.reduced)
    ):
        raise ShardingError(
            f"reshard: {sharding.spec} names {', '.join(map(repr, sorted(sums)))}, which is a manual axis of the "
            "enclosing shard_map. Cast values along it with `lax.pcast`, and reduce them with `lax.psum`."
        )
    if manual := [axis for axis in pin.layout.axes if axis in mesh_context.manual_axes]:
        raise ShardingError(
            f"with_sharding_constraint: {pin.layout} uses {', '.join(map(repr, manual))}, which is a manual axis of "
            "the enclosing shard_map: values inside are shards along that axis already. Use only the other axes."
        )
    open_dims = tuple(sorted(pin.open_dims))
    if not (mesh.explicit_axes or scoped):
        return Constrain(pin.layout.dims, mesh, open_dims, requested_by=requested_by)(x)
    x = reshard_to(x, traced_sharding(sharding, x.type.shape, scoped))
    auto = mesh.auto_axes
    if auto and pins_auto:
        x = Constrain(pin.layout.dims, mesh, open_dims, auto, requested_by=requested_by)(x)
    return x
