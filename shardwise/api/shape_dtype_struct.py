"""ShapeDtypeStruct: an array's type, and where it would lie, without an array."""

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
    """A shape and a dtype without elements: stands for an array where only its type is read.

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
                f"ShapeDtypeStruct: sharding is a Sharding, such as NamedSharding(mesh, spec), not {sharding!r}"
            )
        self.type = ArrayType(tuple(shape), canonical_dtype(dtype), weak_type)
        self.sharding: Sharding | None = sharding

    @property
    def placed(self) -> ArraySignature:
        """The signature of the array for which it stands; one that nobody has placed is on the default device."""
        if self.sharding is None:
            return array_signature(self.type, SingleDeviceSharding(default_device()), False)
        return array_signature(self.type, self.sharding, True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapeDtypeStruct) and (self.type, self.sharding) == (other.type, other.sharding)

    def __hash__(self) -> int:
        return hash((self.type, self.sharding))

    def __repr__(self) -> str:
        where = f", sharding={self.sharding}" if self.sharding is not None else ""
        weak = ", weak_type=True" if self.weak_type else ""
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype.name}{where}{weak})"


def leaf_type(leaf: Any, name: str) -> ArrayType:
    """The type of an array, of a number, or of anything with a shape and a dtype."""
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is not None and dtype is not None and not hasattr(leaf, "type"):
        return ArrayType(tuple(shape), canonical_dtype(dtype))
    return type_of(leaf, name)


def struct(type: ArrayType, sharding: Sharding | None = None) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(type.shape, type.dtype, sharding=sharding, weak_type=type.weak)
