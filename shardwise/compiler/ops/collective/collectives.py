"""Ops in which a device sees others, or asks where it is. They live in local programs, over one device's pieces.

An axis tuple names the devices that take part: those that differ only along these axes, first axis major. Where there
are `groups`, of their numbers along the axes, each group is for itself, in its own order. `exchange` is the meaning of
such an op: pieces of all devices (in mesh order) in, pieces of all devices out.
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import reduce
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import integer_range, is_float
from shardwise.compiler.ir.op import Hlo, NumpyArray, Op, ignore_float_errors
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.select import lower_compare
from shardwise.compiler.ops.shape.movement import Reshape, i64_array_attribute, inverse_permutation, lower_permute
from shardwise.compiler.reduction import Reduction
from shardwise.compiler.shardings.mesh import AbstractMesh

Groups = tuple[tuple[int, ...], ...]  # all of one size; each number once


class Collective(Op):
    """`bytes_sent`: the bytes that each device sends, by the ring model."""

    def exchange(self, mesh: AbstractMesh, pieces: Sequence[NumpyArray]) -> list[NumpyArray]:
        raise self.missing_rule("exchange")

    def bytes_sent(self, operand: ArrayType, mesh: AbstractMesh) -> float:
        raise self.missing_rule("bytes_sent")


def _each_group(
    mesh: AbstractMesh, axes: tuple[str, ...], groups: Groups | None, pieces: Sequence[NumpyArray], join: Any
) -> list[NumpyArray]:
    """Apply `join(pieces of a group) -> piece of each member` to every group of devices along `axes`."""
    out: list[Any] = [None] * mesh.size
    for group in mesh.groups(axes, groups):
        for device, piece in zip(group, join([pieces[device] for device in group]), strict=True):
            out[device] = piece
    return out


def _reduced(reduction: Reduction, group: Sequence[NumpyArray]) -> NumpyArray:
    """One piece of all, one after the other: numpy's own sums start at zero, which -0.0 + 0.0 shows."""
    return reduce(reduction.ufunc, group).astype(group[0].dtype)


@final
@record
class AllReduce(Collective):
    """Every device gets the reduction of all pieces."""

    name = "all_reduce"
    axes: tuple[str, ...]
    reduction: Reduction
    groups: Groups | None = field(default=None, repr=False)

    def out_type(self, x: ArrayType) -> ArrayType:
        return _reducible(self, x)

    @ignore_float_errors
    def exchange(self, mesh: AbstractMesh, pieces: Sequence[NumpyArray]) -> list[NumpyArray]:
        return _each_group(
            mesh, self.axes, self.groups, pieces, lambda group: [_reduced(self.reduction, group)] * len(group)
        )

    def bytes_sent(self, operand: ArrayType, mesh: AbstractMesh) -> float:
        count = len(self.groups[0]) if self.groups else mesh.extent(self.axes)
        return 2 * operand.nbytes * (count - 1) / count

    def lower(self, hlo: Hlo, x: Any) -> Any:
        groups = f"replica_groups = {hlo.groups(self.axes, self.groups)}"

        def reduce(y: Any) -> Any:
            return hlo.op("stablehlo.all_reduce", (y,), y.type, groups, (hlo.reducer(self.reduction, y.type.dtype),))

        return _keeping_nan(hlo, self.reduction, x, reduce)


@final
@record
class AllGather(Collective):
    """Every device gets all pieces, joined along `dim`."""

    name = "all_gather"
    dim: int
    axes: tuple[str, ...]
    count: int
    groups: Groups | None = field(default=None, repr=False)

    def out_type(self, x: ArrayType) -> ArrayType:
        return _scaled(x, self.dim, self.count, 1)

    def exchange(self, mesh: AbstractMesh, pieces: Sequence[NumpyArray]) -> list[NumpyArray]:
        return _each_group(
            mesh, self.axes, self.groups, pieces, lambda group: [np.concatenate(group, self.dim)] * len(group)
        )

    def bytes_sent(self, operand: ArrayType, mesh: AbstractMesh) -> float:
        return operand.nbytes * (self.count - 1)

    def lower(self, hlo: Hlo, x: Any) -> Any:
        attributes = f"all_gather_dim = 0 : i64, replica_groups = {hlo.groups(self.axes, self.groups)}"
        if not self.dim:
            return hlo.op("stablehlo.all_gather", (x,), self.out_type(x.type), attributes)
        # Left to XLA, pieces are copied before they are sent, and after; as a stack they need one copy, after.
        piece = Reshape((1, *x.type.shape)).lower(hlo, x)
        stack = hlo.op("stablehlo.all_gather", (piece,), _scaled(piece.type, 0, self.count, 1), attributes)
        return _joined(hlo, stack, self.dim)


@final
@record
class ReduceScatter(Collective):
    """Device i of a group gets block i, along `dim`, of the reduction of all pieces."""

    name = "reduce_scatter"
    dim: int
    axes: tuple[str, ...]
    count: int
    reduction: Reduction
    groups: Groups | None = field(default=None, repr=False)

    def out_type(self, x: ArrayType) -> ArrayType:
        return _scaled(_reducible(self, x), self.dim, 1, self.count)

    @ignore_float_errors
    def exchange(self, mesh: AbstractMesh, pieces: Sequence[NumpyArray]) -> list[NumpyArray]:
        def join(group: list[NumpyArray]) -> list[NumpyArray]:
            return np.split(_reduced(self.reduction, group), self.count, self.dim)

        return _each_group(mesh, self.axes, self.groups, pieces, join)

    def bytes_sent(self, operand: ArrayType, mesh: AbstractMesh) -> float:
        return operand.nbytes * (self.count - 1) / self.count

    def lower(self, hlo: Hlo, x: Any) -> Any:
        attributes = f"scatter_dimension = 0 : i64, replica_groups = {hlo.groups(self.axes, self.groups)}"

        def reduce(y: Any) -> Any:
            reducer = hlo.reducer(self.reduction, y.type.dtype)
            return hlo.op("stablehlo.reduce_scatter", (y,), _scaled(y.type, 0, 1, self.count), attributes, (reducer,))

        return _keeping_nan(hlo, self.reduction, x, lambda y: _in_front(hlo, self.dim, y, reduce))


@final
@record
class AllToAll(Collective):
    """Device i of a group gets block i, along `split`, of every piece, joined along `join`."""

    name = "all_to_all"
    split: int
    join: int
    axes: tuple[str, ...]
    count: int
    groups: Groups | None = field(default=None, repr=False)

    def out_type(self, x: ArrayType) -> ArrayType:
        return _scaled(_scaled(x, self.split, 1, self.count), self.join, self.count, 1)

    def exchange(self, mesh: AbstractMesh, pieces: Sequence[NumpyArray]) -> list[NumpyArray]:
        def join(group: list[NumpyArray]) -> list[NumpyArray]:
            blocks = [np.split(piece, self.count, self.split) for piece in group]
            return [np.concatenate([row[i] for row in blocks], self.join) for i in range(self.count)]

        return _each_group(mesh, self.axes, self.groups, pieces, join)

    def bytes_sent(self, operand: ArrayType, mesh: AbstractMesh) -> float:
        return operand.nbytes * (self.count - 1) / self.count

    def lower(self, hlo: Hlo, x: Any) -> Any:
        block = _scaled(x.type, self.split, 1, self.count).shape
        if any(size != 1 for size in block[: self.split]):
            return self._exchanged(hlo, x, self.split, self.join, self.out_type(x.type), 1 in block)
        # Blocks that are contiguous are sent as they are. Others XLA cuts out.
        stack = Reshape((self.count, *block)).lower(hlo, x)
        return _joined(hlo, self._exchanged(hlo, stack, 0, 0, stack.type, True), self.join)

    def _exchanged(self, hlo: Hlo, x: Any, split: int, join: int, out: ArrayType, apart: bool) -> Any:
        if apart:
            # XLA cuts x into blocks itself. It shares them with equal slices in the program, whose memory order may
            # differ where a dim has size 1, and then refuses the exchange. Behind a barrier they are its own.
            x = hlo.op("stablehlo.optimization_barrier", (x,), x.type)
        attributes = (
            f"split_dimension = {split} : i64, concat_dimension = {join} : i64, "
            f"split_count = {self.count} : i64, replica_groups = {hlo.groups(self.axes, self.groups)}"
        )
        return hlo.op("stablehlo.all_to_all", (x,), out, attributes)


class CollectivePermute(Collective):
    """Pieces go from device to device, whole. Each sends and gets one at most; what gets none has zeros."""

    def pairs(self, mesh: AbstractMesh) -> NumpyArray:
        """(source, target) of every piece."""
        raise self.missing_rule("pairs")

    def out_type(self, x: ArrayType) -> ArrayType:
        return x

    def exchange(self, mesh: AbstractMesh, pieces: Sequence[NumpyArray]) -> list[NumpyArray]:
        sources = {target: source for source, target in self.pairs(mesh)}
        return [
            pieces[sources[device]] if device in sources else np.zeros_like(piece)
            for device, piece in enumerate(pieces)
        ]

    def bytes_sent(self, operand: ArrayType, mesh: AbstractMesh) -> float:
        return operand.nbytes

    def lower(self, hlo: Hlo, x: Any) -> Any:
        return hlo.op("stablehlo.collective_permute", (x,), x.type, f"source_target_pairs = {hlo.pairs(self)}")


@final
@record
class Permute(CollectivePermute):
    """Pieces numbered along `before` move so that they are numbered along `after`. Both cut into equally many."""

    name = "permute"
    before: tuple[str, ...]
    after: tuple[str, ...]

    def pairs(self, mesh: AbstractMesh) -> NumpyArray:
        """A target takes its piece from a source of its own, and from where it is itself along axes that are not named,
        over which the pieces may differ: those of a manual region."""
        others = tuple(axis for axis in mesh.axis_names if axis not in (*self.before, *self.after))

        def ranks(axes: tuple[str, ...], free: tuple[str, ...]) -> NumpyArray:
            return mesh.coordinates((*axes, *(axis for axis in free if axis not in axes), *others))

        source_of = np.empty(mesh.size, np.int64)
        source_of[ranks(self.before, self.after)] = np.arange(mesh.size)
        return np.stack([source_of[ranks(self.after, self.before)], np.arange(mesh.size)], 1)


@final
@record
class CoarseningPermute(CollectivePermute):
    """Pieces numbered along `old` go to where they are wanted along `new`, which cuts into fewer and larger ones.

    Number n along `new` is `parts` of them; of these, the device at (m, n) gets number m modulo `parts`.
    """

    name = "coarsening_permute"
    old: tuple[str, ...]
    new: tuple[str, ...]
    parts: int

    @property
    def axes(self) -> tuple[str, ...]:
        return (*self.old, *self.new)

    def pairs(self, mesh: AbstractMesh) -> NumpyArray:
        """Each piece is on as many devices as want it, and each of these sends it once."""
        groups, devices = mesh.groups(self.axes), mesh.extent(self.new)
        m, n = np.divmod(np.arange(groups.shape[1]), devices)
        sources = (n * self.parts + m % self.parts) * devices + m // self.parts
        return np.stack([groups[:, sources].reshape(-1), groups.reshape(-1)], 1)


@final
@record
class PPermute(CollectivePermute):
    """For each pair (a, b), device b of a group gets the piece of device a. One that nobody sends to gets zeros."""

    name = "ppermute"
    axes: tuple[str, ...]
    to: tuple[tuple[int, int], ...]

    def pairs(self, mesh: AbstractMesh) -> NumpyArray:
        return np.array([(group[a], group[b]) for group in mesh.groups(self.axes) for a, b in self.to]).reshape(-1, 2)

    def bytes_sent(self, operand: ArrayType, mesh: AbstractMesh) -> float:
        return operand.nbytes if any(a != b for a, b in self.to) else 0

    def lower(self, hlo: Hlo, x: Any) -> Any:
        return super().lower(hlo, x) if self.to else hlo.constant(0, x.type.strong())


@final
@record
class DeviceIndex(Collective):
    """This device's position along `axes`: an i32 scalar."""

    name = "device_index"
    axes: tuple[str, ...]

    def out_type(self) -> ArrayType:
        return ArrayType((), np.int32)

    def exchange(self, mesh: AbstractMesh, pieces: Sequence[NumpyArray]) -> list[NumpyArray]:
        return [np.asarray(position, np.int32) for position in mesh.coordinates(self.axes)]

    def bytes_sent(self, operand: ArrayType, mesh: AbstractMesh) -> float:
        return 0

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        return hlo.device_index(self.axes)


@final
@record
class LocalSlice(Collective):
    """Of `count` equal blocks along `dim`, the one numbered by this device's position along `axes`. Nothing moves.

    `of` is the size that `dim` would have with zeros at its end, where it is not its own.
    """

    name = "local_slice"
    dim: int
    axes: tuple[str, ...]
    count: int
    of: int | None = field(default=None, repr=False)

    def out_type(self, x: ArrayType) -> ArrayType:
        return _scaled(x if self.of is None else PadOrTrim(self.dim, self.of).out_type(x), self.dim, 1, self.count)

    def exchange(self, mesh: AbstractMesh, pieces: Sequence[NumpyArray]) -> list[NumpyArray]:
        positions = mesh.coordinates(self.axes)
        wholes = pieces if self.of is None else PadOrTrim(self.dim, self.of).exchange(mesh, pieces)
        return [
            np.split(whole, self.count, self.dim)[position] for whole, position in zip(wholes, positions, strict=True)
        ]

    def bytes_sent(self, operand: ArrayType, mesh: AbstractMesh) -> float:
        return 0

    def lower(self, hlo: Hlo, x: Any) -> Any:
        out, scalar = self.out_type(x.type), ArrayType((), np.int32)
        size, block, position = x.type.shape[self.dim], out.shape[self.dim], hlo.device_index(self.axes)
        filled = min(-(-size // block), self.count) if block else self.count  # blocks that are not zeros alone
        if filled < self.count:
            # One block of zeros serves all: an array that is small beside the whole stays small.
            position = hlo.op("stablehlo.minimum", (position, hlo.constant(filled, scalar)), scalar)
            filled += 1
        if filled * block != size:
            x = PadOrTrim(self.dim, filled * block).lower(hlo, x)
        start = hlo.op("stablehlo.multiply", (position, hlo.constant(block, scalar)), scalar)
        starts = [start if dim == self.dim else hlo.constant(0, scalar) for dim in range(out.ndim)]
        return hlo.op("stablehlo.dynamic_slice", (x, *starts), out, f"slice_sizes = {i64_array_attribute(out.shape)}")


@final
@record
class ToPartial(Collective):
    """The piece, on the device at position 0 along `axes`; zeros on the others: a whole value as a partial sum."""

    name = "to_partial"
    axes: tuple[str, ...]

    def out_type(self, x: ArrayType) -> ArrayType:
        return x

    def exchange(self, mesh: AbstractMesh, pieces: Sequence[NumpyArray]) -> list[NumpyArray]:
        positions = mesh.coordinates(self.axes)
        return [np.zeros_like(piece) if at else piece for piece, at in zip(pieces, positions, strict=True)]

    def bytes_sent(self, operand: ArrayType, mesh: AbstractMesh) -> float:
        return 0

    def lower(self, hlo: Hlo, x: Any) -> Any:
        is_first = lower_compare(hlo, "EQ", hlo.device_index(self.axes), hlo.constant(0, ArrayType((), np.int32)))
        # A scalar predicate chooses whole operands.
        return hlo.op("stablehlo.select", (is_first, x, hlo.constant(0, x.type.strong())), x.type)


@final
@record
class PadOrTrim(Collective):
    """Dim `dim` of the piece grows to `size` by zeros at its end, or is cut off there. Nothing moves."""

    name = "pad_or_trim"
    dim: int
    size: int

    def out_type(self, x: ArrayType) -> ArrayType:
        return x.with_shape((*x.shape[: self.dim], self.size, *x.shape[self.dim + 1 :]))

    def exchange(self, mesh: AbstractMesh, pieces: Sequence[NumpyArray]) -> list[NumpyArray]:
        grow = [(0, 0)] * pieces[0].ndim
        grow[self.dim] = (0, max(0, self.size - pieces[0].shape[self.dim]))
        return [np.take(np.pad(piece, grow), range(self.size), self.dim) for piece in pieces]

    def bytes_sent(self, operand: ArrayType, mesh: AbstractMesh) -> float:
        return 0

    def lower(self, hlo: Hlo, x: Any) -> Any:
        out = self.out_type(x.type)
        edge = [0] * out.ndim
        low, step = i64_array_attribute(edge), i64_array_attribute([1] * out.ndim)
        if self.size < x.type.shape[self.dim]:
            attributes = f"start_indices = {low}, limit_indices = {i64_array_attribute(out.shape)}, strides = {step}"
            return hlo.op("stablehlo.slice", (x,), out, attributes)
        edge[self.dim] = self.size - x.type.shape[self.dim]
        attributes = (
            f"edge_padding_low = {low}, edge_padding_high = {i64_array_attribute(edge)}, interior_padding = {low}"
        )
        return hlo.op("stablehlo.pad", (x, hlo.constant(0, ArrayType((), out.dtype))), out, attributes)


def _reducible(op: AllReduce | ReduceScatter, x: ArrayType) -> ArrayType:
    if not op.reduction.has_collective:
        raise TypeError(f"{op.name}: there is no collective for the reduction {op.reduction}")
    if x.dtype.kind == "c" and op.reduction.selects:
        raise TypeError(f"{op.name}: complex numbers have no {op.reduction}: {x}")
    return x


def _joined(hlo: Hlo, stack: Any, dim: int) -> Any:
    """The pieces along the first dim, one after the other along dim `dim` of the rest."""
    count, *piece = stack.type.shape
    order = (*range(1, dim + 1), 0, *range(dim + 1, len(piece) + 1))
    together = (*piece[:dim], count * piece[dim], *piece[dim + 1 :])
    return Reshape(together).lower(hlo, lower_permute(hlo, stack, order))


def _in_front(hlo: Hlo, dim: int, x: Any, exchange: Callable[[Any], Any]) -> Any:
    """`exchange` of `x` with `dim` in front, and then where it was. Pieces are contiguous there, as XLA needs them:
    written out, the ways there and back become one with what the program does before and after."""
    order = (dim, *(d for d in range(x.type.ndim) if d != dim))
    return lower_permute(hlo, exchange(lower_permute(hlo, x, order)), inverse_permutation(order))


def _keeping_nan(hlo: Hlo, reduction: Reduction, x: Any, reduce: Callable[[Any], Any]) -> Any:
    """`reduce` of `x`. A maximum of floats is taken of integers in the same order, NaN at the end that wins: devices
    that compare floats drop NaN, or keep it on some platforms only."""
    if not reduction.selects or not is_float(x.type.dtype):
        return reduce(x)
    dtype, integer = (np.float64, np.int64) if x.type.dtype == np.float64 else (np.float32, np.int32)
    low, high = integer_range(np.dtype(integer))

    def mirrored(bits: Any) -> Any:
        """Negative floats count downwards by their bits; mirrored, upwards. Twice is nothing."""
        negative = lower_compare(hlo, "LT", bits, hlo.constant(0, bits.type))
        flipped = hlo.op("stablehlo.xor", (bits, hlo.constant(high, bits.type)), bits.type)
        return hlo.op("stablehlo.select", (negative, flipped, bits), bits.type)

    wide = hlo.op("stablehlo.convert", (x,), x.type.with_dtype(dtype))
    order = mirrored(hlo.op("stablehlo.bitcast_convert", (wide,), x.type.with_dtype(integer)))
    is_nan = lower_compare(hlo, "NE", wide, wide)
    winner = hlo.constant(high if reduction.selects == "GT" else low, order.type)
    found = mirrored(reduce(hlo.op("stablehlo.select", (is_nan, winner, order), order.type)))
    wide = hlo.op("stablehlo.bitcast_convert", (found,), found.type.with_dtype(dtype))
    return hlo.op("stablehlo.convert", (wide,), found.type.with_dtype(x.type.dtype))


def _scaled(x: ArrayType, dim: int, times: int, by: int) -> ArrayType:
    if x.shape[dim] % by:
        raise TypeError(f"dim {dim} of {x} does not divide into {by} blocks")
    return x.with_shape((*x.shape[:dim], x.shape[dim] * times // by, *x.shape[dim + 1 :]))
