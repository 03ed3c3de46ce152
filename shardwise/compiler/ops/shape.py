"""Ops that make or move elements and compute nothing: full, iota, broadcast, reshape, transpose.

Also the two moves that every vmap rule needs: `move_dim` and `batch_at`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import BatchAxis, Hlo, NumpyArray, Op, Shard
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType, DType, Scalar
from shardwise.compiler.ops import elementwise, reduce  # reduce and shape are each other's transposes
from shardwise.compiler.shardings.factors import FactorRule


class Nullary(Op):
    """No operands, so nothing to differentiate or map; made wherever it is needed, unless it says otherwise."""

    cheap = True

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(), None

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return ()

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self(), None


@final
@record
class Full(Nullary):
    """An array whose elements are all `value`. `weak`: it came from a Python scalar."""

    name = "full"
    shape: tuple[int, ...]
    value: Scalar
    weak: bool = False

    def out_type(self) -> ArrayType:
        return ArrayType(self.shape, self.value.dtype, self.weak)

    def factors(self, *types: ArrayType) -> FactorRule:
        return FactorRule.pointwise(self.shape, 0)

    def padding(self, fills: Sequence[Any]) -> Any:
        return self.value.array

    def localize(self, shard: Shard, *operands: Any) -> Any:
        return Full(shard.out_shapes[0], self.value, self.weak)()

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        return hlo.constant(self.value.array, self.out_type())

    def reference(self, *operands: NumpyArray) -> NumpyArray:
        return np.full(self.shape, self.value.array)


@final
@record
class Iota(Nullary):
    """Each element is its own index along `dim`."""

    name = "iota"
    shape: tuple[int, ...]
    dim: int
    dtype: DType

    def out_type(self) -> ArrayType:
        if not 0 <= self.dim < len(self.shape):
            raise TypeError(f"iota: dim {self.dim} does not exist in shape {self.shape}")
        if self.dtype == np.bool_:
            raise TypeError("iota: a boolean cannot count; compare an iota of integers")
        return ArrayType(self.shape, self.dtype)

    def factors(self, *types: ArrayType) -> FactorRule:
        return FactorRule.pointwise(self.shape, 0)

    def localize(self, shard: Shard, *operands: Any) -> Any:
        shape, offset = shard.out_shapes[0], shard.offset(self.dim, np.int32)
        if offset is None:
            return Iota(shape, self.dim, self.dtype)()
        # Counted in integers: in a narrow float the sum of two rounded numbers is not the rounded sum.
        index = Iota(shape, self.dim, np.dtype(np.int32))()
        index = elementwise.Add()(index, Broadcast(shape, ())(offset))
        return index if self.dtype == np.int32 else elementwise.Convert(self.dtype)(index)

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        return hlo.op("stablehlo.iota", (), self.out_type(), f"iota_dimension = {self.dim} : i64")

    def reference(self, *operands: NumpyArray) -> NumpyArray:
        shape = [1] * len(self.shape)
        shape[self.dim] = self.shape[self.dim]
        index = np.arange(self.shape[self.dim]).astype(self.dtype).reshape(shape)
        return np.broadcast_to(index, self.shape)


@final
@record
class Held(Nullary):
    """An array that exists already, in a program that a transformation made: it becomes an input before `propagate`.

    `array` is anything with a `type`; two are equal only if they are one object.
    """

    name = "held"
    cheap = False  # it exists once
    array: "Identity"

    def out_type(self) -> ArrayType:
        return self.array.value.type  # type: ignore[no-any-return]

    def reference(self, *operands: NumpyArray) -> NumpyArray:
        return np.asarray(self.array.value)


@final
@dataclass(frozen=True, eq=False)
class Identity:
    """Wraps an object that has no hash of its own: equal to itself alone."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Movement(Op):
    """One operand, rearranged: linear, and past the end of a dim lies what lay there before."""

    cheap = takes_keys = True

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def padding(self, fills: Sequence[Any]) -> Any:
        return fills[0] if fills else None

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), self(*tangents)


@final
@record
class Broadcast(Movement):
    """Operand dim i becomes dim `dims[i]` of `shape`; the other dims are new, and repeat the operand."""

    name = "broadcast"
    shape: tuple[int, ...]
    dims: tuple[int, ...]

    def out_type(self, x: ArrayType) -> ArrayType:
        if len(self.dims) != x.ndim or list(self.dims) != sorted(set(self.dims)):
            raise TypeError(f"broadcast: dims {self.dims} must name one result dim for each dim of {x}, ascending")
        if self.dims and not 0 <= self.dims[0] <= self.dims[-1] < len(self.shape):
            raise TypeError(f"broadcast: dims {self.dims} do not exist in shape {self.shape}")
        if tuple(self.shape[dim] for dim in self.dims) != x.shape:
            raise TypeError(f"broadcast: {x} does not fit dims {self.dims} of shape {self.shape}")
        return x.with_shape(self.shape)

    def factors(self, *types: ArrayType) -> FactorRule:
        result = tuple((dim,) for dim in range(len(self.shape)))
        return FactorRule((tuple((dim,) for dim in self.dims),), (result,), self.shape)

    def localize(self, shard: Shard, *operands: Any) -> Any:
        return Broadcast(shard.out_shapes[0], self.dims)(*operands)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (reduce.Sum(tuple(dim for dim in range(len(self.shape)) if dim not in self.dims))(cotangent),)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x = batch_at(operands[0], dims[0], 0, axis.size)
        return Broadcast((axis.size, *self.shape), (0, *(dim + 1 for dim in self.dims)))(x), 0

    def lower(self, hlo: Hlo, x: Any) -> Any:
        dims = int_list(self.dims)
        return hlo.op("stablehlo.broadcast_in_dim", (x,), self.out_type(x.type), f"broadcast_dimensions = {dims}")

    def reference(self, x: NumpyArray) -> NumpyArray:
        shape = [1] * len(self.shape)
        for dim in self.dims:
            shape[dim] = self.shape[dim]
        return np.broadcast_to(x.reshape(shape), self.shape)


@final
@record
class Reshape(Movement):
    """The same elements, in row-major order, in another shape."""

    name = "reshape"
    shape: tuple[int, ...]

    def out_type(self, x: ArrayType) -> ArrayType:
        if math.prod(self.shape) != x.size:
            raise TypeError(f"reshape: {x} has {x.size} elements, shape {self.shape} has {math.prod(self.shape)}")
        return x.with_shape(self.shape)

    def factors(self, x: ArrayType) -> FactorRule:
        return FactorRule.reshaping(x.shape, self.shape)

    def localize(self, shard: Shard, *operands: Any) -> Any:
        return Reshape(shard.out_shapes[0])(*operands)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (Reshape(operands[0].type.shape)(cotangent),)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return Reshape((axis.size, *self.shape))(batch_at(operands[0], dims[0], 0, axis.size)), 0

    def lower(self, hlo: Hlo, x: Any) -> Any:
        return hlo.op("stablehlo.reshape", (x,), self.out_type(x.type))

    def reference(self, x: NumpyArray) -> NumpyArray:
        return x.reshape(self.shape)


@final
@record
class Transpose(Movement):
    """Dim i of the result is dim `permutation[i]` of the operand."""

    name = "transpose"
    permutation: tuple[int, ...]

    def out_type(self, x: ArrayType) -> ArrayType:
        if sorted(self.permutation) != list(range(x.ndim)):
            raise TypeError(f"transpose: {self.permutation} is not a permutation of the dims of {x}")
        return x.with_shape(tuple(x.shape[dim] for dim in self.permutation))

    def factors(self, x: ArrayType) -> FactorRule:
        operand = tuple((dim,) for dim in range(x.ndim))
        return FactorRule((operand,), (tuple((dim,) for dim in self.permutation),), x.shape)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return (Transpose(inverse(self.permutation))(cotangent),)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x = batch_at(operands[0], dims[0], 0, axis.size)
        return Transpose((0, *(dim + 1 for dim in self.permutation)))(x), 0

    def lower(self, hlo: Hlo, x: Any) -> Any:
        return hlo.op("stablehlo.transpose", (x,), self.out_type(x.type), f"permutation = {int_list(self.permutation)}")

    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.transpose(x, self.permutation)


def inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes this one."""
    return tuple(sorted(range(len(permutation)), key=permutation.__getitem__))


def permuted(x: Any, order: tuple[int, ...]) -> Any:
    """`x` with dim i taken from dim `order[i]`; itself where that changes nothing."""
    return x if order == tuple(range(len(order))) else Transpose(order)(x)


def permuted_in(hlo: Hlo, x: Any, order: tuple[int, ...]) -> Any:
    """The same, in StableHLO."""
    return x if order == tuple(range(len(order))) else Transpose(order).lower(hlo, x)


def move_dim(x: Any, source: int, target: int) -> Any:
    """`x` with its dim `source` moved to `target`, the other dims in order."""
    order = [dim for dim in range(x.type.ndim) if dim != source]
    order.insert(target, source)
    return permuted(x, tuple(order))


def batch_at(x: Any, dim: int | None, target: int, size: int) -> Any:
    """`x` with its batch dim at `target`; an unbatched `x` is repeated along a new dim there."""
    if dim is not None:
        return move_dim(x, dim, target)
    shape = x.type.shape
    dims = tuple(d + (d >= target) for d in range(len(shape)))
    return Broadcast((*shape[:target], size, *shape[target:]), dims)(x)


def full(shape: tuple[int, ...], value: Any, dtype: Any, weak: bool = False) -> Any:
    """An array of one value."""
    return Full(shape, Scalar.of(value, dtype), weak)()


def zeros_like(x: Any) -> Any:
    return full(x.type.shape, 0, x.type.dtype)


def int_list(values: Sequence[int]) -> str:
    """Integers as an MLIR attribute."""
    return f"array<i64{': ' if values else ''}{', '.join(map(str, values))}>"
