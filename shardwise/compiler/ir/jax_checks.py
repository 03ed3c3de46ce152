"""Checks of Explicit shardings that JAX makes, and that the factor rule does not need.

The devices can exchange the elements that an op needs, so the factor rule has a result where JAX raises an error. Ops
call these functions in `check_as_jax`, which applies if the setting `jax_compatibility` is "exact".
"""

from collections.abc import Collection, Iterable, Sequence

from shardwise.compiler.ir.types import ArrayType, spec_text
from shardwise.compiler.shardings.explicit import Axes
from shardwise.errors import ShardingError, ShardingTypeError

_EXACT = "The setting jax_compatibility is 'exact': otherwise, the devices exchange elements."


def dim_axes(type: ArrayType, dim: int) -> Axes:
    """Return the Explicit axes that shard a dim."""
    return type.explicit.dims[dim] if type.explicit else ()


def is_sharded(type: ArrayType, dims: Iterable[int] | None = None) -> bool:
    """Return whether Explicit axes shard one of these dims; by default, any dim."""
    return any(dim_axes(type, dim) for dim in (range(type.ndim) if dims is None else dims))


def check_unsharded(op_name: str, type: ArrayType, dims: Collection[int]) -> None:
    """Raise ShardingTypeError if one of these dims of an operand is sharded."""
    for dim in dims:
        if axes := dim_axes(type, dim):
            raise ShardingTypeError(
                f"{op_name}: dim {dim} of {type} is sharded along {_and(axes)}, and JAX needs it unsharded here. "
                f"Replicate it first: {_replicating_call(type, dims)}. {_EXACT}"
            )


def check_divisible(op_name: str, type: ArrayType, shape: Sequence[int]) -> None:
    """Raise ShardingTypeError if the axes of a dim do not divide the size that the op gives it.

    `shape` is the shape of the result, whose dims are the dims of the operand of this type.
    """
    for dim, (before, after) in enumerate(zip(type.shape, shape, strict=True)):
        axes = dim_axes(type, dim)
        if before == after or not axes or type.explicit is None:
            continue
        count = type.explicit.mesh.abstract.extent(axes)
        if after % count:
            raise ShardingTypeError(
                f"{op_name}: dim {dim} of {type} is sharded along {_and(axes)} into {count} shards, and would have "
                f"{after} elements in the result, which {count} does not divide. Replicate it first: "
                f"{_replicating_call(type, (dim,))}. {_EXACT}"
            )


def check_equal(op_name: str, types: Sequence[ArrayType]) -> None:
    """Raise ShardingTypeError if operands have different shardings."""
    for index, type in enumerate(types[1:], 1):
        if [dim_axes(type, dim) for dim in range(type.ndim)] != [
            dim_axes(types[0], dim) for dim in range(types[0].ndim)
        ]:
            raise ShardingTypeError(
                f"{op_name}: operands 0 and {index}, {types[0]} and {type}, are sharded differently, and JAX needs "
                f"equal shardings here. Reshard one of them: `reshard(x, {spec_text(types[0])})`. {_EXACT}"
            )


def check_equal_batches(op_name: str, x: ArrayType, y: ArrayType) -> None:
    """Raise ShardingError if two stacks of matrices are sharded differently along the dims before the last two."""
    batches = [[dim_axes(type, dim) for dim in range(type.ndim - 2)] for type in (x, y)]
    if x.shape[:-2] == y.shape[:-2] and batches[0] != batches[1]:
        raise ShardingError(
            f"{op_name}: the dims before the last two of {x} and {y} are sharded differently, and JAX needs equal "
            f"shardings here. Reshard one of them, `reshard(x, P(...))`. {_EXACT}"
        )


def _replicating_call(type: ArrayType, dims: Collection[int]) -> str:
    entries = [None if dim in dims else entry for dim, entry in enumerate(type.sharding.spec)]
    return f"`reshard(x, P({', '.join(map(repr, entries))}))`"


def _and(axes: Axes) -> str:
    return " and ".join(map(repr, axes))
