"""The family of gather and scatter: ops on windows of an array that start at index vectors.

There are three kinds of dims of the operand. A dim in `batch` is paired with a dim of the indices. Along a dim in
`collapsed`, a window has one element, and the result lacks the dim. All others are window dims. In the result (for a
scatter, in the updates), the dims in `window` are the window dims, in order; the others are the dims of the indices.
StableHLO calls them offset_dims, collapsed_slice_dims, operand_batching_dims, start_indices_batching_dims and
start_index_map.

    x[i]  with x of 10 × 4, i of 7      collapsed=(0,) mapped=(0,) window=(1,): for each of 7 indices a row of 4
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.compiler.ir.jax_checks import check_unsharded
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray, Op
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.expr import Expr
from shardwise.compiler.ops.elementwise.min_max import Clamp
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.lower_dim import lower_slice
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along

Ints = tuple[int, ...]
WindowDims = tuple[Ints, Ints, Ints, Ints, Ints]  # window, collapsed, batch, index_batch, mapped
INDICES = (np.dtype(np.int32), np.dtype(np.int64))


@record
class Indexed(Op):
    """The dims of a gather or scatter, as the module's docstring defines them.

    Component i of an index vector is the start along dim `mapped[i]`.
    """

    window: tuple[int, ...]
    collapsed: tuple[int, ...]
    batch: tuple[int, ...]
    index_batch: tuple[int, ...]
    mapped: tuple[int, ...]

    def window_dims_of(self, ndim: int) -> list[int]:
        """Return the window dims of an operand of this rank."""
        return [dim for dim in range(ndim) if dim not in self.collapsed and dim not in self.batch]

    def index_dims_of(self, ndim: int) -> list[int]:
        """Return the dims of a result of this rank that come from the indices."""
        return [dim for dim in range(ndim) if dim not in self.window]

    def check(self, x: ArrayType, indices: ArrayType, sizes: Sequence[int]) -> None:
        """Raise TypeError if windows of these sizes do not fit `x` and the indices."""
        if indices.dtype not in INDICES or not indices.ndim:
            raise TypeError(f"{self.name}: needs index vectors of i32 or i64 along the last dim, not {indices}")
        if indices.shape[-1] != len(self.mapped):
            raise TypeError(f"{self.name}: {indices} holds vectors of {indices.shape[-1]}, for dims {self.mapped}")
        for what, dims in (("collapsed", self.collapsed), ("batch", self.batch), ("mapped", self.mapped)):
            if len(set(dims)) != len(dims) or not all(0 <= dim < x.ndim for dim in dims):
                raise TypeError(f"{self.name}: {what} dims {dims} must be distinct dims of {x}")
        if overlap := set(self.batch) & {*self.collapsed, *self.mapped}:
            raise TypeError(f"{self.name}: batch dims {sorted(overlap)} cannot be collapsed or mapped too")
        if len(sizes) != x.ndim or not all(
            0 <= size <= dim_size for size, dim_size in zip(sizes, x.shape, strict=True)
        ):
            raise TypeError(f"{self.name}: windows of shape {tuple(sizes)} do not fit {x}")
        if any(sizes[dim] != 1 for dim in (*self.collapsed, *self.batch) if x.shape[dim]):
            raise TypeError(
                f"{self.name}: windows of shape {tuple(sizes)} have more than one element along a collapsed "
                "or batch dim"
            )
        if len(self.batch) != len(self.index_batch) or len(set(self.index_batch)) != len(self.index_batch):
            raise TypeError(
                f"{self.name}: the batch dims {self.batch} of the operand and {self.index_batch} of the indices "
                "must be pairs"
            )
        for dim, at in zip(self.batch, self.index_batch, strict=True):
            if not 0 <= at < indices.ndim - 1 or indices.shape[at] != x.shape[dim]:
                raise TypeError(f"{self.name}: batch dim {dim} of {x} and batch dim {at} of {indices} differ in size")

    def check_lookup_as_jax(self, x: ArrayType, indices: ArrayType, sizes: Sequence[int]) -> None:
        """Raise ShardingTypeError if JAX cannot look up windows of these sizes without `out_sharding`."""
        check_unsharded(self.name, x, [dim for dim in self.mapped if sizes[dim] != x.shape[dim]])
        check_unsharded(self.name, indices, [dim for dim in range(indices.ndim) if dim not in self.index_batch])

    def check_window(self, ndim: int) -> None:
        """Raise TypeError if `window` does not name dims of a result of this rank."""
        if list(self.window) != sorted(set(self.window)) or not all(0 <= dim < ndim for dim in self.window):
            raise TypeError(f"{self.name}: window dims {self.window} must be ascending dims of an array of rank {ndim}")

    def factors_of(self, x: ArrayType, indices: ArrayType, sizes: Sequence[int]) -> "IndexedFactors":
        """Return the factors of a gather, or of the scatter that is the transpose of the gather."""
        factors = IndexedFactors(list(x.shape))
        operand = list(range(x.ndim))
        paired = dict(zip(self.index_batch, self.batch, strict=True))
        per_index = [paired[i] if i in paired else factors.new(size) for i, size in enumerate(indices.shape[:-1])]
        components = factors.new(indices.shape[-1], need_replication=True)
        factors.need_replication.update(dim for dim in self.collapsed if dim not in self.mapped)
        inner = []
        for dim in self.window_dims_of(x.ndim):
            passes_through = sizes[dim] == x.shape[dim]
            inner.append(dim if passes_through else factors.new(sizes[dim], need_replication=True))
            if not passes_through:
                factors.need_replication.add(dim)
        ndim = len(per_index) + len(inner)
        windows = dict(zip(self.window, inner, strict=True))
        rest = iter(per_index)
        factors.operand = tuple((factor,) for factor in operand)
        factors.indices = (*((factor,) for factor in per_index), (components,))
        factors.result = tuple((windows[dim] if dim in windows else next(rest),) for dim in range(ndim))
        factors.per_index = [factor for i, factor in enumerate(per_index) if i not in paired]
        factors.looked_up = [dim for dim in self.collapsed if dim in self.mapped]
        return factors

    @property
    def dims(self) -> WindowDims:
        """The five fields, in order, as the arguments of another op of the family with the same dims."""
        return self.window, self.collapsed, self.batch, self.index_batch, self.mapped

    def columns(self, indices: Operand) -> list[Any]:
        """Return the components of the index vectors, each with a last dim of size 1."""
        last = indices.type.ndim - 1
        return [slice_along(indices, last, index, index + 1) for index in range(len(self.mapped))]

    def broadcast_per_index(self, x: Operand, shape: tuple[int, ...]) -> Any:
        """Broadcast one element per index vector, with a last dim of size 1, to the shape of the result."""
        return Broadcast(shape, tuple(self.index_dims_of(len(shape))))(Reshape(x.type.shape[:-1])(x))

    def in_bounds(self, shape: tuple[int, ...], sizes: Sequence[int], indices: Operand) -> Any:
        """Return whether each window is in bounds of an operand of this shape, with a trailing dim of size 1.

        None if `mapped` is empty, because all windows are then in bounds.
        """
        mask = None
        for column, dim in zip(self.columns(indices), self.mapped, strict=True):
            mask = both(mask, between(column, 0, shape[dim] - sizes[dim]))
        return mask

    def starts(self, indices: NumpyArray, ndim: int) -> list[NumpyArray]:
        """Return the start of each window along each dim of an operand of this rank, in numpy."""
        starts = [np.zeros(indices.shape[:-1], np.int64) for _ in range(ndim)]
        for index, dim in enumerate(self.mapped):
            starts[dim] = indices[..., index].astype(np.int64)
        for dim, at in zip(self.batch, self.index_batch, strict=True):
            shape = [1] * (indices.ndim - 1)
            shape[at] = indices.shape[at]
            starts[dim] = np.broadcast_to(np.arange(indices.shape[at]).reshape(shape), indices.shape[:-1])
        return starts

    def element_indices(self, starts: Sequence[NumpyArray], shape: tuple[int, ...]) -> list[NumpyArray]:
        """Return, for each dim of the operand, the index of every element of a result of this shape, in numpy."""
        index_dims = self.index_dims_of(len(shape))
        lead = [shape[dim] if dim in index_dims else 1 for dim in range(len(shape))]
        at = dict(zip(self.window_dims_of(len(starts)), self.window, strict=True))
        result = []
        for dim, start in enumerate(starts):
            index = start.reshape(lead)
            if dim in at:
                step = [1] * len(shape)
                step[at[dim]] = shape[at[dim]]
                index = index + np.arange(shape[at[dim]]).reshape(step)
            result.append(np.broadcast_to(index, shape))
        return result

    def has_one_window(self, indices: ArrayType) -> bool:
        """Return whether there is exactly one index vector."""
        return math.prod(indices.shape[:-1]) == 1

    def lower_starts(self, hlo: Hlo, x: ArrayType, indices: HloValue) -> list[Any]:
        """Emit the start of the only window along each dim of the operand, as scalars."""
        scalar = ArrayType((), indices.type.dtype)
        vector = hlo.op("stablehlo.reshape", (indices,), ArrayType((len(self.mapped),), scalar.dtype))
        starts = [hlo.constant(0, scalar)] * x.ndim
        for index, dim in enumerate(self.mapped):
            component = lower_slice(hlo, vector, 0, index, index + 1)
            starts[dim] = hlo.op("stablehlo.reshape", (component,), scalar)
        return starts

    def attributes(self, index_dim: int, names: Sequence[str]) -> str:
        """Return the dims as a StableHLO attribute; `names` are its names for gather or scatter."""
        parts = [f"{name} = [{', '.join(map(str, dims))}]" for name, dims in zip(names, self.dims, strict=True) if dims]
        return ", ".join([*parts, f"index_vector_dim = {index_dim}"])

    def batched(self, operand: bool, indices: bool) -> WindowDims:
        """Return the dims with one more dim in front of the operand, the indices or both, and of the result."""
        window = tuple(dim + 1 for dim in self.window)
        shift = 1 if operand else 0
        collapsed, batch, mapped = (
            tuple(d + shift for d in dims) for dims in (self.collapsed, self.batch, self.mapped)
        )
        index_batch = tuple(dim + 1 for dim in self.index_batch) if indices else self.index_batch
        if operand and indices:
            batch, index_batch = (0, *batch), (0, *index_batch)
        elif operand:
            window = (0, *window)
        return window, collapsed, batch, index_batch, mapped


class IndexedFactors:
    """The factors of a gather or scatter under construction. The factors of the operand's dims come first."""

    operand: tuple[tuple[int, ...], ...]
    indices: tuple[tuple[int, ...], ...]
    result: tuple[tuple[int, ...], ...]  # of the result of a gather, or the updates of a scatter
    per_index: list[int]  # the factors of the loops over the index vectors
    looked_up: list[int]  # indexed collapsed dims: a lookup in a sharded dim is a masked sum

    def __init__(self, sizes: list[int]):
        self.sizes = sizes
        self.need_replication: set[int] = set()

    def new(self, size: int, need_replication: bool = False) -> int:
        self.sizes.append(size)
        if need_replication:
            self.need_replication.add(len(self.sizes) - 1)
        return len(self.sizes) - 1


def clamp_index(column: Operand, limit: int) -> Any:
    """Clamp indices to the range from 0 to `limit`, inclusive."""
    low, high = (full(column.type.shape, bound, column.type.dtype) for bound in (0, limit))
    return Clamp()(low, column, high)


def between(column: Operand, first: int, last: int) -> Any:
    """Return whether each index is at least `first` and at most `last`."""
    index = Expr(column)
    return ((index >= first) & (index <= last)).array


def both(a: Operand | None, b: Operand) -> Any:
    """Return the logical AND of two masks. None is all true."""
    return b if a is None else And()(a, b)


def join_columns(columns: Sequence[Any], indices: Operand) -> Any:
    """Return the index vectors with these components; `indices` if there are no components."""
    if len(columns) > 1:
        return Concatenate(indices.type.ndim - 1)(*columns)
    return columns[0] if columns else indices


def additive_zero(type: ArrayType) -> Any:
    """Return the neutral element of a sum: -0.0, because 0.0 + -0.0 is 0.0 and -0.0 + -0.0 is -0.0."""
    zero: Any = complex(-0.0, -0.0) if type.dtype.kind == "c" else -0.0
    return full(type.shape, zero, type.dtype, type.weak)
