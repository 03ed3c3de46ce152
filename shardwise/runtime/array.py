"""Array: elements on one or many devices. It has a type, a sharding, and the buffers that jaxlib holds for it."""

from functools import lru_cache
from typing import Any, final

import numpy as np

from shardwise._jaxlib import put, read_pieces
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.methods import ArrayMethods
from shardwise.compiler.partition.simulate import piece_index
from shardwise.runtime.client import local_devices
from shardwise.runtime.sharding import Sharding, SingleDeviceSharding


@final
class Signature:
    """Type, sharding and commitment of an array; interned, so that a call's cache compares identities.

    `committed`: the user said where the array lives. Others move to where they are needed.
    """

    __slots__ = ("committed", "sharding", "type")

    def __init__(self, type: ArrayType, sharding: Sharding, committed: bool):
        self.type = type
        self.sharding = sharding
        self.committed = committed


@lru_cache(maxsize=65536)
def signature(type: ArrayType, sharding: Sharding, committed: bool) -> Signature:
    """The one signature with these parts."""
    return Signature(type, sharding, committed)


@final
class Shard:
    """One device's part of an array."""

    def __init__(self, device: Any, index: tuple[slice, ...], data: np.ndarray[Any, Any], replica_id: int):
        self.device = device
        self.index = index
        self.data = data
        self.replica_id = replica_id

    def __repr__(self) -> str:
        return f"Shard(device={self.device}, index={self.index}, replica_id={self.replica_id}, data={self.data})"


class _Memory:
    """Whether any array of this process has given up its memory: only then is it worth asking each."""

    given_up = False


memory = _Memory()


@final
class Array(ArrayMethods):
    """An n-dimensional array on devices, immutable. Made by `shardwise.numpy`, `device_put` and compiled functions."""

    __slots__ = ("__weakref__", "buffers", "signature", "type")

    def __init__(self, buffers: Any, signature: Signature):
        self.buffers = buffers
        self.signature = signature
        self.type = signature.type

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
    def is_fully_addressable(self) -> bool:
        """Whether every part is on a device of this process."""
        return self.sharding.is_fully_addressable

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole array."""
        return bool(self.sharding.is_fully_replicated)  # type: ignore[attr-defined]

    @property
    def addressable_shards(self) -> list[Shard]:
        """The parts on this process's devices, without padding."""
        parts = []
        copies: dict[Any, int] = {}
        here = set(self.sharding.local_devices)
        pieces = iter(read_pieces(self.buffers))
        indices = piece_index(self.sharding.placement(self.type), self.sharding.mesh_shape)
        for device, index in zip(self.sharding.devices, indices, strict=True):
            key = tuple((part.start, part.stop) for part in index)
            copies[key] = replica = copies.get(key, -1) + 1
            if device in here:
                inside = next(pieces)[tuple(slice(0, part.stop - part.start) for part in index)]
                parts.append(Shard(device, index, inside, replica))
        return parts

    def numpy(self) -> np.ndarray[Any, Any]:
        """The whole array on the host."""
        if self.is_deleted():
            raise deleted_error(self.type, "an array that is read")
        if self.is_fully_replicated:
            return read_pieces(self.buffers)[0]
        if not self.is_fully_addressable:
            raise RuntimeError(
                f"this {self.type} in {self.sharding} has parts on other processes: read `addressable_shards`, "
                "or replicate it first with `device_put`"
            )
        whole = np.empty(self.type.shape, self.type.dtype)
        for shard in self.addressable_shards:
            whole[shard.index] = shard.data
        return whole

    def is_deleted(self) -> bool:
        """Whether the memory was given up: by `delete`, or by donation to a compiled function."""
        return bool(self.buffers.is_deleted())

    def delete(self) -> None:
        """Give up the memory now."""
        memory.given_up = True
        self.buffers.delete()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (np.array(self.numpy()), self.type)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Array":
        return place(self.numpy(), self.type, self.sharding, self.committed)

    def block_until_ready(self) -> "Array":
        """Wait until the elements are there."""
        self.buffers.block_until_ready()
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.numpy(), dtype=dtype, copy=copy)

    def item(self) -> Any:
        """The only element, as a Python scalar."""
        return self.numpy().item()

    def tolist(self) -> Any:
        """The elements as nested lists."""
        return self.numpy().tolist()

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __float__(self) -> float:
        return float(self.numpy())

    def __complex__(self) -> complex:
        return complex(self.numpy())

    def __index__(self) -> int:
        return self.numpy().__index__()

    def __format__(self, spec: str) -> str:
        return format(self.numpy()[()] if not self.type.ndim else self.numpy(), spec)

    def __repr__(self) -> str:
        if not (self.is_fully_addressable or self.is_fully_replicated):
            return f"Array({self.type}, {self.sharding}, parts on other processes)"
        body = np.array2string(self.numpy(), separator=", ", prefix="Array(")
        return f"Array({body}, dtype={self.type.dtype})"

    def __str__(self) -> str:
        if not (self.is_fully_addressable or self.is_fully_replicated):
            return repr(self)
        return str(self.numpy())


def _restored(host: np.ndarray[Any, Any], type: ArrayType) -> Array:
    """A pickled array, on this process's first device: shardings belong to the process that made them."""
    return place(host, type, SingleDeviceSharding(local_devices()[0]), committed=False)


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
        return Array(put([host], sharding.devices, sharding.devices), signature(type, sharding, committed))
    placement = sharding.placement(type)
    shape = placement.piece_shape(sharding.mesh_shape)
    here = set(sharding.local_devices)
    pieces = []
    for device, index in zip(sharding.devices, piece_index(placement, sharding.mesh_shape), strict=True):
        if device in here:
            piece = host[index]
            if piece.shape != shape:
                padding = [(0, whole - part) for whole, part in zip(shape, piece.shape, strict=True)]
                piece = np.pad(piece, padding)
            pieces.append(piece)
    return Array(put(pieces, sharding.devices, sharding.local_devices), signature(type, sharding, committed))
