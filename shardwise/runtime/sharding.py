"""Shardings: a layout on devices, as users see it on an array."""

from functools import cached_property
from typing import Any, final

from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.partition.local import Placement
from shardwise.compiler.partition.simulate import piece_index
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.spec import PartitionSpec, pin_of

ONE_DEVICE = AbstractMesh((), ())


class Sharding:
    """Which device holds which part of an array."""

    mesh_shape: AbstractMesh
    devices: tuple[Any, ...]

    def pin(self, shape: tuple[int, ...], reason: str = "") -> Pin:
        """The layout for an array of this shape; a ShardingError where it does not fit."""
        raise NotImplementedError

    def placement(self, type: ArrayType) -> Placement:
        return Placement(type, self.pin(type.shape).layout)

    @cached_property
    def device_set(self) -> set[Any]:
        return set(self.devices)

    @cached_property
    def local_devices(self) -> tuple[Any, ...]:
        """The devices that belong to this process, in order."""
        here = self.devices[0].client.process_index()
        return tuple(device for device in self.devices if device.process_index == here)

    @property
    def is_fully_addressable(self) -> bool:
        """Whether every device belongs to this process."""
        return len(self.local_devices) == len(self.devices)

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Any, tuple[slice, ...]]:
        """For each device, the part of an array of this shape that it holds."""
        placement = Placement(ArrayType(tuple(shape), "float32"), self.pin(tuple(shape)).layout)
        return dict(zip(self.devices, piece_index(placement, self.mesh_shape), strict=True))

    def shard_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one piece; of an uneven dim, the longest piece."""
        layout = self.pin(tuple(shape)).layout
        return layout.cut(layout.even(shape, self.mesh_shape), self.mesh_shape)


@final
class NamedSharding(Sharding):
    """An array cut along the axes of `mesh` as `spec` says."""

    def __init__(self, mesh: Mesh, spec: PartitionSpec):
        if not isinstance(mesh, Mesh):
            raise TypeError(f"NamedSharding needs a Mesh, not {mesh!r}")
        if not isinstance(spec, PartitionSpec):
            raise TypeError(f"NamedSharding needs a PartitionSpec, not {spec!r}: write PartitionSpec({spec!r})")
        self.mesh = mesh
        self.spec = spec
        self.mesh_shape = mesh.abstract
        self.devices = mesh.flat_devices
        pin_of(spec, (1,) * len(spec), mesh.abstract)  # an unknown or repeated axis is an error here already

    def pin(self, shape: tuple[int, ...], reason: str = "") -> Pin:
        return pin_of(self.spec, shape, self.mesh.abstract, reason)

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        entries = list(self.spec)
        while entries and entries[-1] is None:
            entries.pop()
        return self.mesh, tuple(entries)

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, NamedSharding) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    @property
    def is_fully_replicated(self) -> bool:
        return all(size == 1 for size in self.mesh_shape.axis_sizes) or not any(self.spec)

    def __repr__(self) -> str:
        return f"NamedSharding(mesh({self.mesh.abstract}), {self.spec})"


@final
class SingleDeviceSharding(Sharding):
    """A whole array on one device."""

    mesh_shape = ONE_DEVICE
    is_fully_replicated = True

    def __init__(self, device: Any):
        self.devices = (device,)

    def pin(self, shape: tuple[int, ...], reason: str = "") -> Pin:
        return Pin(Layout.replicated(len(shape)), reason=reason)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SingleDeviceSharding) and self.devices == other.devices

    def __hash__(self) -> int:
        return hash(self.devices)

    def __repr__(self) -> str:
        return f"SingleDeviceSharding({self.devices[0]})"
