"""ArrayImpl: an array on one or more devices, with a type, a sharding and the jaxlib buffers of its shards."""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final

import numpy as np

from shardwise.base._jaxlib import (
    Buffers,
    Device,
    RuntimeFailure,
    address_of,
    block_until_ready,
    clone,
    first_shard,
    is_compile_only,
    join,
    put,
    split,
    start_copy_to_host,
    to_dlpack,
    to_numpy,
)
from shardwise.base.caches import registered_cache
from shardwise.base.call_site import CallSite
from shardwise.base.config import config
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.scalars import check_index, check_scalar, check_truth_value
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir import dispatch
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import zero_term
from shardwise.compiler.ops.shape.slicing import Slice
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.named_sharding import NamedSharding, explicit_sharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import DeviceMismatchError, ShardingTypeError
from shardwise.runtime.array_repr import array_html, array_repr, array_str, local_part_str
from shardwise.runtime.box import Box, box_index, box_of, box_shape, box_size
from shardwise.runtime.client import local_devices, lowering_platform, process_index
from shardwise.runtime.memory_layout import Format, row_major
from shardwise.runtime.out_of_memory import array_needs, check_memory
from shardwise.runtime.process_set_registry import process_sets
from shardwise.runtime.sharding import PositionalSharding, SingleDeviceSharding, has_all_shards_here
from shardwise.runtime.transfer_guard import check_transfer
from shardwise.typing import DTypeLike

if TYPE_CHECKING:
    from shardwise.runtime.process_set import ProcessSet

DLPACK_DEVICES = {"cpu": 1, "cuda": 2, "rocm": 10}  # DLPack's device types, by PJRT's names of platforms


@final
class ArraySignature:
    """The type, the sharding and whether an array is committed; interned, so that cache keys compare identities.

    A `committed` array was placed by the user. An uncommitted one may be moved to where a program needs it. `canonical`
    is the signature whose spec has no trailing Nones, so that one program serves `P("x")` and `P("x", None)`.
    """

    __slots__ = ("canonical", "committed", "sharding", "type")

    def __init__(self, type: ArrayType, sharding: Sharding, committed: bool):
        self.type = type
        self.sharding = sharding
        self.committed = committed
        shortest = sharding.without_trailing_nones
        self.canonical = self if shortest is sharding else array_signature(type, shortest, committed)

    def __reduce__(self) -> tuple[Any, ...]:
        return array_signature, (self.type, self.sharding, self.committed)  # a pickled signature is interned again


def array_signature(type: ArrayType, sharding: Sharding, committed: bool) -> ArraySignature:
    """Return the interned signature. The sharding along Explicit mesh axes is added to the type."""
    spec = sharding.spec if isinstance(sharding, NamedSharding) else None
    return _interned_signature(type, sharding, spec, committed, config.remove_size_one_mesh_axis_from_type)


@lru_cache(maxsize=65536)
def _interned_signature(
    type: ArrayType, sharding: Sharding, spec: PartitionSpec | None, committed: bool, removes_size_one_axes: bool
) -> ArraySignature:
    """Return the signature. Shardings of one layout are equal, so the key includes the spec as the user wrote it.

    The key also includes the setting that `explicit_sharding` reads.
    """
    if type.explicit is not None and type.explicit.scoped:
        explicit = explicit_sharding(sharding, type.shape, scoped=True)
        is_same_mesh = explicit is not None and explicit.mesh.abstract == type.explicit.mesh.abstract
        if is_same_mesh:
            return ArraySignature(type.with_explicit(explicit), sharding, committed)
    return ArraySignature(type.with_explicit(explicit_sharding(sharding, type.shape)), sharding, committed)


def forget_signatures() -> None:
    """Empty the table of signatures, which refer to devices, when a process drops all of its clients."""
    _interned_signature.cache_clear()


@final
class Shard:
    """The shard of an array on one device, as `x.addressable_shards` lists it.

    Attributes:
        device: the device.
        index: the slices of the global array, `slice(None)` for unsharded dims.
        spans: the starts and ends of the shard along all dims.
        replica_id: the index of this replica of the shard.
        type: the type of the padded shard.
        buffers: its buffer; None if the device belongs to another process.
        memory_kind: the memory of the buffer; None for the device's default memory.
        origin: the processes that compute the array, if there are several.
        data: the shard as an array.

    Example:
        >>> [shard] = jnp.arange(3).addressable_shards
        >>> isinstance(shard, jax.Shard), shard.index
        (True, (slice(None, None, None),))
    """

    def __init__(
        self,
        device: Device,
        index: tuple[slice, ...],
        spans: Box,
        replica_id: int,
        type: ArrayType,
        buffers: Buffers | None,
        memory_kind: str | None,
        origin: "ProcessSet | None",
    ):
        self.device = device
        self.index = index
        self.spans = spans
        self.replica_id = replica_id
        self._type = type  # the type of the padded shard
        self._buffers = buffers  # None if the device belongs to another process
        self._memory_kind = memory_kind  # None for the device's default memory
        self._origin = origin  # the processes that compute the array, if there are several

    @cached_property
    def data(self) -> "ArrayImpl | None":
        """The shard as an array on its device, without padding; None if the device belongs to another process."""
        if self._buffers is None:
            return None
        return self._slice(self.spans)

    def read_block(self, spans: Box) -> np.ndarray[Any, Any]:
        """Read a block of this shard on the host. `spans` are relative to the global array."""
        return self._slice(spans).numpy()

    def _slice(self, spans: Box) -> "ArrayImpl":
        """Return a block of this shard as an array on its device, in the same memory."""
        shard = self._padded()
        starts = tuple(low - first for (low, _), (first, _) in zip(spans, self.spans, strict=True))
        ends = tuple(high - first for (_, high), (first, _) in zip(spans, self.spans, strict=True))
        if ends == self._type.shape and not any(starts):
            return shard
        (block,) = dispatch.executor.run(Slice(starts, ends, (1,) * len(starts)), (shard,))
        return dispatch.executor.transfer(block, shard.sharding)  # type: ignore[no-any-return]

    def _padded(self) -> "ArrayImpl":
        """Return the shard as an array on its device, with padding."""
        shard = single_device_array(self._buffers, self._type, self.device, self._memory_kind)
        return shard.with_origin(self._origin)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Read the shard on the host, without padding."""
        if self._origin is not None:
            self._padded().await_elements()
        return without_padding(to_numpy(self._buffers), box_shape(self.spans))

    def start_copy_to_host(self) -> None:
        start_copy_to_host(self._buffers)

    def __repr__(self) -> str:
        return f"Shard(device={self.device!r}, index={self.index}, replica_id={self.replica_id}, data={self.data})"


class _Memory:
    """Whether any array of this process was donated or deleted. Until then, calls do not check their arguments."""

    any_donated = False


memory = _Memory()


@final
class ArrayImpl(Array):
    """An immutable n-dimensional array on devices, created by `shardwise.numpy`, `device_put` or compiled functions."""

    __slots__ = ("__weakref__", "buffers", "donated_by", "origin", "run", "signature", "type")

    buffers: Any
    donated_by: "Donation"  # set if its memory was donated
    origin: "ProcessSet"  # set if several processes compute the elements, and the sharding has devices of only one
    run: object  # identifies the launch that produced it, whose results become ready together
    signature: ArraySignature
    type: ArrayType

    @staticmethod
    def from_buffers(buffers: Buffers, signature: ArraySignature) -> "ArrayImpl":
        """Wrap jaxlib buffers. An `__init__` would take a third of the time of wrapping many results."""
        array = ArrayImpl()
        array.buffers = array.run = buffers
        array.signature = signature
        array.type = signature.type
        return array

    def with_signature(self, signature: ArraySignature) -> "ArrayImpl":
        """Return an array with the same buffers and another signature."""
        array = ArrayImpl.from_buffers(self.buffers, signature)
        array.run = self.run
        return array.with_origin(self.processes()) if process_sets.member is not None else array

    def with_origin(self, origin: "ProcessSet | None") -> "ArrayImpl":
        """Set the processes that compute the elements, if there are several, and return the array."""
        if origin is not None:
            self.origin = origin
        return self

    @property
    def sharding(self) -> Sharding:
        """The sharding: which device holds which shard."""
        return self.signature.sharding

    @property
    def committed(self) -> bool:
        """Whether the user placed this array. Uncommitted arrays may be moved to where a program needs them."""
        return self.signature.committed

    def devices(self) -> set[Any]:
        """Return the devices that hold a shard."""
        return self.sharding.device_set

    @property
    def device(self) -> Any:
        """The device that holds the array, or its sharding if it is on a mesh."""
        return self.sharding.devices[0] if isinstance(self.sharding, SingleDeviceSharding) else self.sharding

    @property
    def format(self) -> Format:
        """The layout in memory, which is row-major, and the sharding."""
        return row_major(self.type.ndim, self.sharding)

    def to_device(self, device: Device | Sharding, *, stream: None = None) -> "ArrayImpl":
        """Return the array on another device or in another sharding."""
        if stream is not None:
            raise NotImplementedError("to_device: streams are not supported; copies wait for their operands")
        if not isinstance(device, (Device, Sharding)):
            raise TypeError(f"to_device needs a device or a Sharding, not {device!r}")
        sharding = SingleDeviceSharding(device) if isinstance(device, Device) else device
        transferred = dispatch.executor.transfer(self, sharding)
        return transferred.with_signature(array_signature(self.type, sharding, True))  # type: ignore[no-any-return]

    @property
    def is_fully_addressable(self) -> bool:
        """Whether every shard is on a device of this process."""
        return self.sharding.is_fully_addressable

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds a full copy of the array."""
        return self.sharding.is_fully_replicated

    @property
    def global_shards(self) -> list[Shard]:
        """The shards on all devices. Shards of other processes have no data here."""
        shards = []
        replicas: dict[Any, int] = {}
        terms = self.sharding.terms
        addressable = self.sharding.addressable_devices
        shard_type = self.type.with_shape(self.sharding.shard_shape(self.type.shape))
        local_buffers = iter(split(self._alive().buffers))
        shape, memory_kind = self.type.shape, self.sharding.nondefault_memory
        origin = self.processes() if process_sets.member is not None else None
        indices = self.sharding.devices_indices_map(shape).items()
        for (device, index), bounds in zip(indices, self.sharding.shard_indices(shape), strict=True):
            spans = box_of(bounds)
            key = spans, terms[device]
            replicas[key] = replica = replicas.get(key, -1) + 1
            buffers = next(local_buffers) if device in addressable else None
            shards.append(Shard(device, index, spans, replica, shard_type, buffers, memory_kind, origin))
        return shards

    @property
    def addressable_shards(self) -> list[Shard]:
        """The shards on the devices of this process; for an unreduced array, the terms."""
        addressable = self.sharding.addressable_devices
        return [shard for shard in self.global_shards if shard.device in addressable]

    def addressable_data(self, index: int) -> "ArrayImpl":
        """Return the shard on the `index`-th device of this process, without padding."""
        if not self.sharding.has_addressable_devices:
            raise RuntimeError(
                f"addressable_data: this {self.type} in {self.sharding} has no shard on process {process_index()}"
            )
        data = self.addressable_shards[index].data
        assert data is not None  # the device belongs to this process
        return data

    def distinct_shards(self) -> list[Shard]:
        """Return the shards of this process without replicas; for an unreduced array, every term."""
        terms = self.sharding.terms
        shards = reversed(self.addressable_shards)
        return list({(shard.spans, terms[shard.device]): shard for shard in shards}.values())

    def first_replicas(self) -> list[tuple[Box, Any]]:
        """Return (spans, buffers) of every shard whose replica 0 is in this process."""
        buffers = self._alive().buffers
        if self.is_fully_addressable:
            buffers = clone(buffers)  # so that jaxlib does not keep the shards
        replicas = _first_replicas(self.sharding, self.type.shape)
        if [number for number, _ in replicas] == [0]:
            return [(replicas[0][1], first_shard(buffers))]
        shards = split(buffers) if replicas else []
        return [(spans, shards[number]) for number, spans in replicas]

    @property
    def is_unreduced(self) -> bool:
        """Whether each device holds a term of a sum."""
        return self.sharding.is_unreduced

    @property
    def is_readable(self) -> bool:
        """Whether this process can read all elements without communication."""
        if self.is_unreduced or self.is_deleted():
            return False
        return has_all_shards_here(self.sharding, self.type.shape)

    def _check_reduced(self) -> None:
        """Raise an error if the array is unreduced, so that the terms of its elements are on several devices."""
        explicit = self.type.explicit
        if explicit is not None and explicit.unreduced:
            axes = " and ".join(map(repr, explicit.unreduced))
            raise ShardingTypeError(
                f"this {self.type} is unreduced over {axes}: each device holds a term of a sum, and no device holds "
                f"the elements. Sum the terms first, `reshard(x, {Layout(explicit.dims)})`; `x.addressable_shards` "
                "are the terms."
            )

    def _alive(self) -> "ArrayImpl":
        if self.is_deleted():
            raise deleted_error(self, "an array that is read")
        return self

    @property
    def words(self) -> "ArrayImpl":
        """The key data of an array of keys, sharing its memory; for any other array, the array itself."""
        if not is_key(self.type.dtype):
            return self
        return self.with_signature(
            array_signature(self.type.physical, key_data_sharding(self.sharding), self.committed)
        )

    def numpy(self) -> np.ndarray[Any, Any]:
        """Read the global array on the host."""
        if is_key(self.type.dtype):
            raise TypeError(
                f"numpy has no arrays of keys, such as this {self.type}; `random.key_data` returns their words"
            )
        self._check_reduced()
        if process_sets.member is not None:
            self.await_elements()
        if self.is_fully_replicated and self.sharding.has_addressable_devices:
            return to_numpy(first_shard(self._alive().buffers))
        if not has_all_shards_here(self.sharding, self.type.shape):
            raise RuntimeError(
                f"this {self.type} in {self.sharding} {self._elsewhere()}, so process {process_index()} cannot read "
                "its value. Every process gets it with `experimental.multihost_utils.process_allgather(x, "
                "tiled=True)`, which all processes must call; `x.addressable_shards` are the local shards."
            )
        result = np.empty(self.type.shape, self.type.dtype)
        shards = split(self._alive().buffers)
        for number, spans in _distinct_parts(self.sharding, self.type.shape):
            result[box_index(spans)] = without_padding(to_numpy(shards[number]), box_shape(spans))
        return result

    def _elsewhere(self) -> str:
        """Describe where the shards are that this process does not have, for messages."""
        others = [process for process in self.sharding.processes if process != process_index()]
        return f"has shards on process{'es' if len(others) > 1 else ''} {', '.join(map(str, others))}"

    def _read(self) -> np.ndarray[Any, Any]:
        """Read the global array for an implicit transfer to the host, which a transfer guard may forbid."""
        if config.transfer_guard_device_to_host != "allow":
            check_transfer("device_to_host", self.type)
        return self._alive().block_until_ready().numpy()  # jaxlib may crash on the result of a failed program

    def copy_to_host_async(self) -> None:
        """Start to copy the shards of this process to the host, so that a later read waits less."""
        for shard in self.distinct_shards():
            shard.start_copy_to_host()

    def on_device_size_in_bytes(self) -> int:
        """Return the memory that its devices use for it, including padding, replicas and shards of other processes."""
        shards = split(self._alive().buffers)
        if not shards:
            raise RuntimeError(
                f"on_device_size_in_bytes: this {self.type} in {self.sharding} has no shard on process "
                f"{process_index()}, which therefore does not know its size"
            )
        return int(shards[0].on_device_size_in_bytes()) * self.sharding.num_devices

    def is_deleted(self) -> bool:
        """Return whether the memory was freed, by `delete` or by donation to a compiled function."""
        return bool(self.buffers.is_deleted())

    def delete(self) -> None:
        """Free the memory now."""
        memory.any_donated = True
        self.buffers.delete()

    def __reduce__(self) -> tuple[Any, ...]:
        return array_from_words, (np.array(self.words.numpy()), self.type)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ArrayImpl":
        if self.is_unreduced:
            return self.copy()  # type: ignore[return-value]
        words = self.words
        copy = place(words.numpy(), words.type, words.sharding, self.committed)
        return ArrayImpl.from_buffers(copy.buffers, self.signature)

    def block_until_ready(self) -> "ArrayImpl":
        """Wait until the elements are computed, and return the array."""
        buffers = self._alive().buffers
        try:
            if process_sets.member is not None and process_sets.may_wait():
                self._wait_for_processes()
            buffers.block_until_ready()
        except RuntimeFailure as error:
            _explain(error, self)
            raise
        return self

    def await_elements(self) -> None:
        """Wait until the host can read the elements: they are computed, by the same programs in all processes."""
        self.block_until_ready()
        if process_sets.member is not None and (processes := self.processes()) is not None:
            processes.confirm()

    def processes(self) -> "ProcessSet | None":
        """Return the processes that compute the elements, if these are this process and others."""
        return process_sets.get(self.sharding.processes) or getattr(self, "origin", None)

    def _wait_for_processes(self) -> None:
        """Wait until the elements are computed, if other processes take part; raise an error if one of them fails."""
        processes = self.processes()
        if processes is not None:
            processes.wait(self.buffers, lambda: f"this {self.type}")

    def _rows(self) -> Iterator[Array]:
        if config.is_exact and not self.sharding.is_fully_replicated:
            return map(dispatch.executor.place, self.numpy())  # JAX reads the rows of a sharded array on the host
        return super()._rows()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self._read(), dtype=dtype, copy=copy)

    def __buffer__(self, flags: int) -> memoryview:
        """Export the elements by the buffer protocol, read-only: `memoryview(x)`, from Python 3.12 on."""
        self._only_device("the buffer protocol is")
        elements = self.__array__().view()
        elements.flags.writeable = False
        try:
            return memoryview(elements)  # type: ignore[arg-type]
        except ValueError as error:  # numpy has no format for ml_dtypes
            raise BufferError(f"the buffer protocol does not support {self.type.dtype}: {error}") from None

    def __bytes__(self) -> bytes:
        return self.__array__().tobytes()

    def __dlpack_device__(self) -> tuple[int, int]:
        device = self._only_device()
        platform = lowering_platform(device)
        if platform not in DLPACK_DEVICES:
            raise BufferError(
                f"this {self.type} is on {device}, whose memory DLPack does not support: `np.asarray` copies"
            )
        return DLPACK_DEVICES[platform], 0 if platform == "cpu" else int(device.id)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule through which another library shares the memory of the array or of a copy."""
        device = self._only_device()
        if dl_device is not None and tuple(map(int, dl_device)) != self.__dlpack_device__():
            raise BufferError(f"this {self.type} is on {device}: move it first with `to_device`")
        self._alive().await_elements()
        try:
            shared: Any = self.copy() if copy else self
            return to_dlpack(shared.buffers)
        except RuntimeFailure as error:
            raise BufferError(f"{self.type} cannot be shared by DLPack: {error}") from None

    def _only_device(self, purpose: str = "a DLPack capsule is") -> Any:
        """Return the device of an array that is on one device. `purpose` is the operation, for the error."""
        self._check_reduced()
        devices = self.sharding.devices
        if len(devices) > 1:
            raise BufferError(
                f"this {self.type} is on {len(devices)} devices, in {self.sharding}, and {purpose} for one: "
                "share `x.addressable_shards[i].data`, or gather it with `device_put(x, device)`"
            )
        return devices[0]

    def is_ready(self) -> bool:
        """Return whether the elements are computed."""
        return bool(self.buffers.is_ready())

    def unsafe_buffer_pointer(self) -> int:
        """Return the memory address of the elements on the only device that holds them."""
        self._only_device()
        if process_sets.member is not None:
            self.await_elements()  # XLA waits here
        return address_of(split(self._alive().buffers)[0])

    def item(self, *args: int) -> Any:
        """Return the only element, or the element at this index, as a Python scalar."""
        return self._read().item(*args)

    def tobytes(self, order: Literal["C", "F", "A", "K"] | None = "C") -> bytes:
        """Return the elements as bytes, as numpy does."""
        return self._read().tobytes(order)

    def tolist(self) -> Any:
        """Return the elements as nested lists."""
        return self._read().tolist()

    def __bool__(self) -> bool:
        check_truth_value(self.type)
        return bool(self._read())

    def __int__(self) -> int:
        check_scalar(self.type)
        return int(self._read())

    def __float__(self) -> float:
        check_scalar(self.type)
        return float(self._read())

    def __complex__(self) -> complex:
        check_scalar(self.type)
        return complex(self._read())

    def __index__(self) -> int:
        check_index(self.type)
        return self._read().__index__()

    def __format__(self, spec: str) -> str:
        if not (self.is_readable or self.is_deleted()):
            return format(repr(self), spec)  # one line
        if is_key(self.type.dtype):
            return format(str(self), spec)
        return format(self._read()[()] if not self.type.ndim else self._read(), spec)

    def __repr__(self) -> str:
        if self.is_deleted():
            return f"Array({self.type}, deleted)"
        if self.is_unreduced and config.is_exact:
            return f"Array(shape={self.type.shape}, dtype={self.type.dtype}, sharding={self.sharding})"
        if self.is_unreduced:
            return f"Array({self.type}, {self.sharding}, unreduced)"
        if not self.is_readable:
            return f"Array(shape={self.type.shape}, dtype={self.type.dtype})"
        if is_key(self.type.dtype):
            return f"Array({self.type.shape}, dtype={self.type.dtype}) overlaying:\n{self.words}"
        return array_repr(self)

    def __str__(self) -> str:
        if not self.is_readable:
            return repr(self) if self.is_deleted() or self.is_unreduced else local_part_str(self, process_index())
        return repr(self) if is_key(self.type.dtype) else array_str(self)

    def _repr_html_(self) -> str | None:
        """Return a table with the sharding and the elements; None for a scalar, which notebooks show by its repr."""
        if not self.type.ndim:
            return None
        return f"<pre>{self!r}</pre>" if self.is_deleted() else array_html(self)


@final
class ResultTemplate:
    """Creates the result Arrays of a program before it runs, and sets their buffers afterwards.

    Creating them first leaves less Python work for when devices compete for the CPU. Both methods inline
    `ArrayImpl.from_buffers`.
    """

    def __init__(self, signatures: Sequence[ArraySignature]):
        self._signatures = tuple(signatures)

    def create(self) -> list[ArrayImpl]:
        """Return Arrays without buffers."""
        arrays, run = [], object()
        for signature in self._signatures:
            array = ArrayImpl()
            array.run = run
            array.signature = signature
            array.type = signature.type
            arrays.append(array)
        return arrays

    @staticmethod
    def fill(arrays: list[ArrayImpl], results: list[Any]) -> list[ArrayImpl]:
        """Set the buffers of Arrays that `create` returned."""
        for array, buffers in zip(arrays, results, strict=True):
            array.buffers = buffers
        return arrays


def wait(arrays: Sequence[ArrayImpl]) -> None:
    """Wait until the elements of all arrays are computed. One array per launch suffices, unless some were deleted."""
    try:
        if process_sets.member is not None:
            for array in arrays:
                array._wait_for_processes()
        if memory.any_donated:
            block_until_ready([array.buffers for array in arrays])
        else:
            block_until_ready(list({id(array.run): array.buffers for array in arrays}.values()))
    except RuntimeFailure as error:
        _explain(error, *arrays)
        raise


def await_elements(arrays: Sequence[ArrayImpl]) -> None:
    """Wait until the host can read the elements of all arrays, as `ArrayImpl.await_elements` does."""
    wait(arrays)
    if process_sets.member is not None:
        for processes in {array.processes() for array in arrays}:
            if processes is not None:
                processes.confirm()


def _explain(error: RuntimeFailure, *arrays: ArrayImpl) -> None:
    """Raise the cause of an XLA error of these arrays, if it is known: memory, or another process."""
    largest = max(arrays, key=_shard_bytes)
    program = f"the program that computes this {largest.type}"
    check_memory(error, program, lambda: array_needs(_shard_bytes(largest), largest.sharding.num_devices))
    sets = [processes for array in arrays if (processes := array.processes()) is not None]
    process_sets.explain(error, program, sets)


def _shard_bytes(array: ArrayImpl) -> int:
    """Return the size of one shard, with padding."""
    physical = array.words
    shape = physical.sharding.shard_shape(physical.type.shape)
    return math.prod(shape) * physical.type.dtype.itemsize


def pending_origin(operands: Sequence[ArrayImpl]) -> "ProcessSet | None":
    """Return the processes that compute the operands, if there are several and not all is ready and confirmed.

    If operands come from several process sets, the first set that is not ready is returned, and the others become its
    sources.
    """
    pending: list[ProcessSet] = []
    unconfirmed: list[ProcessSet] = []
    for operand in operands:
        processes = operand.processes()
        if processes is None:
            continue
        if not operand.is_ready():
            pending.append(processes)
        elif not processes.is_confirmed:
            unconfirmed.append(processes)
    if not (pending or unconfirmed):
        return None
    origin, *others = pending + unconfirmed
    for each in others:
        origin.add_source(each)
    return origin


def array_from_words(host: np.ndarray[Any, Any], type: ArrayType) -> Array:
    """Return an array on the first device of this process. `host` has its elements, or the words of its keys.

    It unpickles arrays, because shardings cannot be pickled.
    """
    sharding = SingleDeviceSharding(local_devices()[0])
    buffers = place(host, type.physical, sharding, committed=False).buffers
    return ArrayImpl.from_buffers(buffers, array_signature(type, sharding, False))


def key_data_sharding(sharding: Sharding) -> Sharding:
    """Return the sharding of the key data of keys in `sharding`, whose trailing dim of words is unsharded."""
    return sharding.reshape((*sharding.shape, 1)) if isinstance(sharding, PositionalSharding) else sharding


def single_device_array(shard: Buffers, type: ArrayType, device: Device, memory_kind: str | None = None) -> ArrayImpl:
    """Wrap the buffers of one device, in this memory kind, as an array that shares their memory."""
    physical = type.physical
    buffers = join([shard], physical.shape, physical.dtype, (device,), (device,), memory_kind)
    return ArrayImpl.from_buffers(
        buffers, array_signature(type, SingleDeviceSharding(device, memory_kind=memory_kind), True)
    )


@final
class HostArgument:
    """An argument in host memory, to be placed where a program expects it; by default, as in `signature`."""

    __slots__ = ("signature", "type", "value")

    def __init__(self, value: np.ndarray[Any, Any], signature: ArraySignature):
        self.value = value
        self.signature = signature
        self.type = signature.type

    def place(self, sharding: Sharding | None = None) -> ArrayImpl:
        """Return it as an Array, committed to `sharding` if it is not None."""
        if sharding is not None and not (sharding.is_fully_addressable or sharding.is_fully_replicated):
            raise ValueError(
                f"a numpy array, {self.type}, is passed for {sharding}, whose devices belong to several processes. "
                "Each process would use its own part of its own array, and nothing checks that they agree. Put it "
                "there first: with `device_put` if all processes have the same array, or with "
                "`make_array_from_process_local_data` if each has its own part."
            )
        return place(self.value, self.type, sharding or self.signature.sharding, committed=sharding is not None)

    @property
    def buffers(self) -> Any:
        return self.place().buffers

    def is_deleted(self) -> bool:
        return False


class Donation(NamedTuple):
    """The call that an array was donated to.

    Attributes:
        function: the name of the compiled function.
        site: where it was called; None if the user's code did not call it.
    """

    function: str
    site: CallSite | None


def deleted_error(array: "ArrayImpl | HostArgument", what: str) -> RuntimeError:
    """Return the error for a use after donation or deletion. `what` names the array."""
    donation: Donation | None = getattr(array, "donated_by", None)
    if donation is None:
        return RuntimeError(
            f"{what} is a {array.type} whose memory was freed: `delete` was called, or it was donated to a compiled "
            "function together with another array of the same memory. Use the function's result instead."
        )
    return RuntimeError(
        f"{what} is a {array.type} whose memory was freed: it was donated to `{donation.function}` by the call at "
        f"{donation.site}. Use the function's result instead, or do not donate it."
    )


def place(value: np.ndarray[Any, Any], type: ArrayType, sharding: Sharding, committed: bool) -> ArrayImpl:
    """Copy a host array to devices: each device of this process receives its shard, padded with zeros."""
    host = np.asarray(value, type.dtype)
    if config.debug_process_values and process_sets.member is not None:
        processes = process_sets.get(sharding.processes)
        if processes is not None:
            processes.compare_value(host, str(type))
    if isinstance(sharding, SingleDeviceSharding):
        shards = [host] if sharding.has_addressable_devices else []
        return ArrayImpl.from_buffers(put_shards(shards, type, sharding), array_signature(type, sharding, committed))
    shape, indices = _local_shards(sharding, type.shape)
    shards = [padded(host[index], shape) for index in indices]
    if sharding.is_unreduced:  # the first device along the unreduced axes holds the value, the others zeros
        zero, terms = zero_term(type.dtype), sharding.terms
        shards = [
            np.full_like(shard, zero) if terms[device] else shard
            for shard, device in zip(shards, sharding.local_devices, strict=True)
        ]
    buffers = put_shards(shards, type.with_shape(shape), sharding)
    return ArrayImpl.from_buffers(buffers, array_signature(type, sharding, committed))


def put_shards(shards: Sequence[np.ndarray[Any, Any]], shard_type: ArrayType, sharding: Sharding) -> Any:
    """Copy the padded shards of this process to its devices, and return the buffers.

    A process without a device in `sharding` has no shards; its array has a type and a sharding, but no elements.
    """
    devices, local, memory_kind = sharding.devices, sharding.local_devices, sharding.nondefault_memory
    if not shards:
        physical = shard_type.physical
        return join([], physical.shape, physical.dtype, devices, local, memory_kind)
    if is_compile_only(devices[0]):
        raise DeviceMismatchError(
            f"an array, {shard_type}, cannot be put on {sharding}: its devices are those of a topology, which are not "
            "present. Pass a ShapeDtypeStruct to `jit(f).lower`, and compile the program for them."
        )
    return put(shards, devices, local, memory_kind)


def empty_array(type: ArrayType, sharding: Sharding) -> ArrayImpl:
    """Return an array without elements in this process, which has no device of `sharding`."""
    shard_type = type.with_shape(sharding.shard_shape(type.shape))
    return ArrayImpl.from_buffers(put_shards([], shard_type, sharding), array_signature(type, sharding, True))


def join_shards(shards: Sequence[ArrayImpl], type: ArrayType, sharding: Sharding) -> ArrayImpl:
    """Return an array of padded shards, one for each device of this process, which are already on these devices."""
    physical = type.with_shape(sharding.shard_shape(type.shape)).physical
    buffers = join(
        [shard.buffers for shard in shards],
        physical.shape,
        physical.dtype,
        sharding.devices,
        sharding.local_devices,
        sharding.nondefault_memory,
    )
    array = ArrayImpl.from_buffers(buffers, array_signature(type, sharding, True))
    if process_sets.member is not None and (origin := pending_origin(shards)) is not None:
        if (processes := process_sets.get(sharding.processes)) is not None:
            processes.add_source(origin)
        else:
            array.origin = origin
    return array


@registered_cache(maxsize=4096)
def _local_shards(sharding: Sharding, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[tuple[slice, ...], ...]]:
    """Return the padded shape of a shard, and the indices of the shards on the devices of this process."""
    return sharding.shard_shape(shape), tuple(sharding.local_shard_indices(shape).values())


@registered_cache(maxsize=4096)
def _first_replicas(sharding: Sharding, shape: tuple[int, ...]) -> tuple[tuple[int, Box], ...]:
    """Return the local shards that are replica 0, without shards that are only padding.

    Each is the position among the devices of this process, and the spans.
    """
    here, seen = {device: number for number, device in enumerate(sharding.local_devices)}, set()
    first = []
    for device, index in zip(sharding.devices, sharding.shard_indices(shape), strict=True):
        spans = box_of(index)
        if spans not in seen and device in here and box_size(spans):
            first.append((here[device], spans))
        seen.add(spans)
    return tuple(first)


@registered_cache(maxsize=4096)
def _distinct_parts(sharding: Sharding, shape: tuple[int, ...]) -> tuple[tuple[int, Box], ...]:
    """Return the local shards without replicas, and without shards that are only padding.

    Each is the position among the devices of this process, and the spans.
    """
    numbers: dict[Box, int] = {}
    for number, index in enumerate(sharding.local_shard_indices(shape).values()):
        numbers.setdefault(box_of(index), number)
    return tuple((number, spans) for spans, number in numbers.items() if box_size(spans))


def without_padding(shard: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the elements of a shard without the padding at the end of each dim; `shape` is their shape."""
    return shard if shard.shape == shape else shard[tuple(map(slice, shape))]


def padded(shard: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Pad a shard with zeros at the end of each dim to `shape`."""
    if shard.shape == shape:
        return shard
    return np.pad(shard, [(0, target - size) for target, size in zip(shape, shard.shape, strict=True)])
