"""Arrays made of parts: from a function that gives each part, from arrays on single devices, from a process's data."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise._jaxlib import join, put
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import ShardingError
from shardwise.execute.transfer import assemble_blocks, transfer
from shardwise.runtime.array import Array, array_signature, padded
from shardwise.runtime.sharding import Sharding, SingleDeviceSharding, sharding_in_force

NumpyArray = np.ndarray[Any, Any]
Span = tuple[int, int]


def make_array_from_callback(
    shape: Sequence[int], sharding: Any, data_callback: Callable[[tuple[slice, ...]], Any], dtype: Any = None
) -> Array:
    """An array whose parts `data_callback` gives: it is called with the index of each part that this process holds.

    The whole array never exists in one place. Without `dtype`, the first part says it.

    >>> rows = jax.NamedSharding(jax.make_mesh((4,), ("rows",)), P("rows"))
    >>> jax.make_array_from_callback((8,), rows, lambda index: np.arange(8)[index] ** 2)
    Array([ 0,  1,  4,  9, 16, 25, 36, 49], dtype=int32)
    """
    name = "make_array_from_callback"
    sizes = tuple(int(size) for size in shape)
    where = _checked(name, sharding, sizes)
    kind: ArrayType | None = None if dtype is None else ArrayType(sizes, canonical_dtype(dtype))
    parts: dict[tuple[Span, ...], NumpyArray] = {}
    pieces = []
    for device, index in where.addressable_devices_indices_map(sizes).items():
        box = tuple((part.start, part.stop) for part in index)
        if box not in parts:
            found = np.asarray(data_callback(index))
            if kind is None:
                kind = ArrayType(sizes, canonical_dtype(found.dtype))
            if dtype is None and canonical_dtype(found.dtype) != kind.dtype:
                raise ValueError(
                    f"{name}: the callback returned {found.dtype} for the index {_text(index)}, and {kind.dtype} before"
                    ": parts have one dtype; give `dtype` to convert them"
                )
            wanted = tuple(high - low for low, high in box)
            if found.shape != wanted:
                raise ValueError(
                    f"{name}: the callback returned shape {found.shape} for the index {_text(index)}, where {device} "
                    f"holds {wanted} of {sizes}"
                )
            parts[box] = padded(found.astype(kind.dtype), where.shard_shape(sizes))
        pieces.append(parts[box])
    if kind is None:
        raise ValueError(f"{name}: this process has no device in {where}, so that it can hold no part")
    buffers = put(pieces, where.devices, where.local_devices, where.kind)
    return Array.of(buffers, array_signature(kind, where, True))


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: Any, arrays: Sequence[Array], *, dtype: Any = None
) -> Array:
    """The array whose parts are `arrays`: one on each device of this process, in any order. No part is copied that lies
    in the memory of its device where it should.

    >>> mesh = jax.make_mesh((2,), ("rows",))
    >>> parts = [jax.device_put(np.full(2, number), device) for number, device in enumerate(mesh.devices)]
    >>> jax.make_array_from_single_device_arrays((4,), jax.NamedSharding(mesh, P("rows")), parts)
    Array([0, 0, 1, 1], dtype=int32)
    """
    name = "make_array_from_single_device_arrays"
    sizes = tuple(int(size) for size in shape)
    where = _checked(name, sharding, sizes)
    given = _by_device(name, where, arrays)
    kind = ArrayType(sizes, canonical_dtype(dtype) if dtype is not None else next(iter(given.values())).type.dtype)
    piece = where.shard_shape(sizes)
    pieces = []
    for device, index in where.addressable_devices_indices_map(sizes).items():
        part = given[device]
        wanted = tuple(span.stop - span.start for span in index)
        if part.type.shape != wanted:
            raise ValueError(
                f"{name}: the array on {device} is {part.type}, but that device holds {wanted} of {sizes}: "
                f"{_text(index)} in {where}"
            )
        if part.type.dtype != kind.dtype:
            raise ValueError(f"{name}: the array on {device} is {part.type}, but the whole has dtype {kind.dtype}")
        if part.type.shape != piece:
            box = tuple((0, size) for size in wanted)
            (part,) = installed.executor.call_list(assemble_blocks, [part], {"boxes": (box,), "shape": piece})
        pieces.append(transfer(part, SingleDeviceSharding(device, memory_kind=where.kind)).buffers)
    held = kind.with_shape(piece).physical
    buffers = join(pieces, held.shape, held.dtype, where.devices, where.local_devices, where.kind)
    return Array.of(buffers, array_signature(kind, where, True))


def make_array_from_process_local_data(
    sharding: Any, local_data: Any, global_shape: Sequence[int] | None = None
) -> Array:
    """The array of which each process gives its own part.

    Along each dim `local_data` is either whole, or just what this process's devices hold of it, in order. Without
    `global_shape`, it is the latter wherever processes hold different parts of a dim.

    >>> rows = jax.NamedSharding(jax.make_mesh((4,), ("rows",)), P("rows"))
    >>> jax.make_array_from_process_local_data(rows, np.arange(8)).shape
    (8,)
    """
    name = "make_array_from_process_local_data"
    data = np.asarray(local_data)
    if isinstance(sharding, PartitionSpec):
        sharding = sharding_in_force(sharding, name)
    if not isinstance(sharding, Sharding):
        raise TypeError(f"{name} needs a Sharding, not {sharding!r}")
    sizes = _whole_shape(sharding, data.shape) if global_shape is None else tuple(int(size) for size in global_shape)
    where = _checked(name, sharding, sizes)
    if len(sizes) != data.ndim:
        raise ValueError(f"{name}: local data of shape {data.shape} has another rank than global_shape {sizes}")
    held = _held(where, sizes)
    offsets: list[dict[int, int]] = []  # for each dim: where a part of the whole starts in the local data
    for dim, spans in enumerate(held):
        here = sum(high - low for low, high in spans)
        if data.shape[dim] not in (here, sizes[dim]):
            raise ValueError(
                f"{name}: dim {dim} of the local data is {data.shape[dim]} long, where this process's devices hold "
                f"{here} of {sizes[dim]}: give that part, or the whole dim"
            )
        at, starts = 0, {}
        for low, high in spans:
            starts[low] = low if data.shape[dim] == sizes[dim] else at
            at += high - low
        offsets.append(starts)

    def part(index: tuple[slice, ...]) -> NumpyArray:
        starts = [offsets[dim][span.start] if span.stop > span.start else 0 for dim, span in enumerate(index)]
        return data[tuple(slice(at, at + s.stop - s.start) for at, s in zip(starts, index, strict=True))]

    return make_array_from_callback(sizes, where, part, dtype=type_of(data, name).dtype)


def _checked(name: str, sharding: Any, shape: tuple[int, ...]) -> Sharding:
    where = sharding_in_force(sharding, name) if isinstance(sharding, PartitionSpec) else sharding
    if not isinstance(where, Sharding):
        raise TypeError(f"{name} needs a Sharding, not {sharding!r}")
    try:
        open_dims = where.pin(shape).open_dims
    except ShardingError as error:
        raise ShardingError(f"{name}: cannot lay out an array of shape {shape}.\n  {error}") from None
    if open_dims:
        raise ShardingError(f"{name}: {where} leaves dims open, and only a planner can close them")
    return where


def _by_device(name: str, where: Sharding, arrays: Sequence[Any]) -> dict[Any, Array]:
    given: dict[Any, Array] = {}
    for number, array in enumerate(arrays):
        if not isinstance(array, Array):
            raise TypeError(f"{name}: array {number} is {array!r}, not an array that lies on a device")
        if not isinstance(array.sharding, SingleDeviceSharding):
            raise ValueError(f"{name}: array {number} lies in {array.sharding}, not on one device")
        (device,) = array.sharding.devices
        if device not in where.addressable_devices:
            raise ValueError(f"{name}: array {number} lies on {device}, which is no device of this process in {where}")
        if device in given:
            raise ValueError(f"{name}: two arrays lie on {device}; there should be one on each device")
        given[device] = array
    if missing := [str(device) for device in where.local_devices if device not in given]:
        raise ValueError(f"{name}: no array lies on {', '.join(missing)}; there should be one on each device")
    return given


def _held(where: Sharding, shape: tuple[int, ...]) -> list[list[Span]]:
    """For each dim, the stretches of it that this process's devices hold, in order, without empty ones."""
    indices = where.addressable_devices_indices_map(shape).values()
    spans = [{(index[dim].start, index[dim].stop) for index in indices} for dim in range(len(shape))]
    return [sorted(span for span in found if span[0] < span[1]) for found in spans]


def _whole_shape(where: Sharding, local: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the array of which each process has `local`, cut evenly among processes."""
    probe = (where.num_devices,) * len(local)
    held = [sum(high - low for low, high in spans) for spans in _held(where, probe)]
    return tuple(size * where.num_devices // part if part else size for size, part in zip(local, held, strict=True))


def _text(index: tuple[slice, ...]) -> str:
    return f"[{', '.join(f'{part.start}:{part.stop}' for part in index)}]"
