"""Send arrays between processes that run different programs.

`exchange` needs one program on all devices involved, which all of their processes launch in the same order. Here, the
processes of the source send blocks, and those of the target assemble them, each when its own program reaches that
point. Blocks go through host memory and the connections of `Channels`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.base._jaxlib import Buffers, put, split, to_numpy
from shardwise.base._jaxlib import join as join_buffers
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.execute.block_plan import BlockPlan, plan_blocks
from shardwise.execute.transfer import assemble_shard, slice_blocks
from shardwise.processes.channels import Channels
from shardwise.runtime.array import ArrayImpl, array_signature, key_data_sharding, single_device_array
from shardwise.runtime.box import box_shape

_Block = tuple[int, int]  # a device of the source, and the index of a block in its shard


def send(array: ArrayImpl, target: Sharding, tag: str, channels: Channels) -> None:
    """Start to send the shards of this process to the other processes of a sharding.

    Args:
        array: the array.
        target: the sharding on the devices of the receivers.
        tag: identifies the array; the receivers pass the same.
        channels: the connections to the receivers.
    """
    words, target = array.words, _physical(array.type, target)
    plan = plan_blocks(words.type.shape, words.sharding, target)
    own = words.sharding.devices[0].client.process_index()
    receivers: dict[_Block, set[int]] = {}
    for device, sources in zip(target.devices, plan.sources, strict=True):
        for block in sources:
            if device.process_index != own and words.sharding.devices[block[0]].process_index == own:
                receivers.setdefault(block, set()).add(device.process_index)
    blocks = _local_blocks(words, plan)
    for block, processes in receivers.items():
        for process in sorted(processes):
            channels.post(process, _block_tag(tag, block), _reader(blocks[block]))


def receive(
    type: ArrayType, source: Sharding, target: Sharding, tag: str, channels: Channels, array: ArrayImpl | None = None
) -> ArrayImpl:
    """Wait for the blocks of an array that other processes send, and return the array on the devices of `target`.

    Args:
        type: the type of the array.
        source: the sharding of the array in the sending processes.
        target: the sharding of the result.
        tag: the tag that the senders pass.
        channels: the connections to the senders.
        array: the array, if this process has a device of `source`.
    """
    physical, from_sharding, to_sharding = type.physical, _physical(type, source), _physical(type, target)
    plan = plan_blocks(physical.shape, from_sharding, to_sharding)
    own = to_sharding.devices[0].client.process_index()
    local = {} if array is None else _local_blocks(array.words, plan)
    shape = to_sharding.shard_shape(physical.shape)
    arrived: dict[_Block, np.ndarray[Any, Any]] = {}
    shards: list[Buffers] = []
    for device, boxes, sources in zip(to_sharding.devices, plan.boxes, plan.sources, strict=True):
        if device.process_index != own:
            continue
        buffers = []
        for box, block in zip(boxes, sources, strict=True):
            sender = from_sharding.devices[block[0]].process_index
            if sender == own:
                buffers.append(local[block].buffers)
                continue
            if block not in arrived:
                data = channels.take(sender, _block_tag(tag, block))
                arrived[block] = data.view(physical.dtype).reshape(box_shape(box))
            buffers.append(put([arrived[block]], (device,), (device,)))
        shards.append(assemble_shard(physical, boxes, buffers, shape, device))
    joined = join_buffers(shards, shape, physical.dtype, to_sharding.devices, to_sharding.local_devices)
    return ArrayImpl.from_buffers(joined, array_signature(type, target, True))


def _physical(type: ArrayType, sharding: Sharding) -> Sharding:
    """Return the sharding of an array's words if it has keys, else its sharding."""
    return key_data_sharding(sharding) if is_key(type.dtype) else sharding


def _local_blocks(array: ArrayImpl, plan: BlockPlan) -> dict[_Block, ArrayImpl]:
    """Slice the blocks of the shards of this process."""
    shard_type = array.type.with_shape(array.sharding.shard_shape(array.type.shape))
    shards = dict(zip(array.sharding.local_devices, split(array.buffers), strict=True))
    blocks = {}
    for source, boxes in plan.slices:
        device = array.sharding.devices[source]
        if device in shards:
            sliced = slice_blocks(single_device_array(shards[device], shard_type, device), boxes)
            blocks.update({(source, index): block for index, block in enumerate(sliced)})
    return blocks


def _block_tag(tag: str, block: _Block) -> str:
    return f"{tag}/{block[0]}.{block[1]}"


def _reader(block: ArrayImpl) -> Callable[[], np.ndarray[Any, np.dtype[np.uint8]]]:
    """Return a function that waits for a block, and returns its bytes."""

    def read() -> np.ndarray[Any, np.dtype[np.uint8]]:
        block.buffers.block_until_ready()
        return np.ascontiguousarray(to_numpy(block.buffers)).reshape(-1).view(np.uint8)

    return read
