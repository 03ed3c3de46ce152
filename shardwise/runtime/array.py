"""Array: elements on one or many devices. It has a type, a sharding, and the buffers that jaxlib holds for it."""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any, final

import numpy as np

from shardwise._jaxlib import (
    Device,
    RuntimeFailure,
    block_until_ready,
    join,
    put,
    split,
    start_copy_to_host,
    to_dlpack,
    to_numpy,
)
from shardwise.caches import registered_cache
from shardwise.compiler.arrays.methods import ArrayMethods
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.shape.slicing import Slice
from shardwise.config import config
from shardwise.runtime.array_repr import Span, array_html, array_repr, array_str
from shardwise.runtime.client import local_devices
from shardwise.runtime.out_of_memory import check_memory
from shardwise.runtime.sharding import PositionalSharding, Sharding, SingleDeviceSharding
from shardwise.runtime.transfer_guard import check_transfer

DLPACK_DEVICES = {"cpu": 1, "gpu": 2, "cuda": 2, "rocm": 10}  # the numbers of the standard


@final
class ArraySignature:
    """Type, sharding and commitment of an array; interned, so that a call's cache compares identities.

    `committed`: the user said where the array lives. Others move to where they are needed.
    """

    __slots__ = ("committed", "sharding", "type")

    def __init__(self, type: ArrayType, sharding: Sharding, committed: bool):
        self.type = type
        self.sharding = sharding
        self.committed = committed


@lru_cache(maxsize=65536)
def array_signature(type: ArrayType, sharding: Sharding, committed: bool) -> ArraySignature:
    """The one signature with these parts."""
    return ArraySignature(type, sharding, committed)


@final
class Shard:
    """One device's part of an array: its place in the whole, and how many devices before it hold the same part."""

    def __init__(
        self, device: Any, index: tuple[slice, ...], replica_id: int, type: ArrayType, piece: Any, kind: str | None
    ):
        self.device = device
        self.index = index
        self.replica_id = replica_id
        self._type = type  # of the piece: with padding
        self._piece = piece  # Buffers; None where the device belongs to another process
        self._kind = kind  # of the memory, where the device does not compute in it

    @cached_property
    def data(self) -> "Array | None":
        """The part as an array on its device, without padding; None where the device belongs to another process."""
        if self._piece is None:
            return None
        return self._cut(_spans(self.index))

    def block(self, spans: tuple[Span, ...]) -> Any:
        """Buffers with the elements in these spans of the whole array, which lie inside this part."""
        return self._cut(spans).buffers

    def _cut(self, spans: tuple[Span, ...]) -> "Array":
        """These elements as an array on the device, in the memory in which the part is."""
        piece = single_device_array(self._piece, self._type, self.device, self._kind)
        starts = tuple(low - part.start for (low, _), part in zip(spans, self.index, strict=True))
        ends = tuple(high - part.start for (_, high), part in zip(spans, self.index, strict=True))
        if ends == self._type.shape and not any(starts):
            return piece
        (found,) = installed.executor.run(Slice(starts, ends, (1,) * len(starts)), (piece,))
        return installed.executor.transfer(found, piece.sharding)  # type: ignore[no-any-return]

    def numpy(self) -> np.ndarray[Any, Any]:
        """The part on the host, without padding."""
        return to_numpy(self._piece)[tuple(slice(0, size) for size in _sizes(self.index))]

    def start_copy_to_host(self) -> None:
        start_copy_to_host(self._piece)

    def __repr__(self) -> str:
        return f"Shard(device={self.device}, index={self.index}, replica_id={self.replica_id}, data={self.data})"


def _spans(index: tuple[slice, ...]) -> tuple[Span, ...]:
    return tuple((part.start, part.stop) for part in index)


def _sizes(index: tuple[slice, ...]) -> tuple[int, ...]:
    return tuple(part.stop - part.start for part in index)


class _Memory:
    """Whether any array of this process has given up its memory: only then is it worth asking each."""

    any_donated = False


memory = _Memory()


@final
class Array(ArrayMethods):
    """An n-dimensional array on devices, immutable. Made by `shardwise.numpy`, `device_put` and compiled functions."""

    __slots__ = ("__weakref__", "buffers", "run", "signature", "type")

    buffers: Any
    run: object  # the results of one run share it: once one of them is there, all are
    signature: ArraySignature
    type: ArrayType

    @staticmethod
    def of(buffers: Any, signature: ArraySignature) -> "Array":
        """The array with this type and sharding that jaxlib holds in these Buffers. There is no `__init__`: of many
        results, it would take a third of the time that it takes to wrap them."""
        array = Array()
        array.buffers = array.run = buffers
        array.signature = signature
        array.type = signature.type
        return array

    @property
    def sharding(self) -> Sharding:
        """Which device holds which part."""
        return self.signature.sharding

    @property
    def committed(self) -> bool:
        """Whether the user said where this array lives."""
        return self.signature.committed

    def devices(self) -> set[Any]:
        """The devices that hold a part."""
        return self.sharding.device_set

    @property
    def device(self) -> Any:
        """The device that holds the array; its sharding where there are many."""
        return self.sharding.devices[0] if isinstance(self.sharding, SingleDeviceSharding) else self.sharding

    def to_device(self, device: Any, *, stream: None = None) -> "Array":
        """The array on another device, or in another sharding."""
        if stream is not None:
            raise NotImplementedError("to_device: streams are not here: copies wait for what they copy by themselves")
        if not isinstance(device, (Device, Sharding)):
            raise TypeError(f"to_device needs a device or a Sharding, not {device!r}")
        where = SingleDeviceSharding(device) if isinstance(device, Device) else device
        moved = installed.executor.transfer(self, where)
        return Array.of(moved.buffers, array_signature(self.type, where, True))

    @property
    def is_fully_addressable(self) -> bool:
        """Whether every part is on a device of this process."""
        return self.sharding.is_fully_addressable

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole array."""
        return self.sharding.is_fully_replicated

    @property
    def global_shards(self) -> list[Shard]:
        """The parts on all devices. Those on devices of other processes have no data here."""
        parts = []
        copies: dict[Any, int] = {}
        here = self.sharding.addressable_devices
        placement = self.sharding.placement(self.type)
        kind = self.type.with_shape(placement.shard_shape(self.sharding.mesh_shape))
        pieces = iter(split(self._alive().buffers))
        indices = self.sharding.shard_indices(self.type.shape)
        for device, index in zip(self.sharding.devices, indices, strict=True):
            key = _spans(index)
            copies[key] = replica = copies.get(key, -1) + 1
            piece = next(pieces) if device in here else None
            parts.append(Shard(device, index, replica, kind, piece, self.sharding.kind))
        return parts

    @property
    def addressable_shards(self) -> list[Shard]:
        """The parts on this process's devices."""
        here = self.sharding.addressable_devices
        return [shard for shard in self.global_shards if shard.device in here]

    def addressable_data(self, index: int) -> "Array":
        """The part on this process's device number `index`, without padding."""
        data = self.addressable_shards[index].data
        assert data is not None  # the device is of this process
        return data

    def distinct_shards(self) -> list[Shard]:
        """The parts that this process has, each once."""
        return list({_spans(shard.index): shard for shard in reversed(self.addressable_shards)}.values())

    def _alive(self) -> "Array":
        if self.is_deleted():
            raise deleted_error(self.type, "an array that is read")
        return self

    @property
    def words(self) -> "Array":
        """Of keys, the array of their words, which shares their memory; of others, the array itself."""
        if not is_key(self.type.dtype):
            return self
        return Array.of(
            self.buffers, array_signature(self.type.physical, key_data_sharding(self.sharding), self.committed)
        )

    def numpy(self) -> np.ndarray[Any, Any]:
        """The whole array on the host."""
        if is_key(self.type.dtype):
            raise TypeError(
                f"numpy has no arrays of keys, such as this {self.type}; `random.key_data` gives their words"
            )
        if self.is_fully_replicated:
            return to_numpy(split(self._alive().buffers)[0])
        if not self.is_fully_addressable:
            raise RuntimeError(
                f"this {self.type} in {self.sharding} has parts on other processes: read `addressable_shards`, "
                "or replicate it first with `device_put`"
            )
        whole = np.empty(self.type.shape, self.type.dtype)
        for part in self.distinct_shards():
            whole[part.index] = part.numpy()
        return whole

    def _read(self) -> np.ndarray[Any, Any]:
        """The same for Python and numpy, which read arrays without being told to by `device_get`."""
        if config.transfer_guard_device_to_host != "allow":
            check_transfer("device_to_host", self.type)
        return self._alive().block_until_ready().numpy()  # jaxlib may crash on what has failed

    def copy_to_host_async(self) -> None:
        """Begin to copy to the host what this process has of the array; reading it later waits for less."""
        for part in self.distinct_shards():
            part.start_copy_to_host()

    def on_device_size_in_bytes(self) -> int:
        """The memory that this process's devices use for it, padding and copies included."""
        return sum(int(piece.on_device_size_in_bytes()) for piece in split(self._alive().buffers))

    def is_deleted(self) -> bool:
        """Whether the memory was given up: by `delete`, or by donation to a compiled function."""
        return bool(self.buffers.is_deleted())

    def delete(self) -> None:
        """Give up the memory now."""
        memory.any_donated = True
        self.buffers.delete()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (np.array(self.words.numpy()), self.type)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Array":
        words = self.words
        copy = place(words.numpy(), words.type, words.sharding, self.committed)
        return Array.of(copy.buffers, self.signature)

    def block_until_ready(self) -> "Array":
        """Wait until the elements are there."""
        try:
            self.buffers.block_until_ready()
        except RuntimeFailure as error:
            check_memory(error, f"the program that makes this {self.type}")
            raise
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self._read(), dtype=dtype, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        device = self._only_device()
        return DLPACK_DEVICES[device.platform], 0 if device.platform == "cpu" else int(device.id)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule with which another library shares the memory (with `copy`, that of a copy)."""
        device = self._only_device()
        if dl_device is not None and tuple(map(int, dl_device)) != self.__dlpack_device__():
            raise BufferError(f"this {self.type} is on {device}: move it first, with `to_device`")
        self._alive().block_until_ready()
        try:
            return to_dlpack((self.copy() if copy else self).buffers)
        except RuntimeFailure as error:
            raise BufferError(f"{self.type} cannot be shared by DLPack: {error}") from None

    def _only_device(self) -> Any:
        """The device that holds the array."""
        devices = self.sharding.devices
        if len(devices) > 1:
            raise BufferError(
                f"this {self.type} lies on {len(devices)} devices, in {self.sharding}, and a DLPack capsule is for "
                "one: share `x.addressable_shards[i].data`, or gather it with `device_put(x, device)`"
            )
        return devices[0]

    def is_ready(self) -> bool:
        """Whether the elements are there already."""
        return bool(self.buffers.is_ready())

    def unsafe_buffer_pointer(self) -> int:
        """Where the elements are in the memory of the only device that holds them."""
        self._only_device()
        return int(split(self._alive().buffers)[0].unsafe_buffer_pointer())

    def item(self, *args: int) -> Any:
        """The only element, or the one at this index, as a Python scalar."""
        return self._read().item(*args)

    def tobytes(self, order: Any = "C") -> bytes:
        """The elements as bytes, as numpy's."""
        return self._read().tobytes(order)

    def tolist(self) -> Any:
        """The elements as nested lists."""
        return self._read().tolist()

    def __bool__(self) -> bool:
        return bool(self._read())

    def __int__(self) -> int:
        return int(self._read())

    def __float__(self) -> float:
        return float(self._read())

    def __complex__(self) -> complex:
        return complex(self._read())

    def __index__(self) -> int:
        return self._read().__index__()

    def __format__(self, spec: str) -> str:
        return format(self._read()[()] if not self.type.ndim else self._read(), spec)

    def __repr__(self) -> str:
        if self.is_deleted():
            return f"Array({self.type}, memory given up)"
        if not (self.is_fully_addressable or self.is_fully_replicated):
            return f"Array({self.type}, {self.sharding}, parts on other processes)"
        if is_key(self.type.dtype):
            return f"Array({self.type.shape}, dtype={self.type.dtype}) overlaying:\n{self.words}"
        return array_repr(self)

    def __str__(self) -> str:
        if self.is_deleted() or not (self.is_fully_addressable or self.is_fully_replicated):
            return repr(self)
        return repr(self) if is_key(self.type.dtype) else array_str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{self!r}</pre>" if self.is_deleted() else array_html(self)


@final
class ResultTemplate:
    """Arrays for the results of a program: made before it runs, and given their Buffers when it does. As `Array.of`,
    without a call for each."""

    def __init__(self, signatures: Sequence[ArraySignature]):
        self._signatures = tuple(signatures)

    def empty(self) -> list[Array]:
        arrays, run = [], object()
        for signature in self._signatures:
            array = Array()
            array.run = run
            array.signature = signature
            array.type = signature.type
            arrays.append(array)
        return arrays

    @staticmethod
    def filled(arrays: list[Array], found: list[Any]) -> list[Array]:
        for array, buffers in zip(arrays, found, strict=True):
            array.buffers = buffers
        return arrays


def wait(arrays: Sequence[Array]) -> None:
    """Until the elements of all are there. Of what one run made, one is asked, unless it may have been deleted."""
    if memory.any_donated:
        block_until_ready([array.buffers for array in arrays])
    else:
        block_until_ready(list({id(array.run): array.buffers for array in arrays}.values()))


def _restored(host: np.ndarray[Any, Any], type: ArrayType) -> Array:
    """A pickled array, on this process's first device: shardings belong to the process that made them."""
    here = SingleDeviceSharding(local_devices()[0])
    return Array.of(place(host, type.physical, here, committed=False).buffers, array_signature(type, here, False))


def key_data_sharding(sharding: Sharding) -> Sharding:
    """How the words of keys lie that lie in `sharding`: their dim, which comes last, is whole everywhere."""
    return sharding.reshape((*sharding.shape, 1)) if isinstance(sharding, PositionalSharding) else sharding


def single_device_array(piece: Any, type: ArrayType, device: Any, kind: str | None = None) -> Array:
    """Buffers of one device as an array there; it shares their memory, which is of this kind."""
    held = type.physical
    buffers = join([piece], held.shape, held.dtype, (device,), (device,), kind)
    return Array.of(buffers, array_signature(type, SingleDeviceSharding(device, memory_kind=kind), True))


@final
class HostArgument:
    """An argument in the host's memory, which goes to where a program wants it; to where `signature` says if nobody
    says where."""

    __slots__ = ("signature", "type", "value")

    def __init__(self, value: np.ndarray[Any, Any], signature: ArraySignature):
        self.value = value
        self.signature = signature
        self.type = signature.type

    def at(self, sharding: Sharding | None = None) -> Array:
        """As an array; committed to `sharding`, if one is given."""
        return place(self.value, self.type, sharding or self.signature.sharding, committed=sharding is not None)

    @property
    def buffers(self) -> Any:
        return self.at().buffers

    def is_deleted(self) -> bool:
        return False


def deleted_error(type: ArrayType, what: str) -> RuntimeError:
    """The error for a use after donation or deletion."""
    return RuntimeError(
        f"{what} is a {type} whose memory was given up: it was donated to a compiled function, or deleted. "
        "Use the function's result in its place, or do not donate it."
    )


def place(value: np.ndarray[Any, Any], type: ArrayType, sharding: Sharding, committed: bool) -> Array:
    """A host array as an Array of `type`: each local device gets its part, padded with zeros."""
    host = np.asarray(value, type.dtype)
    if isinstance(sharding, SingleDeviceSharding):
        buffers = put([host], sharding.devices, sharding.devices, sharding.kind)
        return Array.of(buffers, array_signature(type, sharding, committed))
    shape, indices = _parts_here(sharding, type.shape)
    pieces = [padded(host[index], shape) for index in indices]
    buffers = put(pieces, sharding.devices, sharding.local_devices, sharding.kind)
    return Array.of(buffers, array_signature(type, sharding, committed))


@registered_cache(maxsize=4096)
def _parts_here(sharding: Sharding, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[tuple[slice, ...], ...]]:
    """The shape of a piece, and the parts of an array of this shape that this process's devices hold."""
    return sharding.shard_shape(shape), tuple(sharding.addressable_devices_indices_map(shape).values())


def padded(part: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """A part with zeros past its end, up to the shape of a piece."""
    if part.shape == shape:
        return part
    return np.pad(part, [(0, whole - size) for whole, size in zip(shape, part.shape, strict=True)])
