"""Create arrays from their shards: from a callback, from single-device arrays, or from each process's data."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise import tree
from shardwise.api.meshes.placement import device_put
from shardwise.base._jaxlib import ALIAS_ALIGNMENT, Device, put_aliased, put_writable
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.dtypes import SMALL_INTEGERS, is_key
from shardwise.compiler.ir import dispatch
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.compiler.trace.tracer import Tracer
from shardwise.errors import ShardingError, UnexpectedTracerError
from shardwise.execute.transfer import assemble_blocks, transfer
from shardwise.runtime.array import ArrayImpl, array_signature, join_shards, padded, put_shards
from shardwise.runtime.box import Box, Span, box_index, box_of, box_shape, whole
from shardwise.runtime.sharding import SingleDeviceSharding, resolve_sharding
from shardwise.typing import ArrayLike, DTypeLike

NumpyArray = np.ndarray[Any, Any]


def make_array_from_callback(
    shape: Sequence[int],
    sharding: Sharding | PartitionSpec,
    data_callback: Callable[[tuple[slice, ...]], Any],
    dtype: DTypeLike | None = None,
) -> Array:
    """Create a sharded array from a function that returns each shard's data.

    The unsharded array never exists in memory. Replicas of a shard share one call.

    Args:
        shape: the shape of the array.
        sharding: a `Sharding`, or a PartitionSpec on the current mesh.
        data_callback: a function from a shard's index, a tuple of slices, to its data. It is called for the shards on
            devices of this process.
        dtype: the dtype of the array; by default, that of the first shard.

    Returns:
        The array.

    Raises:
        TypeError: if `sharding` is not a sharding.
        ShardingError: if `sharding` cannot shard an array of this shape, or leaves a dim UNCONSTRAINED.
        ValueError: if the data of a shard has a wrong shape, if shards differ in dtype and `dtype` is None, or if this
            process has no device in `sharding` and `dtype` is None.

    Example:
        >>> rows = jax.NamedSharding(jax.make_mesh((4,), ("rows",)), P("rows"))
        >>> jax.make_array_from_callback((8,), rows, lambda index: np.arange(8)[index] ** 2)
        Array([ 0,  1,  4,  9, 16, 25, 36, 49], dtype=int32)
    """
    name = "make_array_from_callback"
    sizes = tuple(int(size) for size in shape)
    checked_sharding = _check_sharding(name, sharding, sizes)
    if checked_sharding.is_unreduced:
        raise ShardingError(
            f"{name}: {checked_sharding} is unreduced, and the callback does not know which term to return. Pass one "
            "term per device to `make_array_from_single_device_arrays`, or `reshard` the array afterwards."
        )
    type: ArrayType | None = None if dtype is None else ArrayType(sizes, canonical_dtype(dtype))
    data_by_span: dict[Box, NumpyArray] = {}
    shards = []
    indices = checked_sharding.addressable_devices_indices_map(sizes)
    for device, bounds in checked_sharding.local_shard_indices(sizes).items():
        index, spans = indices[device], box_of(bounds)
        if spans not in data_by_span:
            shard = data_callback(index)
            if isinstance(shard, Tracer):
                raise UnexpectedTracerError(
                    f"{name} cannot be called with traced data: the callback returned {shard!r}. Call it outside of "
                    "traced functions, or use with_sharding_constraint."
                )
            holds_keys = isinstance(shard, ArrayImpl) and is_key(shard.type.dtype)
            data = np.asarray(shard.words if holds_keys else shard)
            data_dtype = shard.type.dtype if holds_keys else canonical_dtype(data.dtype)
            if type is None:
                type = ArrayType(sizes, data_dtype)
            if dtype is None and data_dtype != type.dtype:
                raise ValueError(
                    f"{name}: the callback returned {data_dtype} for the index {_index_text(index)}, but {type.dtype} "
                    "for the first: all shards must have the same dtype. Pass `dtype` to convert them."
                )
            physical = type.physical
            words = physical.shape[len(sizes) :]
            expected = (*(high - low for low, high in spans), *words)
            if data.shape != expected:
                raise ValueError(
                    f"{name}: the callback returned an array of shape {data.shape} for the index {_index_text(index)}, "
                    f"but the shard on {device} has shape {expected}"
                )
            data_by_span[spans] = padded(data.astype(physical.dtype), (*checked_sharding.shard_shape(sizes), *words))
        shards.append(data_by_span[spans])
    if type is None:
        raise ValueError(
            f"{name}: this process has no device in {checked_sharding}, so the dtype is not known: pass `dtype`"
        )
    buffers = put_shards(shards, type.with_shape(checked_sharding.shard_shape(sizes)), checked_sharding)
    return ArrayImpl.from_buffers(buffers, array_signature(type, checked_sharding, True))


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: Sharding | PartitionSpec, arrays: Sequence[Array], *, dtype: DTypeLike | None = None
) -> Array:
    """Create a sharded array from arrays that are its shards.

    A shard is not copied if it is in the memory that `sharding` names.

    Args:
        shape: the shape of the array.
        sharding: a `Sharding`, or a PartitionSpec on the current mesh.
        arrays: single-device arrays, one on each device of this process in `sharding`, in any order.
        dtype: the dtype of all arrays; by default, that of the first.

    Returns:
        The array.

    Raises:
        TypeError: if `sharding` is not a sharding, or an element of `arrays` is not an array on a device.
        ShardingError: if `sharding` cannot shard an array of this shape, or leaves a dim UNCONSTRAINED.
        ValueError: if `arrays` does not have exactly one array on each device, or if an array has a wrong shape or
            dtype.

    Example:
        >>> mesh = jax.make_mesh((2,), ("rows",))
        >>> shards = [jax.device_put(np.full(2, number), device) for number, device in enumerate(mesh.devices)]
        >>> jax.make_array_from_single_device_arrays((4,), jax.NamedSharding(mesh, P("rows")), shards)
        Array([0, 0, 1, 1], dtype=int32)
    """
    name = "make_array_from_single_device_arrays"
    sizes = tuple(int(size) for size in shape)
    checked_sharding = _check_sharding(name, sharding, sizes)
    by_device = _arrays_by_device(name, checked_sharding, arrays)
    if dtype is None and not by_device:
        raise ValueError(
            f"{name}: this process has no device in {checked_sharding}, so the dtype is not known: pass `dtype`"
        )
    out_dtype = canonical_dtype(dtype) if dtype is not None else next(iter(by_device.values())).type.dtype
    type = ArrayType(sizes, out_dtype)
    padded_shape = checked_sharding.shard_shape(sizes)
    shards = []
    for device, index in checked_sharding.local_shard_indices(sizes).items():
        shard = by_device[device]
        expected = tuple(span.stop - span.start for span in index)
        if shard.type.shape != expected:
            raise ValueError(
                f"{name}: the array on {device} is {shard.type}, but the shard on that device has shape {expected}: "
                f"it is {_index_text(index)} of an array of shape {sizes} with {checked_sharding}"
            )
        if shard.type.dtype != type.dtype:
            raise ValueError(
                f"{name}: the array on {device} is {shard.type}, but the dtype of the result is {type.dtype}"
            )
        if shard.type.shape != padded_shape:
            box = tuple((0, size) for size in expected)
            (shard,) = dispatch.executor.call_list(assemble_blocks, [shard], {"boxes": (box,), "shape": padded_shape})
        shards.append(transfer(shard, SingleDeviceSharding(device, memory_kind=checked_sharding.nondefault_memory)))
    return join_shards(shards, type, checked_sharding)


def make_array_from_process_local_data(sharding: object, local_data: object, global_shape: object = None) -> Any:
    """Create a sharded array to which each process contributes the data of its own devices.

    Args:
        sharding: a `Sharding`, a PartitionSpec on the current mesh, a device, or a tree prefix of these.
        local_data: this process's data. Along each dim it has either the full size, or the elements that the devices
            of this process hold, in order. Or a pytree of arrays.
        global_shape: the shape of the array, or a tree prefix of shapes. By default, every dim that processes hold
            different parts of is the concatenation of these parts, which must have equal sizes.

    Returns:
        The array, or a pytree of arrays like `local_data`.

    Raises:
        TypeError: if `sharding` is not a sharding.
        ShardingError: if `sharding` cannot shard an array of this shape, or leaves a dim UNCONSTRAINED.
        ValueError: if `sharding` or `global_shape` is not a tree prefix of `local_data`, if `local_data` and
            `global_shape` differ in rank, or if a dim of `local_data` has another size than described above.

    Example:
        >>> rows = jax.NamedSharding(jax.make_mesh((4,), ("rows",)), P("rows"))
        >>> jax.make_array_from_process_local_data(rows, np.arange(8)).shape
        (8,)
    """
    name = "make_array_from_process_local_data"
    leaves, structure = tree.flatten(local_data)
    if not any(isinstance(leaf, (np.ndarray, Array)) for leaf in leaves):  # such as a list of numbers
        leaves, structure, local_data = [local_data], tree.structure(0), 0
    try:
        shardings = tree.broadcast_prefix(sharding, local_data, _is_sharding)
        shapes = tree.broadcast_prefix(global_shape, local_data, _is_shape)
    except tree.TreeMismatch as mismatch:
        raise ValueError(f"{name}: sharding and global_shape must be tree prefixes of local_data: {mismatch}") from None
    return structure.unflatten(
        [_from_local_data(name, *arguments) for arguments in zip(shardings, leaves, shapes, strict=True)]
    )


def _is_sharding(x: object) -> bool:
    return isinstance(x, (Sharding, PartitionSpec, Device))


def _is_shape(x: object) -> bool:
    return x is None or (isinstance(x, (tuple, list)) and all(isinstance(n, (int, np.integer, type(None))) for n in x))


def _from_local_data(name: str, sharding: object, local_data: ArrayLike, global_shape: Sequence[int] | None) -> Array:
    data = np.asarray(local_data)
    sharding = resolve_sharding(sharding, name)
    if isinstance(sharding, Device):
        sharding = SingleDeviceSharding(sharding)
    if not isinstance(sharding, Sharding):
        raise TypeError(f"{name} needs a Sharding, not {sharding!r}")
    if global_shape is not None and None in global_shape:
        raise ValueError(
            f"{name}: None for one dim is not supported, as in global_shape={tuple(global_shape)}: pass the size of "
            "every dim, or None for the whole shape"
        )
    sizes = _infer_global_shape(sharding, data.shape) if global_shape is None else tuple(map(int, global_shape))
    checked_sharding = _check_sharding(name, sharding, sizes)
    if len(sizes) != data.ndim:
        raise ValueError(
            f"{name}: the local data has rank {data.ndim} (shape {data.shape}), but global_shape has rank {len(sizes)} "
            f"({sizes})"
        )
    local_spans = _local_spans(checked_sharding, sizes)
    local_starts: list[dict[int, int]] = []  # per dim: from a span's start in the array to its start in the local data
    for dim, spans in enumerate(local_spans):
        local_size = sum(high - low for low, high in spans)
        if data.shape[dim] not in (local_size, sizes[dim]):
            raise ValueError(
                f"{name}: dim {dim} of the local data has size {data.shape[dim]}, but the devices of this process hold "
                f"{local_size} of its {sizes[dim]} elements: pass just these, or the full dim"
            )
        offset, starts = 0, {}
        for low, high in spans:
            starts[low] = low if data.shape[dim] == sizes[dim] else offset
            offset += high - low
        local_starts.append(starts)

    def shard_data(index: tuple[slice, ...]) -> NumpyArray:
        local = []
        for part, size, starts in zip(index, sizes, local_starts, strict=True):
            low, high, _ = part.indices(size)
            start = starts[low] if high > low else 0
            local.append(slice(start, start + high - low))
        return data[tuple(local)]

    return make_array_from_callback(sizes, checked_sharding, shard_data, dtype=type_of(data, name).dtype)


def _check_sharding(name: str, sharding: object, shape: tuple[int, ...]) -> Sharding:
    """Return a user's sharding as a `Sharding` that determines the layout of an array of this shape."""
    resolved = resolve_sharding(sharding, name)
    if not isinstance(resolved, Sharding):
        raise TypeError(f"{name} needs a Sharding, not {sharding!r}")
    try:
        open_dims = resolved.pin(shape).open_dims
        resolved.check_even(shape)
    except ShardingError as error:
        raise ShardingError(f"{name}: cannot shard an array of shape {shape}.\n  {error}") from None
    if open_dims:
        raise ShardingError(
            f"{name}: {resolved} has UNCONSTRAINED dims, which only the planner of a compiled function can decide: "
            "name their mesh axes, or use None"
        )
    return resolved


def _arrays_by_device(name: str, sharding: Sharding, arrays: Sequence[Any]) -> dict[Any, ArrayImpl]:
    if not isinstance(arrays, (list, tuple)):
        raise TypeError(f"{name} needs a list of arrays, one per device, not {arrays!r}")
    by_device: dict[Any, ArrayImpl] = {}
    for index, array in enumerate(arrays):
        if isinstance(array, Tracer):
            raise ValueError(f"{name} needs concrete arrays, but arrays[{index}] is {array!r}")
        if not isinstance(array, ArrayImpl):
            raise TypeError(f"{name}: arrays[{index}] is {array!r}, not an array on a device: use `device_put` first")
        if not isinstance(array.sharding, SingleDeviceSharding):
            raise ValueError(f"{name}: arrays[{index}] has {array.sharding}, but must be on a single device")
        (device,) = array.sharding.devices
        if device not in sharding.addressable_devices:
            raise ValueError(
                f"{name}: arrays[{index}] is on {device}, which is not a device of this process in {sharding}"
            )
        if device in by_device:
            raise ValueError(f"{name}: two arrays are on {device}: pass exactly one array per device")
        by_device[device] = array
    if missing := [str(device) for device in sharding.local_devices if device not in by_device]:
        raise ValueError(f"{name}: no array is on {', '.join(missing)}: pass exactly one array per device")
    return by_device


def _local_spans(sharding: Sharding, shape: tuple[int, ...]) -> list[list[Span]]:
    """Return for each dim the nonempty ranges of it that this process's devices hold, in ascending order."""
    indices = sharding.local_shard_indices(shape).values()
    spans = [{(index[dim].start, index[dim].stop) for index in indices} for dim in range(len(shape))]
    return [sorted(span for span in dim_spans if span[0] < span[1]) for dim_spans in spans]


def _infer_global_shape(sharding: Sharding, local: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the array of which each process holds an equal part of shape `local`."""
    probe = (sharding.num_devices,) * len(local)
    held = [sum(high - low for low, high in spans) for spans in _local_spans(sharding, probe)]
    return tuple(size * sharding.num_devices // part if part else size for size, part in zip(local, held, strict=True))


def _index_text(index: tuple[slice, ...]) -> str:
    return f"[{', '.join(':' if part == slice(None) else f'{part.start}:{part.stop}' for part in index)}]"


def devices_by_box(shape: Sequence[int], sharding: Sharding) -> dict[Box, list[Any]]:
    """Return the distinct boxes of an array that this process holds, each with the devices that hold it."""
    boxes: dict[Box, list[Any]] = {}
    for device, index in sharding.local_shard_indices(tuple(shape)).items():
        boxes.setdefault(box_of(index), []).append(device)
    return boxes


def writable_shards(
    box: Box, dtype: np.dtype[Any], devices: Sequence[Any], shape: Sequence[int], sharding: Sharding
) -> tuple[dict[Any, Any], NumpyArray] | None:
    """Return shards by device, and their memory as an array of the box, to write the elements into.

    A single shard is in memory that XLA owns. Replicas share memory; XLA copies those that are donated. The elements
    must be written before any other code has the shards. The padding is zero. Returns None where the host cannot write
    into the memory of the devices, or has the elements in another representation.
    """
    is_writable = all(device.platform == "cpu" for device in devices) and sharding.nondefault_memory is None
    if not is_writable or dtype in SMALL_INTEGERS.values():
        return None
    shard_shape = sharding.shard_shape(tuple(shape))
    is_padded = box_shape(box) != shard_shape
    if len(devices) == 1:
        create = np.zeros if is_padded else np.empty
        buffers, memory = put_writable(create(shard_shape, dtype), devices[0])
        replicas = [buffers]
    else:
        memory = _aligned(shard_shape, dtype)
        if is_padded:
            memory[...] = np.zeros((), dtype)
        replicas = [put_aliased(memory, device) for device in devices]
    type = ArrayType(shard_shape, dtype)
    shards = {
        device: ArrayImpl.from_buffers(buffers, array_signature(type, SingleDeviceSharding(device), True))
        for device, buffers in zip(devices, replicas, strict=True)
    }
    return shards, memory[box_index(whole(box_shape(box)))]


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NumpyArray:
    """Return an uninitialized array whose memory devices can share."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + ALIAS_ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIAS_ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def put_box(data: NumpyArray, devices: Sequence[Any], shape: Sequence[int], sharding: Sharding) -> dict[Any, Any]:
    """Copy a box of an array of this shape to the devices that hold it, padded to the size of a shard.

    The host pads: a program on the device would change NaNs of narrow floats. `join_shards` makes an array of the
    shards of all devices of this process.
    """
    return copy_shard(padded(data, sharding.shard_shape(tuple(shape))), devices, sharding)


def copy_shard(shard: NumpyArray | ArrayImpl, devices: Sequence[Device], sharding: Sharding) -> dict[Any, Any]:
    """Copy a padded shard, on the host or on a device, to the devices that hold it."""
    memory = sharding.nondefault_memory
    return {device: device_put(shard, SingleDeviceSharding(device, memory_kind=memory)) for device in devices}
