"""ShapeDtypeStruct: the shape, dtype and sharding of an array without its elements."""

from collections.abc import Sequence
from typing import Any, final

from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.ir.types import ArrayType, Typed
from shardwise.execute.request import default_device
from shardwise.runtime.array import ArraySignature, array_signature
from shardwise.runtime.sharding import Sharding, SingleDeviceSharding


@final
class ShapeDtypeStruct(Typed):
    """A shape and a dtype, and optionally a sharding: stands for an array where only its type is needed.

    `jit(f).lower`, `jit(f).trace` and `eval_shape` accept it in place of an array.

    Args:
        shape: the sizes of the dims.
        dtype: the dtype; without `enable_x64`, a 64-bit dtype becomes 32-bit.
        sharding: the sharding of the array. Without it, the array is uncommitted, on the default device.
        weak_type: whether the array is weakly typed, as Python scalars are.

    Raises:
        ValueError: if `dtype` is None.
        TypeError: if `sharding` is not a `Sharding`, if `dtype` is unknown, or if a size is negative.

    Example:
        >>> x = jax.ShapeDtypeStruct((2, 3), jnp.bfloat16)
        >>> jax.eval_shape(jnp.transpose, x).shape
        (3, 2)
    """

    __slots__ = ("sharding", "type")

    def __init__(self, shape: Sequence[int], dtype: Any, *, sharding: Any = None, weak_type: bool = False):
        if dtype is None:
            raise ValueError("ShapeDtypeStruct needs a dtype")
        if sharding is not None and not isinstance(sharding, Sharding):
            raise TypeError(
                f"ShapeDtypeStruct: sharding must be a Sharding, such as NamedSharding(mesh, spec), not {sharding!r}"
            )
        self.type = ArrayType(tuple(shape), canonical_dtype(dtype), weak_type)
        self.sharding: Sharding | None = sharding

    @property
    def array_signature(self) -> ArraySignature:
        """The signature of the array; without a sharding, that of an uncommitted array on the default device."""
        if self.sharding is None:
            return array_signature(self.type, SingleDeviceSharding(default_device()), False)
        return array_signature(self.type, self.sharding, True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapeDtypeStruct) and (self.type, self.sharding) == (other.type, other.sharding)

    def __hash__(self) -> int:
        return hash((self.type, self.sharding))

    def __repr__(self) -> str:
        sharding = f", sharding={self.sharding}" if self.sharding is not None else ""
        weak = ", weak_type=True" if self.weak_type else ""
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype.name}{sharding}{weak})"


def leaf_type(leaf: Any, name: str) -> ArrayType:
    """Return the type of an array, of a number, or of any object with a `shape` and a `dtype`."""
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is not None and dtype is not None and not hasattr(leaf, "type"):
        return ArrayType(tuple(shape), canonical_dtype(dtype))
    return type_of(leaf, name)


def struct(type: ArrayType, sharding: Sharding | None = None) -> ShapeDtypeStruct:
    """Return the `ShapeDtypeStruct` of a type."""
    return ShapeDtypeStruct(type.shape, type.dtype, sharding=sharding, weak_type=type.weak)
