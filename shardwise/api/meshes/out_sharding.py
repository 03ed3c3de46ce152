"""The parameter `out_sharding` of array functions: the sharding of the result, decided by the user."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from shardwise.api.meshes.placement import reshard, with_sharding_constraint
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.ir.dispatch import resolve_shardings
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import ShardingError, ShardingTypeError
from shardwise.runtime.sharding import resolve_sharding
from shardwise.typing import OutSharding


def constrain_sharding(x: Array, out_sharding: Sharding | PartitionSpec | None, keeps_sums: bool = False) -> Array:
    """Pin `x` to `out_sharding`, if it is given; along Explicit axes, reshard it.

    Args:
        x: the result of a function.
        out_sharding: the argument of the function; None for the sharding that `x` has.
        keeps_sums: whether the function, such as a reshape, cannot make a value unreduced or reduced.

    Raises:
        ShardingError: if `out_sharding` names a memory kind, or does not fit the shape of `x` or its mesh.
        ShardingTypeError: with `keeps_sums`, if its unreduced or reduced axes differ from those of `x`.
    """
    if out_sharding is None:
        return x
    if _says_nothing(out_sharding):
        return x
    target = resolve_sharding(out_sharding, "out_sharding")
    if isinstance(target, NamedSharding) and target.mesh_shape.explicit_axes:
        if target.nondefault_memory is not None:
            raise ShardingError(
                f"out_sharding: {target} names a memory, and only a sharding can be asked for here. Move the result: "
                "`device_put(x, sharding)`."
            )
        explicit = x.type.explicit
        sums = (explicit.unreduced, explicit.reduced) if explicit else ((), ())
        if keeps_sums and (target.spec.unreduced, target.spec.reduced) != tuple(map(frozenset, sums)):
            raise ShardingTypeError(
                f"out_sharding: {target.spec} changes the unreduced or reduced axes of a value of type {x.type}, and "
                f"only the dims can be resharded here. Change them with `reshard(x, {target.spec})`."
            )
        return reshard(x, target)
    return with_sharding_constraint(x, target)


def _says_nothing(out_sharding: Sharding | PartitionSpec) -> bool:
    """Return whether a sharding is that of a type without Explicit axes: `typeof(x).sharding` leaves Auto axes open."""
    return (
        isinstance(out_sharding, NamedSharding)
        and isinstance(out_sharding.mesh, AbstractMesh)
        and not out_sharding.mesh_shape.explicit_axes
        and all(entry is None for entry in out_sharding.spec)
    )


def unreduced_axes(out_sharding: OutSharding) -> frozenset[str]:
    """Return the axes over which `out_sharding` is unreduced."""
    spec = out_sharding.spec if isinstance(out_sharding, NamedSharding) else out_sharding
    return spec.unreduced if isinstance(spec, PartitionSpec) else frozenset()


def check_sums(
    name: str, out_sharding: OutSharding, operands: Sequence[Any], summed: Iterable[Sequence[tuple[int, int]]]
) -> None:
    """Check that `out_sharding` is unreduced only over axes that shard the summed dims of all operands alike.

    Args:
        name: the name of the function.
        out_sharding: its argument.
        operands: its operands.
        summed: for each sum, the dims that it runs over: (number of the operand, dim).

    Raises:
        ShardingTypeError: if it is unreduced over another axis.
    """
    wanted = unreduced_axes(out_sharding)
    if not wanted:
        return
    types = [type_of(x, name) for x in operands]
    axes = {axis for type in types if type.explicit for axis in type.explicit.unreduced}
    for dims in summed:
        shardings = [(types[number].explicit, dim) for number, dim in dims]
        of_dims = {sharding.dims[dim] if sharding else () for sharding, dim in shardings}
        axes |= set(of_dims.pop()) if len(of_dims) == 1 else set()
    if wrong := sorted(wanted - axes):
        raise ShardingTypeError(
            f"{name}: out_sharding is unreduced over {', '.join(map(repr, wrong))}, which does not shard the summed "
            f"dims of {' and '.join(map(str, types))} alike. Leave it out of out_sharding, or reshard an operand "
            "first: `reshard(x, P(...))`."
        )


def decided_by(out_sharding: OutSharding) -> AbstractContextManager[None]:
    """Return a context in which types may conflict along Explicit axes, if `out_sharding` decides the result's."""
    return _NO_DECISION if out_sharding is None else resolve_shardings()


_NO_DECISION = nullcontext()
