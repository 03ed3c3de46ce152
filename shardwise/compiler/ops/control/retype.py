"""Casts of tangents, cotangents and loop carries to the type of the value that they belong to."""

from typing import Any

from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.named import NamedSum, PVary
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.placement.reshard import cotangent_type, reshard_to
from shardwise.compiler.ops.shape.constants import full


def match_type(x: Any, type: ArrayType) -> Any:
    """Cast `x` to the dtype, weak type, varying axes and Explicit sharding of `type`, so that rules of ops need not."""
    if x.type is type:
        return x
    if x.type.with_varying(type.varying).with_explicit(type.explicit) is not type:
        x = Convert(type.dtype, type.weak)(x)
    more = tuple(axis for axis in type.varying if axis not in x.type.varying)
    return reshard_to(PVary(more)(x) if more else x, type.explicit)


def match_cotangent_type(cotangent: Any, type: ArrayType) -> Any:
    """Cast the cotangent of a value of this type. If that is replicated over an axis, sum the cotangent over it."""
    more = tuple(axis for axis in cotangent.type.varying if axis not in type.varying)
    cotangent = NamedSum(more, invariant=True)(cotangent) if more else cotangent
    return match_type(cotangent, cotangent_type(type))


def zeros_of(type: ArrayType) -> Any:
    """Return zeros of this type."""
    return match_type(full(type.shape, 0, type.dtype, type.weak), type)
