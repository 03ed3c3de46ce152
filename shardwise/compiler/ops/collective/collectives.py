"""Collectives between devices, and ops that depend on the position of the device. They occur in local programs.

Devices that differ only in their positions along `axes` communicate; the first axis is major. `groups` (JAX:
axis_index_groups) are lists of positions along the axes; the devices of each group exchange data, in the group's order.
`exchange` is the numpy reference of a collective: it maps the operand's shards on all devices, in mesh order, to the
result's shards.

Adjacent collectives of one kind with the same `launch` are sent together: they become one op of XLA with several
operands. The schedule (`compiler/schedule`) chooses the launches.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import field
from functools import reduce
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType, integer_range, is_float, is_inexact
from shardwise.compiler.ir.fusion import Fusion
from shardwise.compiler.ir.op import (
    XLA_GPU_PLATFORMS,
    Hlo,
    HloValue,
    NumpyArray,
    Op,
    ProgramRunner,
    Shards,
    ignore_float_errors,
)
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.select import lower_compare
from shardwise.compiler.ops.shape.movement import Reshape, i64_array_attribute, inverse_permutation, lower_permute
from shardwise.compiler.reduction import MAX, SUM, Reduction
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.traffic import (
    NOTHING_SENT,
    Traffic,
    all_gather,
    all_reduce,
    all_to_all,
    one_hop,
    reduce_scatter,
)

Groups = tuple[tuple[int, ...], ...]  # each position occurs once; only all-reduces accept groups of different sizes


class Collective(Op):
    """The base class of collectives."""

    lowers_narrow = False

    @property
    def resized_dim(self) -> int | None:
        """The dim whose padded size may change; None if the op keeps the padding."""
        return None

    @property
    def moved_dims(self) -> tuple[int, ...] | None:
        """The dims along which elements change their index. The op can be applied to parts of its operand along others.

        None if it cannot be applied to parts.
        """
        return None

    def run_on_shards(self, mesh: AbstractMesh, operands: list[Shards], run: ProgramRunner) -> list[Shards]:
        exchanged: Any = self.exchange(mesh, *(operands or [[]]))
        return [exchanged] if self.single else exchanged

    def exchange(self, mesh: AbstractMesh, shards: Sequence[NumpyArray]) -> list[NumpyArray]:
        """Return the shards of the result on all devices, given the shards of the operand."""
        raise self.missing_rule("exchange")

    def traffic(self, operand: ArrayType, mesh: AbstractMesh) -> Traffic:
        """Return the bytes and hops of each algorithm of the collective; `operand` is the type of a device's shard."""
        raise self.missing_rule("traffic")

    def launch_key(self, operand: ArrayType) -> Hashable:
        """Return what collectives that share a launch have in common; None if this one cannot share a launch."""
        return None

    def lower_launch(self, hlo: Hlo, operands: Sequence[HloValue]) -> list[HloValue]:
        """Append one launch that exchanges operands that `lower_operand` returned."""
        raise self.missing_rule("lower_launch")

    def lower_operand(self, hlo: Hlo, x: HloValue) -> Any:
        """Append the ops before the launch, and return what is sent."""
        return x

    def lower_received(self, hlo: Hlo, received: HloValue, operand: ArrayType) -> Any:
        """Append the ops after the launch, and return the result; `operand` is the type of the operand."""
        return received

    def bytes_sent(self, operand: ArrayType, mesh: AbstractMesh) -> float:
        """Return the bytes that each device sends around a ring."""
        traffic = self.traffic(operand, mesh)
        return traffic[0].bytes_sent if traffic else 0

    @property
    def communicates_along(self) -> tuple[str, ...]:
        return self.axes  # type: ignore[attr-defined,no-any-return]


class PositionOp(Collective):
    """The base class of ops that depend on the position of the device and do not communicate."""

    def traffic(self, operand: ArrayType, mesh: AbstractMesh) -> Traffic:
        return NOTHING_SENT


def _exchange_in_groups(
    mesh: AbstractMesh,
    axes: tuple[str, ...],
    groups: Groups | None,
    shards: Sequence[NumpyArray],
    exchange: Callable[[list[NumpyArray]], Sequence[NumpyArray]],
) -> list[NumpyArray]:
    """Apply `exchange`, which maps a list of shards to a list of shards, to every group of devices along `axes`."""
    out: list[Any] = [None] * mesh.device_count
    for row in mesh.groups(axes, groups):
        group = row[row >= 0]
        for device, shard in zip(group, exchange([shards[device] for device in group]), strict=True):
            out[device] = shard
    return out


def _reduce_shards(reduction: Reduction, group: Sequence[NumpyArray]) -> NumpyArray:
    """Reduce shards pairwise, in order. numpy's sum starts at 0.0 and loses the sign of -0.0."""
    return reduce(reduction.ufunc, group).astype(group[0].dtype)


@final
@record
class AllReduce(Collective):
    """All-reduce: every device receives the reduction of all shards."""

    name = "all_reduce"
    reduces_across_devices = removed_on_one_device = True
    axes: tuple[str, ...]
    reduction: Reduction
    groups: Groups | None = field(default=None, repr=False)
    launch: int | None = field(default=None, repr=False)

    @property
    def moved_dims(self) -> tuple[int, ...]:
        return ()

    def out_type(self, x: ArrayType) -> ArrayType:
        return _check_reducible(self, x)

    @ignore_float_errors
    def exchange(self, mesh: AbstractMesh, shards: Sequence[NumpyArray]) -> list[NumpyArray]:
        return _exchange_in_groups(
            mesh, self.axes, self.groups, shards, lambda group: [_reduce_shards(self.reduction, group)] * len(group)
        )

    def traffic(self, operand: ArrayType, mesh: AbstractMesh) -> Traffic:
        count = max(map(len, self.groups)) if self.groups else mesh.extent(self.axes)
        return all_reduce(operand.nbytes, count)

    def launch_key(self, operand: ArrayType) -> Hashable:
        # A minimum or maximum of floats has ops around it, and StableHLO reduces operands of one dtype.
        is_plain = bool(operand.size) and not self.reduction.selects
        return (self.name, self.axes, self.reduction, self.groups, operand.dtype) if is_plain else None

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        return _lower_propagating_nan(hlo, self.reduction, x, lambda y: self.lower_launch(hlo, (y,))[0])

    def lower_launch(self, hlo: Hlo, operands: Sequence[HloValue]) -> list[HloValue]:
        groups = hlo.group_attributes(self.axes, self.groups)
        regions = (hlo.reducer(self.reduction, operands[0].type.dtype),)
        if hlo.in_loop and hlo.platform in XLA_GPU_PLATFORMS:
            # XLA's GPU compiler aborts the process at an all-reduce with several operands in a loop (jaxlib 0.11.2).
            return _merged_by_xla(hlo, "stablehlo.all_reduce", operands, [x.type for x in operands], groups, regions)
        return hlo.many("stablehlo.all_reduce", operands, [x.type for x in operands], groups, regions)


@final
@record
class AllGather(Collective):
    """All-gather: every device receives all shards, concatenated along `dim`."""

    name = "all_gather"
    removed_on_one_device = True
    dim: int
    axes: tuple[str, ...]
    count: int
    groups: Groups | None = field(default=None, repr=False)
    launch: int | None = field(default=None, repr=False)

    @property
    def moved_dims(self) -> tuple[int, ...]:
        return (self.dim,)

    def out_type(self, x: ArrayType) -> ArrayType:
        return _scale_dim(x, self.dim, self.count, 1)

    def exchange(self, mesh: AbstractMesh, shards: Sequence[NumpyArray]) -> list[NumpyArray]:
        return _exchange_in_groups(
            mesh, self.axes, self.groups, shards, lambda group: [np.concatenate(group, self.dim)] * len(group)
        )

    def traffic(self, operand: ArrayType, mesh: AbstractMesh) -> Traffic:
        return all_gather(operand.nbytes, self.count)

    def launch_key(self, operand: ArrayType) -> Hashable:
        return (self.name, self.axes, self.count, self.groups) if operand.size else None

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        (received,) = self.lower_launch(hlo, (self.lower_operand(hlo, x),))
        return self.lower_received(hlo, received, x.type)

    def lower_operand(self, hlo: Hlo, x: HloValue) -> Any:
        # XLA's all-gather along a non-leading dim copies shards before and after sending. Gathering along a new leading
        # dim needs only the copy afterwards.
        return Reshape((1, *x.type.shape)).lower(hlo, x) if self.dim else x

    def lower_launch(self, hlo: Hlo, operands: Sequence[HloValue]) -> list[HloValue]:
        attributes = f"all_gather_dim = 0 : i64, {hlo.group_attributes(self.axes, self.groups)}"
        out = [_scale_dim(x.type, 0, self.count, 1) for x in operands]
        if len(operands) == 1:
            return hlo.many("stablehlo.all_gather", operands, out, attributes)
        # XLA's CPU backend gathers bf16 as f32, and of several operands it then forgets that shards must be contiguous
        # in memory: transposed ones are wrong. A 1-D array has only one memory layout.
        flat = [Reshape((x.type.size,)).lower(hlo, x) for x in operands]
        flat_out = [_scale_dim(x.type, 0, self.count, 1) for x in flat]
        received = hlo.many("stablehlo.all_gather", flat, flat_out, attributes)
        return [Reshape(type.shape).lower(hlo, x) for type, x in zip(out, received, strict=True)]

    def lower_received(self, hlo: Hlo, received: HloValue, operand: ArrayType) -> Any:
        return lower_unstack(hlo, received, self.dim) if self.dim else received


@final
@record
class ReduceScatter(Collective):
    """Reduce-scatter: device i of a group receives block i, along `dim`, of the reduction of all shards."""

    name = "reduce_scatter"
    reduces_across_devices = removed_on_one_device = True
    dim: int
    axes: tuple[str, ...]
    count: int
    reduction: Reduction
    groups: Groups | None = field(default=None, repr=False)
    launch: int | None = field(default=None, repr=False)

    @property
    def moved_dims(self) -> tuple[int, ...]:
        return (self.dim,)

    def out_type(self, x: ArrayType) -> ArrayType:
        return _scale_dim(_check_reducible(self, x), self.dim, 1, self.count)

    @ignore_float_errors
    def exchange(self, mesh: AbstractMesh, shards: Sequence[NumpyArray]) -> list[NumpyArray]:
        def scatter(group: list[NumpyArray]) -> list[NumpyArray]:
            return np.split(_reduce_shards(self.reduction, group), self.count, self.dim)

        return _exchange_in_groups(mesh, self.axes, self.groups, shards, scatter)

    def traffic(self, operand: ArrayType, mesh: AbstractMesh) -> Traffic:
        return reduce_scatter(operand.nbytes, self.count)

    def launch_key(self, operand: ArrayType) -> Hashable:
        # A minimum or maximum of floats has ops around it, and XLA reduces operands of one dtype in one launch.
        if not operand.size or self.reduction.selects:
            return None
        return (self.name, self.axes, self.count, self.reduction, self.groups, operand.dtype)

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        def scatter(y: HloValue) -> Any:
            (scattered,) = self.lower_launch(hlo, (self.lower_operand(hlo, y),))
            return self.lower_received(hlo, scattered, y.type)

        return _lower_propagating_nan(hlo, self.reduction, x, scatter)

    def lower_operand(self, hlo: Hlo, x: HloValue) -> Any:
        return lower_permute(hlo, x, _dim_in_front(self.dim, x.type.ndim))

    def lower_launch(self, hlo: Hlo, operands: Sequence[HloValue]) -> list[HloValue]:
        # StableHLO's reduce-scatter has one operand.
        attributes = f"scatter_dimension = 0 : i64, {hlo.group_attributes(self.axes, self.groups)}"
        regions = (hlo.reducer(self.reduction, operands[0].type.dtype),)
        out = [_scale_dim(x.type, 0, 1, self.count) for x in operands]
        return _merged_by_xla(hlo, "stablehlo.reduce_scatter", operands, out, attributes, regions)

    def lower_received(self, hlo: Hlo, received: HloValue, operand: ArrayType) -> Any:
        return lower_permute(hlo, received, inverse_permutation(_dim_in_front(self.dim, operand.ndim)))


@final
@record
class AllToAll(Collective):
    """All-to-all: device i of a group receives block i, along `split`, of every shard, concatenated along `join`."""

    name = "all_to_all"
    removed_on_one_device = True
    split: int
    join: int
    axes: tuple[str, ...]
    count: int
    groups: Groups | None = field(default=None, repr=False)

    @property
    def moved_dims(self) -> tuple[int, ...]:
        return (self.split, self.join)

    def out_type(self, x: ArrayType) -> ArrayType:
        return _scale_dim(_scale_dim(x, self.split, 1, self.count), self.join, self.count, 1)

    def exchange(self, mesh: AbstractMesh, shards: Sequence[NumpyArray]) -> list[NumpyArray]:
        def exchange(group: list[NumpyArray]) -> list[NumpyArray]:
            blocks = [np.split(shard, self.count, self.split) for shard in group]
            return [np.concatenate([row[i] for row in blocks], self.join) for i in range(self.count)]

        return _exchange_in_groups(mesh, self.axes, self.groups, shards, exchange)

    def traffic(self, operand: ArrayType, mesh: AbstractMesh) -> Traffic:
        return all_to_all(operand.nbytes, self.count)

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        # XLA's CPU backend slices the operand into blocks and concatenates the received blocks, with one kernel each.
        # Measured with blocks of 32×32 elements, 1-D kernels compile two to four times as fast as 2-D kernels. Also, a
        # 1-D array has only one memory layout. XLA rejects blocks with different layouts, which CSE could cause by
        # sharing slices with equal slices of the program.
        block = _scale_dim(x.type, self.split, 1, self.count).shape
        stack = lower_stack(hlo, x, self.split, self.count)
        elements = Reshape((x.type.size,)).lower(hlo, stack)
        attributes = (
            "split_dimension = 0 : i64, concat_dimension = 0 : i64, "
            f"split_count = {self.count} : i64, {hlo.group_attributes(self.axes, self.groups, has_global_ids=False)}"
        )
        exchanged = hlo.op("stablehlo.all_to_all", (elements,), elements.type, attributes)
        return lower_unstack(hlo, Reshape((self.count, *block)).lower(hlo, exchanged), self.join)


class CollectivePermute(Collective):
    """The base class of collective-permutes. A device sends its shard to at most one device, and receives at most one.

    A device that receives none has zeros.
    """

    @property
    def moved_dims(self) -> tuple[int, ...]:
        return ()

    def pairs(self, mesh: AbstractMesh) -> NumpyArray:
        """Return the (source, target) pairs of all devices."""
        raise self.missing_rule("pairs")

    def out_type(self, x: ArrayType) -> ArrayType:
        return x

    def exchange(self, mesh: AbstractMesh, shards: Sequence[NumpyArray]) -> list[NumpyArray]:
        sources = {target: source for source, target in self.pairs(mesh)}
        return [
            shards[sources[device]] if device in sources else np.zeros_like(shard)
            for device, shard in enumerate(shards)
        ]

    def traffic(self, operand: ArrayType, mesh: AbstractMesh) -> Traffic:
        return one_hop(operand.nbytes)

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        return hlo.op("stablehlo.collective_permute", (x,), x.type, hlo.pair_attributes(self))


@final
@record
class Permute(CollectivePermute):
    """Change the axes that shard a dim from `before` to `after`, which have equal numbers of devices.

    The device at position i along `after` receives the shard of a device at position i along `before`.
    """

    name = "permute"
    removed_on_one_device = True
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def communicates_along(self) -> tuple[str, ...]:
        return self.after

    def traffic(self, operand: ArrayType, mesh: AbstractMesh) -> Traffic:
        return super().traffic(operand, mesh) if self._moves(mesh) else NOTHING_SENT

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        return super().lower(hlo, x) if self._moves(hlo.mesh) else x  # XLA would copy the shard

    def _moves(self, mesh: AbstractMesh) -> bool:
        """Return whether a device sends its shard to another one: not if only axes of one device change."""
        before, after = ([axis for axis in axes if mesh.shape[axis] > 1] for axes in (self.before, self.after))
        return before != after

    def pairs(self, mesh: AbstractMesh) -> NumpyArray:
        """Return pairs in which each target has its own source, at the target's position along all other axes.

        The axes of a manual region are among the other axes, and shards may differ along them.
        """
        others = tuple(axis for axis in mesh.axis_names if axis not in (*self.before, *self.after))

        def ranks(axes: tuple[str, ...], free: tuple[str, ...]) -> NumpyArray:
            return mesh.coordinates((*axes, *(axis for axis in free if axis not in axes), *others))

        source_of = np.empty(mesh.device_count, np.int64)
        source_of[ranks(self.before, self.after)] = np.arange(mesh.device_count)
        return np.stack([source_of[ranks(self.after, self.before)], np.arange(mesh.device_count)], 1)


@final
@record
class CoarseningPermute(CollectivePermute):
    """Send shards along axes `old` to devices that will hold larger shards, along axes `new`.

    Shard n along `new` consists of `parts` shards along `old`. The device at position m along `old` and n along `new`
    receives the shard with index m modulo `parts` among these. An all-gather over groups of `old` then completes the
    larger shard.
    """

    name = "coarsening_permute"
    removed_on_one_device = True
    old: tuple[str, ...]
    new: tuple[str, ...]
    parts: int

    @property
    def axes(self) -> tuple[str, ...]:
        return (*self.old, *self.new)

    def pairs(self, mesh: AbstractMesh) -> NumpyArray:
        """Return pairs in which every replica of a shard sends it once. There are as many replicas as receivers."""
        groups, devices = mesh.groups(self.axes), mesh.extent(self.new)
        m, n = np.divmod(np.arange(groups.shape[1]), devices)
        sources = (n * self.parts + m % self.parts) * devices + m // self.parts
        return np.stack([groups[:, sources].reshape(-1), groups.reshape(-1)], 1)


@final
@record
class PPermute(CollectivePermute):
    """For each pair (a, b) in `to`, device b receives the shard of device a; positions are along `axes`."""

    name = "ppermute"
    axes: tuple[str, ...]
    to: tuple[tuple[int, int], ...]

    def pairs(self, mesh: AbstractMesh) -> NumpyArray:
        return np.array([(group[a], group[b]) for group in mesh.groups(self.axes) for a, b in self.to]).reshape(-1, 2)

    def traffic(self, operand: ArrayType, mesh: AbstractMesh) -> Traffic:
        return one_hop(operand.nbytes) if any(a != b for a, b in self.to) else NOTHING_SENT

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        return super().lower(hlo, x) if self.to else hlo.constant(0, x.type.strong())


@final
@record
class DeviceIndex(PositionOp):
    """The position of this device along `axes`, an i32 scalar."""

    name = "device_index"
    axes: tuple[str, ...]

    def out_type(self) -> ArrayType:
        return ArrayType((), np.int32)

    def exchange(self, mesh: AbstractMesh, shards: Sequence[NumpyArray]) -> list[NumpyArray]:
        return [np.asarray(position, np.int32) for position in mesh.coordinates(self.axes)]

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        return hlo.device_index(self.axes)


@final
@record
class LocalSlice(PositionOp):
    """Slice this device's shard, one of `count` along `dim`, out of an array that is replicated over `axes`.

    `padded_size` is the size to which `dim` is first padded with zeros; None for no padding.
    """

    fusion = Fusion(reads_part=True)
    name = "local_slice"
    removed_on_one_device = True
    dim: int
    axes: tuple[str, ...]
    count: int
    padded_size: int | None = field(default=None, repr=False)

    @property
    def resized_dim(self) -> int:
        return self.dim

    @property
    def moved_dims(self) -> tuple[int, ...]:
        return (self.dim,)

    def out_type(self, x: ArrayType) -> ArrayType:
        padded = x if self.padded_size is None else PadOrTrim(self.dim, self.padded_size).out_type(x)
        return _scale_dim(padded, self.dim, 1, self.count)

    def exchange(self, mesh: AbstractMesh, shards: Sequence[NumpyArray]) -> list[NumpyArray]:
        positions = mesh.coordinates(self.axes)
        padded = shards if self.padded_size is None else PadOrTrim(self.dim, self.padded_size).exchange(mesh, shards)
        return [np.split(x, self.count, self.dim)[position] for x, position in zip(padded, positions, strict=True)]

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        out, scalar = self.out_type(x.type), ArrayType((), np.int32)
        size, block, position = x.type.shape[self.dim], out.shape[self.dim], hlo.device_index(self.axes)
        filled = min(-(-size // block), self.count) if block else self.count  # blocks that are not only padding
        if filled < self.count:
            # Devices whose shard is only padding slice the same block of zeros, so the array is padded by just one
            # block.
            position = hlo.op("stablehlo.minimum", (position, hlo.constant(filled, scalar)), scalar)
            filled += 1
        if filled * block != size:
            x = PadOrTrim(self.dim, filled * block).lower(hlo, x)
        start = hlo.op("stablehlo.multiply", (position, hlo.constant(block, scalar)), scalar)
        starts = [start if dim == self.dim else hlo.constant(0, scalar) for dim in range(out.ndim)]
        return hlo.op("stablehlo.dynamic_slice", (x, *starts), out, f"slice_sizes = {i64_array_attribute(out.shape)}")


@final
@record
class ToPartial(PositionOp):
    """Make a replicated value partial over `axes`: the first device keeps it, the others have zeros.

    A term of a maximum is the value itself, on all devices.
    Floating-point zeros are negative, because x + -0.0 is x for every x, but -0.0 + 0.0 is 0.0.
    """

    name = "to_partial"
    removed_on_one_device = True
    axes: tuple[str, ...]
    reduction: Reduction = field(default=SUM, repr=False, metadata={"omitted": SUM})

    @property
    def moved_dims(self) -> tuple[int, ...]:
        return ()

    def out_type(self, x: ArrayType) -> ArrayType:
        return x

    def exchange(self, mesh: AbstractMesh, shards: Sequence[NumpyArray]) -> list[NumpyArray]:
        if self.reduction is MAX:
            return list(shards)
        positions = mesh.coordinates(self.axes)
        zero = zero_term(shards[0].dtype)
        return [
            np.full_like(shard, zero) if position else shard for shard, position in zip(shards, positions, strict=True)
        ]

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        if self.reduction is MAX:
            return x
        is_first = lower_compare(hlo, "EQ", hlo.device_index(self.axes), hlo.constant(0, ArrayType((), np.int32)))
        zeros = hlo.constant(zero_term(x.type.dtype), x.type.strong())
        return hlo.op("stablehlo.select", (is_first, x, zeros), x.type)


@final
@record
class ShardToPartial(PositionOp):
    """Make a shard, one of `count` along `dim` over `axes`, partial: its term is the shard, surrounded by zeros."""

    name = "shard_to_partial"
    removed_on_one_device = True
    dim: int
    axes: tuple[str, ...]
    count: int

    def out_type(self, x: ArrayType) -> ArrayType:
        return _scale_dim(x, self.dim, self.count, 1)

    def exchange(self, mesh: AbstractMesh, shards: Sequence[NumpyArray]) -> list[NumpyArray]:
        size = shards[0].shape[self.dim]
        terms = []
        for shard, position in zip(shards, mesh.coordinates(self.axes), strict=True):
            shape = self.out_type(ArrayType(shard.shape, shard.dtype)).shape
            term = np.full(shape, zero_term(shard.dtype), shard.dtype)
            term[(slice(None),) * self.dim + (slice(position * size, (position + 1) * size),)] = shard
            terms.append(term)
        return terms

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        out, scalar = self.out_type(x.type), ArrayType((), np.int32)
        size = hlo.constant(x.type.shape[self.dim], scalar)
        start = hlo.op("stablehlo.multiply", (hlo.device_index(self.axes), size), scalar)
        starts = [start if dim == self.dim else hlo.constant(0, scalar) for dim in range(out.ndim)]
        zeros = hlo.constant(zero_term(out.dtype), out.strong())
        return hlo.op("stablehlo.dynamic_update_slice", (zeros, x, *starts), out)


def zero_term(dtype: DType) -> Any:
    """Return the neutral term of a sum: -0.0, or 0 for integers and booleans, which have no signed zeros."""
    if not is_inexact(dtype):
        return 0
    return complex(-0.0, -0.0) if dtype.kind == "c" else -0.0


@final
@record
class PadOrTrim(PositionOp):
    """Pad the shard at the end of `dim` with zeros to `size`, or trim it to `size`."""

    name = "pad_or_trim"
    removed_on_one_device = True
    dim: int
    size: int

    @property
    def resized_dim(self) -> int:
        return self.dim

    @property
    def communicates_along(self) -> tuple[str, ...]:
        return ()

    def out_type(self, x: ArrayType) -> ArrayType:
        return x.with_shape((*x.shape[: self.dim], self.size, *x.shape[self.dim + 1 :]))

    def exchange(self, mesh: AbstractMesh, shards: Sequence[NumpyArray]) -> list[NumpyArray]:
        padding = [(0, 0)] * shards[0].ndim
        padding[self.dim] = (0, max(0, self.size - shards[0].shape[self.dim]))
        return [np.take(np.pad(shard, padding), range(self.size), self.dim) for shard in shards]

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
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


def _check_reducible(op: AllReduce | ReduceScatter, x: ArrayType) -> ArrayType:
    if not op.reduction.has_collective:
        raise TypeError(f"{op.name}: XLA has no collective for the reduction {op.reduction}")
    if x.dtype.kind == "c" and op.reduction.selects:
        raise TypeError(f"{op.name}: complex numbers have no {op.reduction}: {x}")
    return x


def lower_stack(hlo: Hlo, x: HloValue, dim: int, count: int) -> Any:
    """Split `x` into `count` equal blocks along `dim`, stacked along a new dim 0. The inverse is `lower_unstack`."""
    shape = x.type.shape
    blocks = Reshape((*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :])).lower(hlo, x)
    return lower_permute(hlo, blocks, (dim, *(d for d in range(len(shape) + 1) if d != dim)))


def lower_unstack(hlo: Hlo, stack: HloValue, dim: int) -> Any:
    """Concatenate the slices along dim 0 of `stack` along their dim `dim`."""
    count, *shape = stack.type.shape
    order = (*range(1, dim + 1), 0, *range(dim + 1, len(shape) + 1))
    concatenated = (*shape[:dim], count * shape[dim], *shape[dim + 1 :])
    return Reshape(concatenated).lower(hlo, lower_permute(hlo, stack, order))


def _merged_by_xla(
    hlo: Hlo, name: str, operands: Sequence[HloValue], out: Sequence[ArrayType], attributes: str, regions: Sequence[str]
) -> list[Any]:
    """Append the collectives of a launch as ops of one operand each, which XLA merges.

    XLA merges them up to a threshold, which `combine_thresholds` chooses, in post-order of the module: a barrier makes
    those of a launch adjacent.
    """
    results = [hlo.op(name, (x,), type, attributes, regions) for x, type in zip(operands, out, strict=True)]
    return results if len(out) == 1 else hlo.many("stablehlo.optimization_barrier", results, out)


def _dim_in_front(dim: int, ndim: int) -> tuple[int, ...]:
    """Return the permutation that moves a dim to the front.

    XLA needs contiguous blocks, as they are there. It can fuse explicit transposes with the ops before and after.
    """
    return (dim, *(d for d in range(ndim) if d != dim))


def _lower_propagating_nan(hlo: Hlo, reduction: Reduction, x: HloValue, reduce: Callable[[Any], Any]) -> Any:
    """Apply `reduce` to `x`; a minimum or maximum of floats propagates NaN.

    XLA's collectives drop NaN on some platforms. Floats are therefore mapped to integers of the same order, and NaN to
    the largest or smallest integer, so that it wins.
    """
    if not reduction.selects or not is_float(x.type.dtype):
        return reduce(x)
    dtype, integer = (np.float64, np.int64) if x.type.dtype == np.float64 else (np.float32, np.int32)
    low, high = integer_range(np.dtype(integer))

    def flip_negatives(bits: HloValue) -> Any:
        """Reverse the order of negative floats, whose bits decrease as the floats increase. It is its own inverse."""
        negative = lower_compare(hlo, "LT", bits, hlo.constant(0, bits.type))
        flipped = hlo.op("stablehlo.xor", (bits, hlo.constant(high, bits.type)), bits.type)
        return hlo.op("stablehlo.select", (negative, flipped, bits), bits.type)

    wide = hlo.op("stablehlo.convert", (x,), x.type.with_dtype(dtype))
    order = flip_negatives(hlo.op("stablehlo.bitcast_convert", (wide,), x.type.with_dtype(integer)))
    is_nan = lower_compare(hlo, "NE", wide, wide)
    winner = hlo.constant(high if reduction.selects == "GT" else low, order.type)
    reduced = flip_negatives(reduce(hlo.op("stablehlo.select", (is_nan, winner, order), order.type)))
    wide = hlo.op("stablehlo.bitcast_convert", (reduced,), reduced.type.with_dtype(dtype))
    return hlo.op("stablehlo.convert", (wide,), reduced.type.with_dtype(x.type.dtype))


def _scale_dim(x: ArrayType, dim: int, times: int, divisor: int) -> ArrayType:
    """Multiply the size of a dim by `times` and divide it by `divisor`."""
    if x.shape[dim] % divisor:
        raise TypeError(f"dim {dim} of {x} does not divide into {divisor} blocks")
    return x.with_shape((*x.shape[:dim], x.shape[dim] * times // divisor, *x.shape[dim + 1 :]))
