"""Casts of tangents, cotangents and loop carries to the type of their value."""

from collections.abc import Collection
from typing import Any

from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.named import (
    AssertReplicated,
    NamedSum,
    PReduced,
    PUnreduced,
    PVary,
    first_device_only,
)
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.placement.reshard import cotangent_type, reshard_to
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.shardings.explicit import ExplicitSharding


def match_type(x: Operand, type: ArrayType) -> Any:
    """Cast `x` to the dtype, weak type, Explicit sharding and Manual axes of `type`, so that op rules need not."""
    if x.type is type:
        return x
    if x.type.with_varying(type.varying).with_explicit(type.explicit) is not type:
        x = Convert(type.dtype, type.weak)(x)
    if type.explicit is not None or x.type.explicit is not None:
        x = _match_sums(x, type)
    more = _missing(type.varying, x.type.varying)
    return reshard_to(PVary(more)(x) if more else x, type.explicit)


def _match_sums(x: Operand, type: ArrayType) -> Any:
    """Make `x` unreduced and reduced along the same Manual axes as `type`."""
    terms, copies = type.explicit.manual_sums if type.explicit else ((), ())
    old_terms, old_copies = x.type.explicit.manual_sums if x.type.explicit else ((), ())
    if axes := _missing(old_terms, terms):
        x = NamedSum(axes, invariant=True)(x)
    if axes := _missing(old_copies, (*copies, *type.varying)):
        x = AssertReplicated(axes)(PVary(axes)(x))
    if axes := _missing(copies, old_copies):
        x = PReduced(axes, type.explicit.mesh.abstract)(x)  # type: ignore[union-attr]
    if axes := _missing(terms, old_terms):
        replicated = _missing(axes, x.type.varying)
        x = first_device_only(x, replicated) if replicated else x
        x = PUnreduced(axes, type.explicit.mesh.abstract)(x)  # type: ignore[union-attr]
    return x


def with_sums_of(x: Operand, type: ArrayType) -> Any:
    """Return a replicated constant with the unreduced and reduced axes of `type`, as one of the terms of a sum."""
    explicit = type.explicit
    if explicit is None or not (explicit.unreduced or explicit.reduced):
        return x
    dims = ((),) * x.type.ndim
    sums = ExplicitSharding.from_dims(explicit.mesh, dims, explicit.unreduced, explicit.reduced, explicit.scoped)
    return match_type(x, x.type.with_explicit(sums))


def with_varying_of(x: Operand, type: ArrayType) -> Any:
    """Return `x` cast to varying over the Manual axes over which `type` varies."""
    axes = _missing(type.varying, x.type.varying)
    return PVary(axes)(x) if axes else x


def match_cotangent_type(cotangent: Operand, type: ArrayType, may_stay_sharded: bool = False) -> Any:
    """Cast the cotangent of a value of this type. Sum it over the axes along which the value is replicated.

    With `may_stay_sharded`, the cotangent stays sharded along axes that do not shard the value. The cotangent of a
    broadcast weight is then summed on its shards instead of being gathered first.
    """
    target = cotangent_type(type)
    if cotangent.type is target:
        return cotangent
    if may_stay_sharded and _is_sharded_further(cotangent.type, target):
        target = target.with_explicit(cotangent.type.explicit)
    more = _missing(cotangent.type.varying, (*type.varying, *target.mat.unreduced))
    cotangent = NamedSum(more, invariant=True)(cotangent) if more else cotangent
    return match_type(cotangent, target)


def _is_sharded_further(type: ArrayType, target: ArrayType) -> bool:
    """Return whether an axis shards a dim of `type` and no dim of `target`."""
    if type.explicit is None:
        return False
    of_target = {axis for axes in target.explicit.dims for axis in axes} if target.explicit else ()
    return any(axis not in of_target for axes in type.explicit.dims for axis in axes)


def zeros_of(type: ArrayType) -> Any:
    """Return zeros of this type."""
    return match_type(full(type.shape, 0, type.dtype, type.weak), type)


def _missing(axes: Collection[str], present: Collection[str]) -> tuple[str, ...]:
    """Return the `axes` that are not in `present`."""
    return tuple(axis for axis in axes if axis not in present)
