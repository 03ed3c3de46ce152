"""Arrays from one sharding to another, and from some devices to others.

Over the same devices the exchange is compiled, as a program that is one constraint. Between devices of this process,
each source cuts what others need from its piece, blocks are copied from device to device, and each target puts
together what came. Only what no device of this process can reach goes through the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardwise._jaxlib import copy_to_memory, join, put, split
from shardwise.caches import registered_cache
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.slicing import Concatenate, Pad, slice_dims
from shardwise.compiler.shardings.mesh import Mesh, device_grid
from shardwise.compiler.shardings.refine import common_mesh
from shardwise.compiler.shardings.spec import spec_of
from shardwise.runtime.array import Array, array_signature, key_data_sharding, place, single_device_array
from shardwise.runtime.array_repr import Span
from shardwise.runtime.sharding import NamedSharding, Sharding, mesh_of

Box = tuple[Span, ...]


def transfer(array: Array, sharding: Sharding) -> Array:
    """The array in another sharding, committed to it."""
    if array.sharding == sharding:
        return array
    if is_key(array.type.dtype):
        return Array.of(
            transfer(array.words, key_data_sharding(sharding)).buffers, array_signature(array.type, sharding, True)
        )
    if array.sharding.kind or sharding.kind:
        return _between_memories(array, sharding)
    shape = array.type.shape
    before, after = mesh_of(array.sharding), mesh_of(sharding)
    if array.sharding.devices == sharding.devices:
        if array.sharding.shard_indices(shape) == sharding.shard_indices(shape):
            return Array.of(array.buffers, array_signature(array.type, sharding, True))
        if before is not None and after is not None and common_mesh((before, after)) is not None:
            pin = sharding.pin(shape)
            (found,) = installed.executor.run(Constrain(pin.layout.dims, after), (array,))
            return Array.of(found.buffers, array_signature(array.type, sharding, True))
    on_its_way = not array.committed and array.sharding.devices[0].platform == "cpu"  # in the host's own memory
    if on_its_way or not (array.sharding.is_fully_addressable and sharding.is_fully_addressable):
        return place(array.numpy(), array.type, sharding, committed=True)
    if before is not None and after is not None and before.size == after.size:
        here = _over(before.flat_devices, after)
        if common_mesh((before, here)) is not None:
            return _carried(transfer(array, NamedSharding(here, spec_of(sharding.pin(shape).layout))), sharding)
    return _redistributed(array, sharding)


def _between_memories(array: Array, sharding: Sharding) -> Array:
    """The array in another memory. Devices exchange what lies where they compute: out of another memory comes first,
    into another last."""
    if array.sharding.in_default_memory == sharding.in_default_memory:
        return transfer_to_memory(array, sharding)
    here = transfer_to_memory(array, array.sharding.in_default_memory)
    return transfer_to_memory(transfer(here, sharding.in_default_memory), sharding)


def transfer_to_memory(array: Array, sharding: Sharding, copied: bool = False) -> Array:
    """The array in another memory of the same devices, in the same layout; `copied`: with memory of its own anyway."""
    if array.sharding.kind == sharding.kind and not copied:
        return array
    kind = sharding.memory_kind
    assert kind is not None  # there are devices
    return Array.of(
        copy_to_memory(array.buffers, sharding.devices, kind, copied), array_signature(array.type, sharding, True)
    )


def _over(devices: Sequence[Any], mesh: Mesh) -> Mesh:
    """A mesh of the same sizes and names over other devices."""
    return Mesh(device_grid(devices, mesh.axis_sizes), mesh.axis_names)


def _carried(array: Array, sharding: Sharding) -> Array:
    """The array with each piece on the device that has its place in another sharding of equal layout."""
    shape = sharding.placement(array.type).shard_shape(sharding.mesh_shape)
    pieces = split(array.buffers)
    buffers = join(pieces, shape, array.type.dtype, sharding.devices, sharding.devices)
    return Array.of(buffers, array_signature(array.type, sharding, True))


@final
@dataclass(frozen=True)
class _Plan:
    """Which blocks each source cuts from its piece, and which of these each target puts together.

    `cuts` are spans inside the piece; `boxes` are spans of the whole array. Sources and targets are numbered as the
    devices of their shardings are.
    """

    cuts: tuple[tuple[int, tuple[Box, ...]], ...]
    boxes: tuple[tuple[Box, ...], ...]
    sources: tuple[tuple[tuple[int, int], ...], ...]  # for each box of a target: the source, and which of its cuts


@registered_cache(maxsize=4096)
def _plan(shape: tuple[int, ...], before: Sharding, after: Sharding) -> _Plan:
    """How an array of this shape gets from one sharding to another, block by block."""
    parts = [_box(index) for index in before.shard_indices(shape)]
    holders: dict[Box, list[int]] = {}
    for number, box in enumerate(parts):
        holders.setdefault(box, []).append(number)
    cuts: dict[int, dict[Box, int]] = {}
    boxes, sources = [], []
    for target, (device, index) in enumerate(zip(after.devices, after.shard_indices(shape), strict=True)):
        here = {}
        for part, numbers in holders.items():
            box = tuple((max(a, low), min(b, high)) for (a, b), (low, high) in zip(part, _box(index), strict=True))
            if all(low < high for low, high in box):
                copy = next((n for n in numbers if before.devices[n] == device), numbers[target % len(numbers)])
                inside = tuple((low - start, high - start) for (low, high), (start, _) in zip(box, part, strict=True))
                mine = cuts.setdefault(copy, {})
                here[box] = (copy, mine.setdefault(inside, len(mine)))
        boxes.append(tuple(here))
        sources.append(tuple(here.values()))
    return _Plan(tuple((number, tuple(found)) for number, found in cuts.items()), tuple(boxes), tuple(sources))


def _redistributed(array: Array, sharding: Sharding) -> Array:
    """The array on other devices, block by block."""
    plan = _plan(array.type.shape, array.sharding, sharding)
    kind = array.type.with_shape(array.sharding.shard_shape(array.type.shape))
    pieces = split(array.buffers)
    blocks = {
        source: _sliced(single_device_array(pieces[source], kind, array.sharding.devices[source]), cuts)
        for source, cuts in plan.cuts
    }
    shape = sharding.shard_shape(array.type.shape)
    made = [
        _put_together(array, boxes, [blocks[source][cut].buffers for source, cut in sources], shape, device)
        for boxes, sources, device in zip(plan.boxes, plan.sources, sharding.devices, strict=True)
    ]
    buffers = join(made, shape, array.type.dtype, sharding.devices, sharding.devices)
    return Array.of(buffers, array_signature(array.type, sharding, True))


def _sliced(piece: Array, parts: tuple[Box, ...]) -> list[Array]:
    if parts == (tuple((0, size) for size in piece.type.shape),):
        return [piece]
    return installed.executor.call_list(_slices, (piece,), {"parts": parts})


def _slices(piece: Any, *, parts: tuple[Box, ...]) -> list[Any]:
    return [slice_dims(piece, [(low, high, 1) for low, high in box]) for box in parts]


def _put_together(array: Array, boxes: tuple[Box, ...], blocks: list[Any], shape: tuple[int, ...], device: Any) -> Any:
    """One device's piece of `shape`, padded, from blocks: Buffers of one device each."""
    if not blocks:  # nothing but padding
        return put([np.zeros(shape, array.type.dtype)], (device,), (device,))
    kinds = [array.type.with_shape(tuple(high - low for low, high in box)) for box in boxes]
    if len(blocks) == 1 and kinds[0].shape == shape:
        return blocks[0]
    arrived = [single_device_array(block, kind, device) for block, kind in zip(blocks, kinds, strict=True)]
    (piece,) = installed.executor.call_list(assemble_blocks, arrived, {"boxes": boxes, "shape": shape})
    return piece.buffers


def assemble_blocks(*blocks: Any, boxes: tuple[Box, ...], shape: tuple[int, ...]) -> list[Any]:
    """The blocks, which form a grid, side by side; zeros past their end."""
    known = dict(zip(boxes, blocks, strict=True))
    cuts = [sorted({box[dim] for box in boxes}) for dim in range(len(shape))]

    def along(dim: int, before: Box) -> Any:
        if dim == len(shape):
            return known[before]
        rows = [along(dim + 1, (*before, span)) for span in cuts[dim]]
        return rows[0] if len(rows) == 1 else Concatenate(dim)(*rows)

    whole = along(0, ())
    missing = tuple(size - have for size, have in zip(shape, whole.type.shape, strict=True))
    if any(missing):
        none = (0,) * len(shape)
        whole = Pad(none, missing, none)(whole, full((), 0, whole.type.dtype, whole.type.weak))
    return [whole]


def _box(index: tuple[slice, ...]) -> Box:
    return tuple((part.start, part.stop) for part in index)
