"""ShapeDtypeStruct: the shape, dtype and sharding of an array without its elements."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from shardwise.base.symbolic_dim import Dim, SymbolicDim, evaluate_dim
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.ir.types import ArrayType, ManualAxisType, Typed
from shardwise.compiler.shardings.mesh import mesh_context
from shardwise.compiler.shardings.named_sharding import traced_sharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.execute.request import default_device
from shardwise.runtime.array import ArraySignature, array_signature
from shardwise.runtime.sharding import SingleDeviceSharding, sharding_in_force
from shardwise.typing import DTypeLike


@final
@dataclass(frozen=True)
class SymbolicStruct:
    """A shape with symbolic dims, a dtype and optionally a sharding. `export` accepts it in place of an array."""

    shape: tuple[Dim, ...]
    dtype: Any
    sharding: Sharding | PartitionSpec | None = None

    def at(self, sizes: Mapping[str, int]) -> "ShapeDtypeStruct":
        """Return the struct for these sizes of the dimension variables."""
        shape = [evaluate_dim(dim, sizes) for dim in self.shape]
        return ShapeDtypeStruct(shape, self.dtype, sharding=self.sharding)


@final
class ShapeDtypeStruct(Typed):
    """A shape and a dtype, and optionally a sharding: stands for an array where only its type is needed.

    `jit(f).lower`, `jit(f).trace` and `eval_shape` accept it in place of an array.

    Args:
        shape: the sizes of the dims. They may be symbolic, for `export`; the result is then another class.
        dtype: the dtype; without `enable_x64`, a 64-bit dtype becomes 32-bit.
        sharding: the sharding of the array; a bare PartitionSpec is on the mesh that is current when the sharding is
            read. Without a sharding, the array is uncommitted, on the default device.
        weak_type: whether the array is weakly typed, as Python scalars are.
        manual_axis_type: the state of the array along Manual mesh axes, inside `shard_map`.
        is_ref: whether it stands for a Ref of such an array.

    Raises:
        ValueError: if `dtype` is None, or if `sharding` is neither a `Sharding` nor a `PartitionSpec`.
        ShardingError: if `sharding` does not fit the shape.
        TypeError: if `dtype` is unknown, if a size is negative or not an integer, or if `manual_axis_type` is not a
            `ManualAxisType`; when the sharding is read, if it
            is a `PartitionSpec` and there is no current mesh.

    Example:
        >>> x = jax.ShapeDtypeStruct((2, 3), jnp.bfloat16)
        >>> jax.eval_shape(jnp.transpose, x).shape
        (3, 2)
    """

    __slots__ = ("_sharding", "is_ref", "manual_axis_type", "type")

    def __new__(
        cls,
        shape: Sequence[Dim],
        dtype: DTypeLike,
        *,
        sharding: Sharding | PartitionSpec | None = None,
        weak_type: bool = False,
        manual_axis_type: ManualAxisType | None = None,
        is_ref: bool = False,
    ) -> Any:
        if isinstance(shape, (tuple, list)) and any(isinstance(size, SymbolicDim) for size in shape):
            return SymbolicStruct(tuple(shape), canonical_dtype(dtype), sharding)
        return super().__new__(cls)

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.shape, self.dtype  # copies are created by `__new__`

    def __init__(
        self,
        shape: Sequence[Dim],
        dtype: DTypeLike,
        *,
        sharding: Sharding | PartitionSpec | None = None,
        weak_type: bool = False,
        manual_axis_type: ManualAxisType | None = None,
        is_ref: bool = False,
    ):
        if dtype is None:
            raise ValueError("ShapeDtypeStruct needs a dtype")
        if sharding is not None and not isinstance(sharding, (Sharding, PartitionSpec)):
            raise ValueError(
                "ShapeDtypeStruct: sharding must be a Sharding or a PartitionSpec, such as NamedSharding(mesh, spec), "
                f"not {sharding!r}"
            )
        try:
            sizes = tuple([operator.index(size) for size in shape])
        except TypeError:
            raise TypeError(f"ShapeDtypeStruct: the shape must be a sequence of integers, not {shape!r}") from None
        self.type = ArrayType(sizes, canonical_dtype(dtype), weak_type)
        self._sharding: Sharding | PartitionSpec | None = sharding
        if isinstance(sharding, PartitionSpec) and mesh_context.mesh is not None:
            sharding = sharding_in_force(sharding, "ShapeDtypeStruct")
        if isinstance(sharding, Sharding):
            sharding.check_compatible_aval(self.type.shape)
            self.type = self.type.with_explicit(traced_sharding(sharding, self.type.shape))
        if manual_axis_type is not None:
            if not isinstance(manual_axis_type, ManualAxisType):
                raise TypeError(
                    f"ShapeDtypeStruct: manual_axis_type must be a ManualAxisType, not {manual_axis_type!r}"
                )
            self.type = self.type.update_manual_axis_type(manual_axis_type)
        self.manual_axis_type = manual_axis_type
        self.is_ref = is_ref

    @staticmethod
    def like(x: object) -> "ShapeDtypeStruct":
        """Return the struct of an array, a number or another struct, with the sharding of a committed array."""
        type = leaf_type(x, "ShapeDtypeStruct.like")
        sharding = getattr(x, "sharding", None) if getattr(x, "committed", True) else None
        return ShapeDtypeStruct(type.shape, type.dtype, sharding=sharding, weak_type=type.weak)

    def update(self, **changes: Any) -> "ShapeDtypeStruct":
        """Return this struct with other arguments."""
        shape, dtype = changes.pop("shape", self.shape), changes.pop("dtype", self.dtype)
        kept: dict[str, Any] = {
            "sharding": self._sharding,
            "weak_type": self.weak_type,
            "manual_axis_type": self.manual_axis_type,
            "is_ref": self.is_ref,
        }
        return ShapeDtypeStruct(shape, dtype, **{**kept, **changes})

    @property
    def sharding(self) -> Sharding | None:
        """The sharding, or None; a bare PartitionSpec is on the current mesh."""
        if isinstance(self._sharding, PartitionSpec):
            return sharding_in_force(self._sharding, "ShapeDtypeStruct")
        return self._sharding

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a ShapeDtypeStruct without dims has no length")
        return self.shape[0]

    @property
    def array_signature(self) -> ArraySignature:
        """The signature of the array; without a sharding, that of an uncommitted array on the default device."""
        sharding = self.sharding
        if sharding is None:
            return array_signature(self.type, SingleDeviceSharding(default_device()), False)
        return array_signature(self.type, sharding, True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapeDtypeStruct) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[Any, ...]:
        return self.type, self._sharding, self.manual_axis_type, self.is_ref

    def __repr__(self) -> str:
        sharding = f", sharding={self._sharding}" if self._sharding is not None else ""
        weak = ", weak_type=True" if self.weak_type else ""
        manual = f", manual_axis_type={self.manual_axis_type}" if self.manual_axis_type else ""
        is_ref = ", is_ref=True" if self.is_ref else ""
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype.name}{sharding}{weak}{manual}{is_ref})"


def leaf_type(leaf: object, name: str) -> ArrayType:
    """Return the type of an array, of a number, or of any object with a `shape` and a `dtype`."""
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is not None and dtype is not None and not hasattr(leaf, "type"):
        return ArrayType(tuple(shape), canonical_dtype(dtype))
    return type_of(leaf, name)


def struct(type: ArrayType, sharding: Sharding | None = None) -> ShapeDtypeStruct:
    """Return the `ShapeDtypeStruct` of a type. Inside `shard_map`, its type has the state along Manual axes."""
    if sharding is None and type.explicit is not None:
        sharding = type.sharding
    result = ShapeDtypeStruct(type.shape, type.dtype, sharding=sharding, weak_type=type.weak)
    result.type = type if type.mat != ManualAxisType() else result.type
    return result
