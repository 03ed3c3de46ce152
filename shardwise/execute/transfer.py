"""Reshard arrays outside compiled programs, over the same devices or between devices and memories.

Over the same devices, a reshard is a compiled program with one sharding constraint. Between devices of this process,
each source device slices its shard into blocks, the blocks are copied from device to device, and each target device
assembles its shard from them. Between devices of several processes, a reshard is one program over all of them.
Transfers to devices of another client go through the host.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.base._jaxlib import Buffers, Device, copy_to_memory, join, put, split
from shardwise.base.lazy import lazy_module
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir import dispatch
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.placement.reshard import Reshard
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.slicing import Concatenate, Pad, slice_dims
from shardwise.compiler.shardings.mesh import Mesh, device_grid
from shardwise.compiler.shardings.named_sharding import NamedSharding, explicit_sharding
from shardwise.compiler.shardings.refine import common_mesh
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import spec_of
from shardwise.execute.block_plan import plan_blocks
from shardwise.runtime.array import (
    ArrayImpl,
    array_signature,
    key_data_sharding,
    pending_origin,
    place,
    single_device_array,
)
from shardwise.runtime.box import Box
from shardwise.runtime.process_set_registry import process_sets
from shardwise.runtime.sharding import mesh_of

if TYPE_CHECKING:
    from shardwise.execute import exchange
else:  # its import takes 6 ms, and only multi-process programs use it
    exchange = lazy_module("shardwise.execute.exchange")


def transfer(array: ArrayImpl, sharding: Sharding) -> ArrayImpl:
    """Return the array in another sharding, committed to it."""
    if array.sharding == sharding:
        return array
    if is_key(array.type.dtype):
        words = transfer(array.words, key_data_sharding(sharding))
        return words.with_signature(array_signature(array.type, sharding, True))
    if array.sharding.nondefault_memory or sharding.nondefault_memory:
        return _transfer_between_memories(array, sharding)
    if array.is_unreduced or sharding.is_unreduced:
        return _transfer_terms(array, sharding)
    shape = array.type.shape
    source_mesh, target_mesh = mesh_of(array.sharding), mesh_of(sharding)
    if array.sharding.devices == sharding.devices:
        if array.sharding.shard_indices(shape) == sharding.shard_indices(shape):
            return array.with_signature(array_signature(array.type, sharding, True))
        if source_mesh is not None and target_mesh is not None and common_mesh((source_mesh, target_mesh)) is not None:
            (resharded,) = dispatch.executor.run(
                Constrain(sharding.pin(shape).layout.dims, target_mesh.with_auto_axes()), (_on_auto_axes(array),)
            )
            return resharded.with_signature(array_signature(array.type, sharding, True))  # type: ignore[no-any-return]
    is_local = array.sharding.is_fully_addressable and sharding.is_fully_addressable
    is_host_copy = not is_local or array.sharding.devices[0].platform == "cpu"
    if not array.committed and is_host_copy and array.is_readable:
        return place(array.numpy(), array.type, sharding, committed=True)  # every process has a full copy
    if not is_local:
        return _transfer_between_processes(array, sharding)
    if array.sharding.devices[0].client is not sharding.devices[0].client:
        array.block_until_ready()  # the copy through the host waits in XLA
    if source_mesh is not None and target_mesh is not None and source_mesh.device_count == target_mesh.device_count:
        mesh = _mesh_over(source_mesh.flat_devices, target_mesh)
        if common_mesh((source_mesh, mesh)) is not None:
            resharded = transfer(array, NamedSharding(mesh, spec_of(sharding.pin(shape).layout)))
            return _copy_shards(resharded, sharding)
    return _redistributed(array, sharding)


def _computed_from(operand: ArrayImpl, array: ArrayImpl) -> ArrayImpl:
    """Return a copy of an operand's elements that waits for the same processes."""
    return array if process_sets.member is None else array.with_origin(pending_origin((operand,)))


def _transfer_between_processes(array: ArrayImpl, sharding: Sharding) -> ArrayImpl:
    """Transfer an array if its devices, or the devices of `sharding`, belong to several processes."""
    if array.sharding.devices[0].client is sharding.devices[0].client:
        return exchange.exchange(array, sharding)
    if not array.is_readable:
        raise ValueError(
            f"cannot transfer this {array.type} in {array.sharding} to {sharding}: the devices are of different "
            f"platforms, and process {sharding.devices[0].client.process_index()} has not all shards. Replicate it on "
            "its own devices first."
        )
    return place(array.numpy(), array.type, sharding, committed=True)


def _transfer_terms(array: ArrayImpl, sharding: Sharding) -> ArrayImpl:
    """Transfer an array from or to an unreduced sharding.

    On one mesh, this is one reshard. Otherwise the terms are reduced on their devices, and the sum is transferred.
    """
    source = array.sharding
    if isinstance(source, NamedSharding) and isinstance(sharding, NamedSharding):
        explicit = sharding.mesh_shape.explicit_axes == sharding.mesh_shape.axis_names
        if explicit and source.mesh == sharding.mesh:
            return _reshard(array, sharding)
    if isinstance(source, NamedSharding) and source.is_unreduced:
        array = _reshard(array, source.with_sums)
    if not isinstance(sharding, NamedSharding) or not sharding.is_unreduced:
        return transfer(array, sharding)
    return _reshard(transfer(array, sharding.with_sums), sharding)


def _reshard(array: ArrayImpl, sharding: NamedSharding) -> ArrayImpl:
    """Return the array with another sharding along the Explicit axes of its mesh."""
    op = Reshard.to(explicit_sharding(sharding, array.type.shape), array.type.ndim, sharding.grid)
    (resharded,) = dispatch.executor.run(op, (array,))
    return resharded.with_signature(array_signature(array.type, sharding, True))  # type: ignore[no-any-return]


def _on_auto_axes(array: ArrayImpl) -> ArrayImpl:
    """Return the array with a sharding on Auto axes, because a transfer may change its Explicit sharding."""
    if not isinstance(array.sharding, NamedSharding):
        return array
    return array.with_signature(array_signature(array.type, array.sharding.on_auto_axes, array.committed))


def _transfer_between_memories(array: ArrayImpl, sharding: Sharding) -> ArrayImpl:
    """Transfer an array from or to another memory. Devices reshard only in their default memory."""
    if array.sharding.in_default_memory == sharding.in_default_memory:
        return transfer_to_memory(array, sharding)
    loaded = transfer_to_memory(array, array.sharding.in_default_memory)
    return transfer_to_memory(transfer(loaded, sharding.in_default_memory), sharding)


def transfer_to_memory(array: ArrayImpl, sharding: Sharding, copied: bool = False) -> ArrayImpl:
    """Return the array in another memory of the same devices, in the same layout. `copied` forces a copy."""
    if array.sharding.nondefault_memory == sharding.nondefault_memory and not copied:
        return array
    memory_kind = sharding.memory_kind
    assert memory_kind is not None  # the sharding has devices
    buffers = copy_to_memory(array.buffers, sharding.devices, memory_kind, copied)
    return _computed_from(array, ArrayImpl.from_buffers(buffers, array_signature(array.type, sharding, True)))


def _mesh_over(devices: Sequence[Any], mesh: Mesh) -> Mesh:
    """Return a mesh with the axes of `mesh` over other devices."""
    return Mesh(device_grid(devices, mesh.axis_sizes), mesh.axis_names)


def _copy_shards(array: ArrayImpl, sharding: Sharding) -> ArrayImpl:
    """Copy each shard to the device at the same position of `sharding`, which has the same layout."""
    shard_shape = sharding.shard_shape(array.type.shape)
    shards = split(array.buffers)
    buffers = join(shards, shard_shape, array.type.dtype, sharding.devices, sharding.devices)
    return _computed_from(array, ArrayImpl.from_buffers(buffers, array_signature(array.type, sharding, True)))


def _redistributed(array: ArrayImpl, sharding: Sharding) -> ArrayImpl:
    """Transfer an array to other devices, block by block."""
    plan = plan_blocks(array.type.shape, array.sharding, sharding)
    shard_type = array.type.with_shape(array.sharding.shard_shape(array.type.shape))
    shards = split(array.buffers)
    blocks = {
        source: slice_blocks(single_device_array(shards[source], shard_type, array.sharding.devices[source]), boxes)
        for source, boxes in plan.slices
    }
    shape = sharding.shard_shape(array.type.shape)
    assembled = [
        assemble_shard(array.type, boxes, [blocks[source][number].buffers for source, number in sources], shape, device)
        for boxes, sources, device in zip(plan.boxes, plan.sources, sharding.devices, strict=True)
    ]
    buffers = join(assembled, shape, array.type.dtype, sharding.devices, sharding.devices)
    return _computed_from(array, ArrayImpl.from_buffers(buffers, array_signature(array.type, sharding, True)))


def slice_blocks(shard: ArrayImpl, boxes: tuple[Box, ...]) -> list[ArrayImpl]:
    """Return blocks of an array of one device; the array itself if the only block covers it."""
    if boxes == (tuple((0, size) for size in shard.type.shape),):
        return [shard]
    return dispatch.executor.call_list(_slices, (shard,), {"boxes": boxes})


def _slices(shard: Array, *, boxes: tuple[Box, ...]) -> list[Array]:
    return [slice_dims(shard, [(low, high, 1) for low, high in box]) for box in boxes]


def assemble_shard(
    type: ArrayType, boxes: tuple[Box, ...], blocks: list[Buffers], shape: tuple[int, ...], device: Device
) -> Buffers:
    """Assemble the padded shard of one device from blocks, which are buffers on that device."""
    if not blocks:  # the shard is only padding
        return put([np.zeros(shape, type.dtype)], (device,), (device,))
    types = [type.with_shape(tuple(high - low for low, high in box)) for box in boxes]
    if len(blocks) == 1 and types[0].shape == shape:
        return blocks[0]
    copied = [single_device_array(block, each, device) for block, each in zip(blocks, types, strict=True)]
    (shard,) = dispatch.executor.call_list(assemble_blocks, copied, {"boxes": boxes, "shape": shape})
    return shard.buffers


def assemble_blocks(*blocks: Array, boxes: tuple[Box, ...], shape: tuple[int, ...]) -> list[Array]:
    """Concatenate blocks that form a grid, and pad the result with zeros to `shape`."""
    block_at = dict(zip(boxes, blocks, strict=True))
    spans = [sorted({box[dim] for box in boxes}) for dim in range(len(shape))]

    def concatenate_from(dim: int, box: Box) -> Array:
        if dim == len(shape):
            return block_at[box]
        parts = [concatenate_from(dim + 1, (*box, span)) for span in spans[dim]]
        return parts[0] if len(parts) == 1 else Concatenate(dim)(*parts)

    shard = concatenate_from(0, ())
    padding = tuple(size - actual for size, actual in zip(shape, shard.type.shape, strict=True))
    if any(padding):
        zeros = (0,) * len(shape)
        shard = Pad(zeros, padding, zeros)(shard, full((), 0, shard.type.dtype, shard.type.weak))
    return [shard]
