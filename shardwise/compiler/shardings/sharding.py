"""Sharding: the base class of shardings, which map devices to parts of an array."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from shardwise.base._jaxlib import is_compile_only
from shardwise.base.config import config
from shardwise.compiler.shardings.layout import Pin
from shardwise.compiler.shardings.mesh import AbsentDevice, AbstractMesh, ranks_of
from shardwise.errors import ShardingError

_MEMORY_KINDS = ("device", "pinned_host", "unpinned_host")


class Sharding:
    """Base class of shardings: which device holds which part of an array.

    Example:
        >>> isinstance(jnp.arange(3).sharding, jax.sharding.Sharding)
        True
    """

    mesh_shape: AbstractMesh
    devices: tuple[Any, ...]
    nondefault_memory: str | None = None  # the memory kind, if it is not the devices' default

    def pin(self, shape: tuple[int, ...], reason: str = "") -> Pin:
        """Return the pin for an array of this shape. Raises ShardingError if the shape does not fit."""
        raise NotImplementedError

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds a full copy of the array."""
        raise NotImplementedError

    @cached_property
    def device_set(self) -> set[Any]:
        return set(self.devices)

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @cached_property
    def processes(self) -> tuple[int, ...]:
        """The sorted indices of the processes that own the devices."""
        return ranks_of(self.devices)

    @cached_property
    def local_devices(self) -> tuple[Any, ...]:
        """The devices that belong to this process, in order."""
        process = self.devices[0].client.process_index()
        return tuple(device for device in self.devices if device.process_index == process)

    @property
    def _addressable_device_assignment(self) -> tuple[Any, ...]:
        """`local_devices` under the private name that Orbax reads."""
        return self.local_devices

    @property
    def addressable_devices(self) -> set[Any]:
        """The devices that belong to this process."""
        return set(self.local_devices)

    @property
    def has_addressable_devices(self) -> bool:
        """Whether a device belongs to this process."""
        return bool(self.local_devices)

    @property
    def is_fully_addressable(self) -> bool:
        """Whether every device belongs to this process."""
        return len(self.local_devices) == len(self.devices)

    def devices_indices_map(self, global_shape: Sequence[int]) -> dict[Any, tuple[slice, ...]]:
        """Return the index of each device's shard in an array of this shape; `slice(None)` for unsharded dims."""
        shape = tuple(global_shape)
        self.check_even(shape)
        is_sharded = [self.mesh_shape.extent(axes) > 1 for axes in self.pin(shape).layout.dims]
        return {
            device: tuple(part if sharded else slice(None) for part, sharded in zip(index, is_sharded, strict=True))
            for device, index in zip(self.devices, self.shard_indices(shape), strict=True)
        }

    def addressable_devices_indices_map(self, global_shape: Sequence[int]) -> dict[Any, tuple[slice, ...]]:
        """Return `devices_indices_map` for the devices of this process."""
        here = self.addressable_devices
        return {device: index for device, index in self.devices_indices_map(global_shape).items() if device in here}

    def shard_indices(self, shape: tuple[int, ...]) -> list[tuple[slice, ...]]:
        """Return the index of each shard in an array of this shape, without padding, in the order of `devices`.

        Every slice has a start and a stop.
        """
        return self.pin(shape).layout.shard_indices(shape, self.mesh_shape)

    def local_shard_indices(self, shape: tuple[int, ...]) -> dict[Any, tuple[slice, ...]]:
        """Return the `shard_indices` of the devices of this process."""
        here = self.addressable_devices
        indices = zip(self.devices, self.shard_indices(shape), strict=True)
        return {device: index for device, index in indices if device in here}

    @property
    def is_unreduced(self) -> bool:
        """Whether each device holds a term of a sum."""
        return False

    @cached_property
    def terms(self) -> dict[Any, int]:
        """The index of each device's term of an unreduced array; 0 for any other array."""
        return dict.fromkeys(self.devices, 0)

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a shard; along an uneven dim, the size of the largest shard."""
        shape = tuple(global_shape)
        self.check_even(shape)
        layout = self.pin(shape).layout
        return layout.shard_shape(layout.padded_shape(shape, self.mesh_shape), self.mesh_shape)

    def check_even(self, shape: tuple[int, ...]) -> None:
        """Raise ShardingError if an array of this shape has smaller last shards, and `jax_compatibility` is "exact"."""
        if not config.is_exact:
            return
        for dim, (size, axes) in enumerate(zip(shape, self.pin(shape).layout.dims, strict=True)):
            count = self.mesh_shape.extent(axes)
            if size % count:
                raise ShardingError(
                    f"{self} shards dim {dim} of shape {shape} into {count} shards, and {count} does not divide {size}."
                    " Pad the array, or use axes that divide the dim. The setting jax_compatibility is 'exact': "
                    "otherwise, the last shards are smaller."
                )

    def check_compatible_aval(self, aval_shape: Sequence[int]) -> None:
        """Raise a ShardingError, which is a ValueError, if this sharding does not fit an array of this shape."""
        self.pin(tuple(aval_shape))

    def is_equivalent_to(self, other: "Sharding", ndim: int) -> bool:
        """Return whether both shard every array of this rank equally, on the same devices, in the same memory."""
        if self == other:  # without a look at each of perhaps many devices
            return True
        if self.device_set != other.device_set or self.nondefault_memory != other.nondefault_memory:
            return False
        probe = (self.num_devices,) * ndim  # large enough to distinguish any two layouts
        return self.devices_indices_map(probe) == other.devices_indices_map(probe) and self.terms == other.terms

    @property
    def memory_kind(self) -> str | None:
        """The memory of the shards: `device`, `pinned_host`, …; None for the default memory of an AbstractMesh."""
        first = self.devices[0]
        return self.nondefault_memory or (str(first.default_memory().kind) if _lists_memories(first) else None)

    def with_memory_kind(self, kind: str | None) -> "Sharding":
        """Return this sharding in another memory of its devices; None for the default memory."""
        raise NotImplementedError

    @property
    def replicated(self) -> "Sharding":
        """The sharding that replicates an array on the same devices, in their default memory."""
        raise NotImplementedError

    @property
    def without_trailing_nones(self) -> "Sharding":
        """This sharding with the shortest equivalent spec; the object itself if its spec is the shortest."""
        return self

    @property
    def in_default_memory(self) -> "Sharding":
        """This sharding in the default memory of its devices, in which they compute."""
        return self if self.nondefault_memory is None else self.with_memory_kind(None)


def nondefault_memory(name: str, kind: str | None, devices: Sequence[Any]) -> str | None:
    """Return the memory kind, or None if it is the default memory of the devices.

    Raises:
        ShardingError: if the devices have no such memory. `name` is the class for the message.
    """
    if kind is None:
        return None
    first = devices[0]
    if not _lists_memories(first):
        if kind not in _MEMORY_KINDS:
            raise ShardingError(f"{name}: memory_kind={kind!r} is none of {', '.join(map(repr, _MEMORY_KINDS))}")
        return None if kind == "device" else kind
    default = first.default_memory().kind
    known = [memory.kind for memory in first.addressable_memories()] or [default]
    if kind not in known:
        raise ShardingError(
            f"{name}: memory_kind={kind!r} does not exist on {first}, which has {', '.join(map(repr, known))} and "
            f"computes in {default!r}"
        )
    return None if kind == default else kind


def _lists_memories(device: Any) -> bool:
    """Return whether a device lists its memories: the devices of topologies and of an AbstractMesh do not."""
    return not isinstance(device, AbsentDevice) and not is_compile_only(device)


def memory_text(kind: str | None) -> str:
    """Format the argument `memory_kind` of a constructor; "" for the default memory."""
    return f", memory_kind={kind!r}" if kind else ""
