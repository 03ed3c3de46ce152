"""What gather and scatter share: index vectors that say where windows of an array begin.

Dims of the array, the operand, are of three kinds: those of `batch` run along with dims of the indices; of those of
`collapsed` a window has one element, and the result lacks them; the others are the window's own, in order. Of the
result (of a scatter: of the updates) the dims in `window` are these; the others are the indices', in order.

    x[i]  with x of 10 × 4, i of 7      collapsed=(0,) mapped=(0,) window=(1,): for each of 7 places a row of 4
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.compiler.ir.op import NumpyArray, Op
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.min_max import Clamp
from shardwise.compiler.ops.elementwise.select import Compare
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along

Ints = tuple[int, ...]
WindowDims = tuple[Ints, Ints, Ints, Ints, Ints]  # the fields of this family
INDICES = (np.dtype(np.int32), np.dtype(np.int64))


@record
class Indexed(Op):
    """Which dims belong together; see this module's head. Component i of an index vector is for dim `mapped[i]`."""

    window: tuple[int, ...]
    collapsed: tuple[int, ...]
    batch: tuple[int, ...]
    index_batch: tuple[int, ...]
    mapped: tuple[int, ...]

    def kept(self, ndim: int) -> list[int]:
        """The dims of an operand of this rank that are the window's own."""
        return [dim for dim in range(ndim) if dim not in self.collapsed and dim not in self.batch]

    def places(self, ndim: int) -> list[int]:
        """The dims of a result of this rank that are the indices'."""
        return [dim for dim in range(ndim) if dim not in self.window]

    def check(self, x: ArrayType, indices: ArrayType, sizes: Sequence[int]) -> None:
        """Whether windows of these sizes can be found in `x`."""
        if indices.dtype not in INDICES or not indices.ndim:
            raise TypeError(f"{self.name}: needs index vectors of i32 or i64 along the last dim, not {indices}")
        if indices.shape[-1] != len(self.mapped):
            raise TypeError(f"{self.name}: {indices} holds vectors of {indices.shape[-1]}, for dims {self.mapped}")
        for what, dims in (("collapsed", self.collapsed), ("batch", self.batch), ("mapped", self.mapped)):
            if len(set(dims)) != len(dims) or not all(0 <= dim < x.ndim for dim in dims):
                raise TypeError(f"{self.name}: {what} dims {dims} are not different dims of {x}")
        if overlap := set(self.batch) & {*self.collapsed, *self.mapped}:
            raise TypeError(f"{self.name}: batch dims {sorted(overlap)} cannot be collapsed or mapped too")
        if len(sizes) != x.ndim or not all(0 <= size <= whole for size, whole in zip(sizes, x.shape, strict=True)):
            raise TypeError(f"{self.name}: windows of {tuple(sizes)} do not fit {x}")
        if any(sizes[dim] != 1 for dim in (*self.collapsed, *self.batch) if x.shape[dim]):
            raise TypeError(f"{self.name}: windows of {tuple(sizes)} have more than one element of a collapsed dim")
        if len(self.batch) != len(self.index_batch) or len(set(self.index_batch)) != len(self.index_batch):
            raise TypeError(f"{self.name}: batch dims {self.batch} and {self.index_batch} are not pairs")
        for dim, at in zip(self.batch, self.index_batch, strict=True):
            if not 0 <= at < indices.ndim - 1 or indices.shape[at] != x.shape[dim]:
                raise TypeError(f"{self.name}: dim {dim} of {x} does not run along with dim {at} of {indices}")

    def check_window(self, ndim: int) -> None:
        """Whether the window's dims can be those of a result of this rank."""
        if list(self.window) != sorted(set(self.window)) or not all(0 <= dim < ndim for dim in self.window):
            raise TypeError(f"{self.name}: window dims {self.window} must ascend, and be dims of rank {ndim}")

    def factors_of(self, x: ArrayType, indices: ArrayType, sizes: Sequence[int]) -> "Factors":
        """How the dims hang together, for a gather and its scatter alike."""
        found = Factors(list(x.shape))
        operand = list(range(x.ndim))
        paired = dict(zip(self.index_batch, self.batch, strict=True))
        places = [paired[i] if i in paired else found.new(size) for i, size in enumerate(indices.shape[:-1])]
        components = found.new(indices.shape[-1], whole=True)
        found.whole.update(dim for dim in self.collapsed if dim not in self.mapped)
        inner = []
        for dim in self.kept(x.ndim):
            passes = sizes[dim] == x.shape[dim]
            inner.append(dim if passes else found.new(sizes[dim], whole=True))
            if not passes:
                found.whole.add(dim)
        ndim = len(places) + len(inner)
        windows = dict(zip(self.window, inner, strict=True))
        rest = iter(places)
        found.operand = tuple((factor,) for factor in operand)
        found.indices = (*((factor,) for factor in places), (components,))
        found.result = tuple((windows[dim] if dim in windows else next(rest),) for dim in range(ndim))
        found.places = [factor for i, factor in enumerate(places) if i not in paired]
        found.looked_up = [dim for dim in self.collapsed if dim in self.mapped]
        return found

    @property
    def dims(self) -> WindowDims:
        """The fields of this family."""
        return self.window, self.collapsed, self.batch, self.index_batch, self.mapped

    def columns(self, indices: Any) -> list[Any]:
        """The components of the index vectors, each with a last dim of 1."""
        last = indices.type.ndim - 1
        return [slice_along(indices, last, number, number + 1) for number in range(len(self.mapped))]

    def spread(self, x: Any, shape: tuple[int, ...]) -> Any:
        """What is known for each index vector, with a last dim of 1, repeated to the shape of the result."""
        return Broadcast(shape, tuple(self.places(len(shape))))(Reshape(x.type.shape[:-1])(x))

    def inside(self, whole: tuple[int, ...], sizes: Sequence[int], indices: Any) -> Any:
        """Whether each window lies inside of an operand of this shape, with a last dim of 1; None where all do."""
        found = None
        for column, dim in zip(self.columns(indices), self.mapped, strict=True):
            found = both(found, between(column, 0, whole[dim] - sizes[dim]))
        return found

    def starts(self, indices: NumpyArray, ndim: int) -> list[NumpyArray]:
        """Where windows begin along each dim of an operand of this rank, in numpy."""
        found = [np.zeros(indices.shape[:-1], np.int64) for _ in range(ndim)]
        for number, dim in enumerate(self.mapped):
            found[dim] = indices[..., number].astype(np.int64)
        for dim, at in zip(self.batch, self.index_batch, strict=True):
            shape = [1] * (indices.ndim - 1)
            shape[at] = indices.shape[at]
            found[dim] = np.broadcast_to(np.arange(indices.shape[at]).reshape(shape), indices.shape[:-1])
        return found

    def reached(self, starts: Sequence[NumpyArray], shape: tuple[int, ...]) -> list[NumpyArray]:
        """For each dim of the operand, the index of each element of a result of this shape, in numpy."""
        places = self.places(len(shape))
        lead = [shape[dim] if dim in places else 1 for dim in range(len(shape))]
        at = dict(zip(self.kept(len(starts)), self.window, strict=True))
        found = []
        for dim, start in enumerate(starts):
            index = start.reshape(lead)
            if dim in at:
                step = [1] * len(shape)
                step[at[dim]] = shape[at[dim]]
                index = index + np.arange(shape[at[dim]]).reshape(step)
            found.append(np.broadcast_to(index, shape))
        return found

    def attributes(self, index_dim: int, names: Sequence[str]) -> str:
        """The dims as StableHLO writes them, under its names for gather or scatter."""
        parts = [f"{name} = [{', '.join(map(str, dims))}]" for name, dims in zip(names, self.dims, strict=True) if dims]
        return ", ".join([*parts, f"index_vector_dim = {index_dim}"])

    def batched(self, operand: bool, indices: bool) -> WindowDims:
        """The dims where the operand, the indices, or both have one more, in front; so has the result."""
        window = tuple(dim + 1 for dim in self.window)
        up = 1 if operand else 0
        collapsed, batch, mapped = (tuple(d + up for d in dims) for dims in (self.collapsed, self.batch, self.mapped))
        index_batch = tuple(dim + 1 for dim in self.index_batch) if indices else self.index_batch
        if operand and indices:
            batch, index_batch = (0, *batch), (0, *index_batch)
        elif operand:
            window = (0, *window)
        return window, collapsed, batch, index_batch, mapped


class Factors:
    """The factors of a gather or scatter, while they are numbered: those of the operand's dims come first."""

    operand: tuple[tuple[int, ...], ...]
    indices: tuple[tuple[int, ...], ...]
    result: tuple[tuple[int, ...], ...]  # of a gather; the updates of a scatter
    places: list[int]  # along which there are many places
    looked_up: list[int]  # along which a place is found

    def __init__(self, sizes: list[int]):
        self.sizes = sizes
        self.whole: set[int] = set()

    def new(self, size: int, whole: bool = False) -> int:
        self.sizes.append(size)
        if whole:
            self.whole.add(len(self.sizes) - 1)
        return len(self.sizes) - 1


def clamped(column: Any, limit: int) -> Any:
    """Indices, but no less than 0 and no more than `limit`."""
    low, high = (full(column.type.shape, bound, column.type.dtype) for bound in (0, limit))
    return Clamp()(low, column, high)


def between(column: Any, first: int, last: int) -> Any:
    """Whether each index is at least `first` and at most `last`."""
    low, high = (full(column.type.shape, bound, column.type.dtype) for bound in (first, last))
    return And()(Compare("GE")(column, low), Compare("LE")(column, high))


def both(a: Any, b: Any) -> Any:
    """Whether both hold, of which None always does."""
    return b if a is None else And()(a, b)


def joined(columns: Sequence[Any], indices: Any) -> Any:
    """Index vectors of these components; `indices`, where there are none."""
    if len(columns) > 1:
        return Concatenate(indices.type.ndim - 1)(*columns)
    return columns[0] if columns else indices


def nothing(type: ArrayType) -> Any:
    """What adds nothing to any number: to -0.0, a zero would."""
    zero: Any = complex(-0.0, -0.0) if type.dtype.kind == "c" else -0.0
    return full(type.shape, zero, type.dtype, type.weak)
