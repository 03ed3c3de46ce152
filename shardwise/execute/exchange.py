"""exchange: reshard an array between devices of several processes, with one program over all devices involved.

In each round of the program, every device sends at most one block of its shard and receives at most one, by a
collective-permute. Each device holds only its old and its new shard, and no host holds a copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardwise.base._jaxlib import join, put, split
from shardwise.base.caches import registered_cache
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.control.manual import Manual
from shardwise.compiler.control.region_boundary import ShardSpec
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir import dispatch
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.block_schedule import Piece, schedule
from shardwise.compiler.ops.collective.named_exchange import NamedPermute
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Pad, slice_dims
from shardwise.compiler.shardings.mesh import Mesh, device_grid, mesh_context
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.compiler.trace.build import build
from shardwise.execute.block_plan import plan_blocks
from shardwise.runtime.array import ArrayImpl, array_signature, put_shards
from shardwise.runtime.process_set_registry import process_sets

AXIS = "device"  # the mesh axis of all devices that take part
INDEX = np.dtype(np.int32)
Shape = tuple[int, ...]


@final
@dataclass(frozen=True)
class _Round:
    """Blocks that are sent at once.

    Attributes:
        shape: the largest block size in each dim.
        pairs: the (source, target) pair of each block; empty if every block stays on its device.
        sent: for each device, the start of its block in its shard.
        received: for each device, the start of the received block in its result.
        sizes: for each device, the shape of the received block; zeros if it receives none.
    """

    shape: Shape
    pairs: tuple[tuple[int, int], ...]
    sent: tuple[Shape, ...]
    received: tuple[Shape, ...]
    sizes: tuple[Shape, ...]


@final
@dataclass(frozen=True, eq=False)
class _Exchange:
    """The program that reshards arrays of one type from one sharding to another.

    Attributes:
        op: the manual region over all devices; its operands are the shards and `table`.
        devices: the devices that take part: the sources, then the targets that are not sources.
        table: for each device, a row with its starts and sizes in all rounds.
    """

    op: Manual
    devices: tuple[Any, ...]
    table: np.ndarray[Any, Any]


def exchange(array: ArrayImpl, sharding: Sharding) -> ArrayImpl:
    """Return the array in another sharding. All processes of both shardings call this together."""
    before, type = array.sharding, array.type
    signature = array_signature(type, sharding, True)
    target_type = type.with_shape(sharding.shard_shape(type.shape))
    processes = {*before.processes, *sharding.processes}
    process = before.devices[0].client.process_index()
    if process not in processes or not type.size:
        zeros = np.zeros(target_type.shape, type.dtype)
        return ArrayImpl.from_buffers(
            put_shards([zeros] * len(sharding.local_devices), target_type, sharding), signature
        )
    plan = _plan_exchange(type.shape, type.dtype, before, sharding)
    local = [device for device in plan.devices if device.process_index == process]
    shards = dict(zip(before.local_devices, split(array.buffers), strict=True))
    source_shape = before.shard_shape(type.shape)
    zeros = np.zeros(source_shape, type.dtype)
    operand = join(
        [shards[device] if device in shards else put([zeros], (device,), (device,)) for device in local],
        source_shape,
        type.dtype,
        plan.devices,
        local,
    )
    mesh = plan.op.mesh
    assert isinstance(mesh, Mesh)
    table_sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    rows = [plan.table[index : index + 1] for index, device in enumerate(plan.devices) if device in local]
    table_type = ArrayType(plan.table.shape, INDEX)
    table = put_shards(rows, table_type.with_shape(rows[0].shape), table_sharding)
    with mesh_context.entered(None):
        (result,) = dispatch.executor.run(
            plan.op,
            (
                ArrayImpl.from_buffers(operand, _signature(source_shape, type, mesh)),
                ArrayImpl.from_buffers(table, array_signature(table_type, table_sharding, True)),
            ),
        )
    results = dict(zip(local, split(result.buffers), strict=True))
    buffers = join(
        [results[device] for device in sharding.local_devices],
        target_type.shape,
        type.dtype,
        sharding.devices,
        sharding.local_devices,
    )
    origin, target = result.processes(), process_sets.get(sharding.processes)
    if origin is not None:
        origin.add_source(array.processes())
        if target is not None:
            target.add_source(origin)
    return ArrayImpl.from_buffers(buffers, signature).with_origin(origin)


def _signature(shard_shape: Shape, type: ArrayType, mesh: Mesh) -> Any:
    """Return the signature of the shards of all devices, concatenated along dim 0."""
    shape = (shard_shape[0] * mesh.device_count, *shard_shape[1:]) if shard_shape else ()
    sharding = NamedSharding(mesh, PartitionSpec(AXIS) if shard_shape else PartitionSpec())
    return array_signature(ArrayType(shape, type.dtype), sharding, True)


@registered_cache(maxsize=1024)
def _plan_exchange(shape: Shape, dtype: DType, before: Sharding, after: Sharding) -> _Exchange:
    """Schedule the blocks, and build the program."""
    devices = tuple(dict.fromkeys((*before.devices, *after.devices)))
    source_shape, target_shape = before.shard_shape(shape), after.shard_shape(shape)
    rounds = _schedule(shape, before, after, devices)
    mesh = Mesh(device_grid(devices, (len(devices),)), (AXIS,))
    table = np.array(
        [
            [number for each in rounds for number in (*each.sent[d], *each.received[d], *each.sizes[d])]
            for d in range(len(devices))
        ],
        INDEX,
    ).reshape(len(devices), -1)

    def move_blocks(shard: Array, row: Array) -> list[Array]:
        return [_move_blocks(shard, row, rounds, target_shape, len(devices))]

    types = [ArrayType(source_shape, dtype), ArrayType((1, table.shape[1]), INDEX)]
    with mesh_context.in_region(mesh, (AXIS,)):
        program, _ = build(move_blocks, types, "exchange", {AXIS: len(devices)})
    specs = [_shard_spec(source_shape), _shard_spec(types[1].shape)]
    op = Manual.from_specs(program, mesh, (AXIS,), specs, [_shard_spec(target_shape)], tracked=False)
    return _Exchange(op, devices, table)


def _shard_spec(shape: Shape) -> ShardSpec:
    return ShardSpec(((AXIS,), *[()] * (len(shape) - 1)) if shape else ())


def _schedule(shape: Shape, before: Sharding, after: Sharding, devices: Sequence[Any]) -> list[_Round]:
    """Return the rounds that reshard an array of this shape from one sharding to another."""
    number_of = {device: number for number, device in enumerate(devices)}
    plan = plan_blocks(shape, before, after)
    slices = dict(plan.slices)
    blocks = []  # (source, target, start in the source's shard, start in the target's, shape)
    starts = [tuple(part.start for part in index) for index in after.shard_indices(shape)]
    for target, (boxes, sources) in enumerate(zip(plan.boxes, plan.sources, strict=True)):
        for box, (source, number) in zip(boxes, sources, strict=True):
            blocks.append(
                (
                    number_of[before.devices[source]],
                    number_of[after.devices[target]],
                    tuple(low for low, _ in slices[source][number]),
                    tuple(low - start for (low, _), start in zip(box, starts[target], strict=True)),
                    tuple(high - low for low, high in box),
                )
            )
    pieces = [Piece(source, target, number, 0, 1) for number, (source, target, *_) in enumerate(blocks)]
    rounds = []
    zeros = (0,) * len(shape)
    for group in schedule(pieces):
        sent, received, sizes = ([zeros] * len(devices) for _ in range(3))
        for piece in group.pieces:
            _, _, sent[piece.source], received[piece.target], sizes[piece.target] = blocks[piece.start]
        largest = tuple(max(size[dim] for size in sizes) for dim in range(len(shape)))
        pairs = () if group.is_local else tuple((piece.source, piece.target) for piece in group.pieces)
        # A scalar has no sizes, so a leading 1 marks the devices that receive one.
        rounds.append(_Round(largest, pairs, tuple(sent), tuple(received), tuple(_marked(sizes, group.pieces))))
    return rounds


def _ends(shape: Shape, blocks: Sequence[tuple[Shape, Shape]]) -> Shape:
    """Return the smallest shape that contains `shape` and all blocks, which are pairs of start and shape."""
    return tuple(max([size, *(start[dim] + block[dim] for start, block in blocks)]) for dim, size in enumerate(shape))


def _marked(sizes: Sequence[Shape], pieces: Sequence[Piece]) -> list[Shape]:
    """Return the sizes, each with a 1 in front if the device receives a block."""
    receivers = {piece.target for piece in pieces}
    return [(int(index in receivers), *size) for index, size in enumerate(sizes)]


def _move_blocks(shard: Array, row: Array, rounds: Sequence[_Round], target_shape: Shape, devices: int) -> Any:
    """Return a device's new shard. `row` has the device's starts and sizes in all rounds."""
    dtype, ndim = shard.type.dtype, len(target_shape)
    source_shape, zeros = shard.type.shape, (0,) * ndim
    # Blocks of a round have one shape. Pad operand and result where a larger block would not fit, because its start
    # would be clamped.
    source_ends = _ends(source_shape, [(start, each.shape) for each in rounds for start in each.sent])
    target_ends = _ends(target_shape, [(start, each.shape) for each in rounds for start in each.received])
    padding = tuple(end - size for end, size in zip(source_ends, source_shape, strict=True))
    padded = Pad(zeros, padding, zeros)(shard, full((), 0, dtype)) if any(padding) else shard
    result = full(target_ends, 0, dtype)
    numbers = iter(range(row.type.shape[1]))

    def scalar() -> Any:
        number = next(numbers)
        return Reshape(())(slice_dims(row, [(0, 1, 1), (number, number + 1, 1)]))

    for each in rounds:
        sent, received = ([scalar() for _ in range(ndim)] for _ in range(2))
        is_receiver, *sizes = [scalar() for _ in range(ndim + 1)]
        block = DynamicSlice(each.shape)(padded, *sent)
        if each.pairs:
            block = NamedPermute((AXIS,), (devices,), each.pairs)(block)
        inside = Broadcast(each.shape, ())(Compare("GT")(is_receiver, full((), 0, INDEX)))
        for dim, size in enumerate(sizes):
            index = Iota(each.shape, dim, INDEX)()
            inside = And()(inside, Compare("LT")(index, Broadcast(each.shape, ())(size)))
        window = DynamicSlice(each.shape)(result, *received)
        result = DynamicUpdateSlice()(result, Select()(inside, block, window), *received)
    return slice_dims(result, [(0, size, 1) for size in target_shape])
