"""Checks of the operands of public functions that JAX makes along Explicit axes, and that no op needs.

They do nothing unless the setting `jax_compatibility` is "exact". The checks of single ops are in `Op.check_as_jax`: a
check is here if other functions apply the same op to operands that JAX would reject.
"""

from collections.abc import Collection, Sequence
from typing import Any

from shardwise.base.config import config
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.ir.dispatch import resolves_shardings
from shardwise.compiler.ir.jax_checks import check_equal, check_unsharded, dim_axes
from shardwise.compiler.shardings.mesh import mesh_context, mesh_of_types
from shardwise.errors import ShardingError


def check_equal_shardings(name: str, *operands: Any) -> None:
    """Raise ShardingTypeError if operands of the same shape are sharded differently.

    If their shapes differ, they are broadcast to the sharding of the result. Arrays that are on no mesh have none.
    """
    if config.is_exact and len({type_of(x, name).shape for x in operands}) == 1:
        check_equal(name, [x.type for x in operands if isinstance(x, Array) and _is_on_mesh(x)])


def check_unsharded_dims(name: str, operand: object, dims: Collection[int]) -> None:
    """Raise ShardingTypeError if one of these dims is sharded."""
    if config.is_exact and isinstance(operand, Array):
        check_unsharded(name, operand.type, dims)


def check_mapped_shardings(name: str, operands: Sequence[Any], dims: Sequence[int | None]) -> None:
    """Raise ShardingError if mapped dims are sharded differently, or share axes with arguments that are not mapped."""
    if not config.is_exact or resolves_shardings():
        return
    mapped = [(x.type, dim) for x, dim in zip(operands, dims, strict=True) if dim is not None]
    axes = {dim_axes(type, dim) for type, dim in mapped}
    if len(axes) > 1:
        raise ShardingError(
            f"{name}: the mapped dims of {' and '.join(str(type) for type, _ in mapped)} are sharded differently. "
            "Reshard the arguments, `reshard(x, P(...))`. The setting jax_compatibility is 'exact'."
        )
    used = {axis for of_dim in axes for axis in of_dim}
    for x, mapped_dim in zip(operands, dims, strict=True):
        if mapped_dim is not None or not isinstance(x, Array):
            continue
        sharding = [axis for dim in range(x.type.ndim) for axis in dim_axes(x.type, dim)]
        if shared := [axis for axis in sharding if axis in used]:
            raise ShardingError(
                f"{name}: {x.type}, which is not mapped, is sharded along {shared[0]!r}, which shards the mapped dims. "
                "Reshard one of the arguments, `reshard(x, P(...))`. The setting jax_compatibility is 'exact'."
            )


def needs_out_sharding(*operands: Any) -> bool:
    """Return whether a function for which JAX infers no sharding needs `out_sharding`: on a mesh with Explicit axes."""
    if not config.is_exact:
        return False
    current = mesh_context.mesh and mesh_of_types(mesh_context.mesh).abstract.explicit_axes
    return bool(current) or any(isinstance(x, Array) and x.type.explicit is not None for x in operands)


def _is_on_mesh(x: Array) -> bool:
    """Return whether JAX knows a mesh of an array: it is committed to it, or traced while a mesh is set."""
    if x.type.explicit is not None:
        return True
    committed = getattr(x, "committed", None)  # tracers have none
    return mesh_context.mesh is not None if committed is None else bool(committed)
