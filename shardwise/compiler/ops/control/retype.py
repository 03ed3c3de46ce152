"""Values brought to a type: tangents and cotangents to that of what they belong to, carries to that of their loop."""

from typing import Any

from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.named import NamedSum, PVary
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.shape.constants import full


def match_type(x: Any, type: ArrayType) -> Any:
    """A tangent or cotangent of a value of this type, weak and varying where that is: rules need not look after it."""
    if x.type is type:
        return x
    if x.type.with_varying(type.varying) is not type:
        x = Convert(type.dtype, type.weak)(x)
    more = tuple(axis for axis in type.varying if axis not in x.type.varying)
    return PVary(more)(x) if more else x


def match_cotangent_type(cotangent: Any, type: ArrayType) -> Any:
    """A cotangent of a value of this type. What is one value for all devices has one cotangent: the sum of those that
    each device has."""
    more = tuple(axis for axis in cotangent.type.varying if axis not in type.varying)
    return match_type(NamedSum(more, invariant=True)(cotangent) if more else cotangent, type)


def zeros_of(type: ArrayType) -> Any:
    return match_type(full(type.shape, 0, type.dtype, type.weak), type)
