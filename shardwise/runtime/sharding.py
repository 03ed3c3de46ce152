"""Public shardings: NamedSharding, SingleDeviceSharding and PositionalSharding."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, final

import numpy as np

from shardwise.base._jaxlib import Device
from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.partition.local_program import Placement
from shardwise.compiler.shardings.explicit import ExplicitSharding
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import (
    AbsentDevice,
    AbstractMesh,
    Mesh,
    absent_mesh,
    device_grid,
    mesh_context,
    mesh_of_types,
)
from shardwise.compiler.shardings.spec import PartitionSpec, pin_of
from shardwise.errors import NoMeshError, ShardingError, ShardingTypeError
from shardwise.runtime.box import box_of
from shardwise.runtime.process_set_registry import ranks_of

_MEMORY_KINDS = ("device", "pinned_host", "unpinned_host")
ONE_DEVICE = AbstractMesh((), ())


class Sharding:
    """Base class of shardings: which device holds which part of an array.

    Example:
        >>> isinstance(jnp.arange(3).sharding, jax.sharding.Sharding)
        True
    """

    mesh_shape: AbstractMesh
    devices: tuple[Any, ...]
    nondefault_memory: str | None = None  # the memory kind, if it is not the default memory of the devices

    def pin(self, shape: tuple[int, ...], reason: str = "") -> Pin:
        """Return the layout of an array of this shape as a pin. Raises ShardingError if the shape does not fit."""
        raise NotImplementedError

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds a full copy of the array."""
        raise NotImplementedError

    def placement(self, type: ArrayType) -> Placement:
        return Placement(type, self.pin(type.shape).layout)

    @cached_property
    def device_set(self) -> set[Any]:
        return set(self.devices)

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @cached_property
    def processes(self) -> tuple[int, ...]:
        """The numbers of the processes that the devices belong to, in order."""
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

    def has_all_shards_here(self, shape: tuple[int, ...]) -> bool:
        """Return whether the devices of this process hold every shard of an array of this shape."""
        if self.is_fully_addressable:
            return True
        if not self.has_addressable_devices or self.is_fully_replicated:
            return self.has_addressable_devices
        here = {box_of(index) for index in self.local_shard_indices(shape).values()}
        return all(box_of(index) in here for index in self.shard_indices(shape))

    def devices_indices_map(self, global_shape: Sequence[int]) -> dict[Any, tuple[slice, ...]]:
        """Return the index of each device's shard in an array of this shape; `slice(None)` for unsharded dims."""
        shape = tuple(global_shape)
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
        """For each device, the number of its term among those of an unreduced array; 0 for any other array."""
        return dict.fromkeys(self.devices, 0)

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a shard; along an uneven dim, the size of the largest shard."""
        shape = tuple(global_shape)
        layout = self.pin(shape).layout
        return layout.shard_shape(layout.padded_shape(shape, self.mesh_shape), self.mesh_shape)

    def check_compatible_aval(self, aval_shape: Sequence[int]) -> None:
        """Raise a ShardingError, which is a ValueError, if this cannot shard an array of this shape."""
        self.pin(tuple(aval_shape))

    def is_equivalent_to(self, other: "Sharding", ndim: int) -> bool:
        """Return whether both shard every array of this rank the same, on the same devices, in the same memory."""
        if self.device_set != other.device_set or self.nondefault_memory != other.nondefault_memory:
            return False
        probe = (self.num_devices,) * ndim  # large enough that any two layouts differ
        return self.devices_indices_map(probe) == other.devices_indices_map(probe) and self.terms == other.terms

    @property
    def memory_kind(self) -> str | None:
        """The memory of the shards: `device`, `pinned_host`, …; None for the default memory of an AbstractMesh."""
        first = self.devices[0]
        return self.nondefault_memory or (None if isinstance(first, AbsentDevice) else str(first.default_memory().kind))

    def with_memory_kind(self, kind: str | None) -> "Sharding":
        """Return this sharding in another memory of its devices; None for the default memory."""
        raise NotImplementedError

    @property
    def replicated(self) -> "Sharding":
        """The sharding that replicates an array on the same devices, in their default memory."""
        raise NotImplementedError

    @property
    def without_trailing_nones(self) -> "Sharding":
        """This sharding with the shortest spec that means the same; the object itself if it has that already."""
        return self

    @property
    def in_default_memory(self) -> "Sharding":
        """This sharding in the default memory of its devices, in which they compute."""
        return self if self.nondefault_memory is None else self.with_memory_kind(None)


def _nondefault_memory(name: str, kind: str | None, devices: Sequence[Any]) -> str | None:
    """Return the memory kind, or None if it is the default memory of the devices.

    Raises:
        ShardingError: if the devices have no such memory. `name` is the class for the message.
    """
    if kind is None:
        return None
    first = devices[0]
    if isinstance(first, AbsentDevice):
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


@final
class NamedSharding(Sharding):
    """A sharding along the named axes of a mesh.

    On an AbstractMesh, programs can be planned and lowered, but not run.

    Args:
        mesh: the mesh.
        spec: the mesh axes along which each dim is sharded.
        memory_kind: the memory of the devices, such as "device" or "pinned_host"; by default the one they compute in.

    Raises:
        TypeError: if `mesh` or `spec` has a wrong type.
        ShardingError: if `spec` uses an unknown axis, or an axis twice, if the devices have no such memory, or if the
            mesh is empty.

    Example:
        >>> rows = jax.NamedSharding(jax.make_mesh((4,), ("rows",)), P("rows"))
        >>> rows.shard_shape((8, 3))
        (2, 3)
    """

    def __init__(self, mesh: Mesh | AbstractMesh, spec: PartitionSpec, *, memory_kind: str | None = None):
        if not isinstance(mesh, (Mesh, AbstractMesh)):
            raise TypeError(f"NamedSharding needs a Mesh, not {mesh!r}")
        if not isinstance(spec, PartitionSpec):
            entries = ", ".join(map(repr, spec)) if isinstance(spec, (tuple, list)) else repr(spec)
            raise TypeError(f"NamedSharding needs a PartitionSpec, not {spec!r}: write PartitionSpec({entries})")
        if isinstance(mesh, Mesh) and mesh.flat_devices[0] is None:
            raise ShardingError("NamedSharding: the mesh is empty, as `get_mesh()` is where no current mesh is set")
        self.mesh = mesh
        self.spec = spec
        self.grid = mesh if isinstance(mesh, Mesh) else absent_mesh(mesh)
        self.mesh_shape = self.grid.abstract
        self.devices = self.grid.flat_devices
        self.nondefault_memory = _nondefault_memory("NamedSharding", memory_kind, self.devices)
        pin_of(spec, (1,) * len(spec), self.mesh_shape)  # raises an error for an unknown or repeated axis
        for parameter, axes in (("unreduced", spec.unreduced), ("reduced", spec.reduced)):
            if wrong := sorted(axes - set(self.mesh_shape.explicit_axes)):
                raise ShardingError(
                    f"{spec}: {parameter} needs Explicit axes, and {', '.join(map(repr, wrong))} of the mesh "
                    f"{self.mesh_shape} is not: pass `axis_types` to `make_mesh`"
                )

    def pin(self, shape: tuple[int, ...], reason: str = "") -> Pin:
        return pin_of(self.spec, shape, self.mesh_shape, reason)

    @property
    def on_auto_axes(self) -> "NamedSharding":
        """The same sharding on the mesh with Auto axes."""
        if not self.mesh_shape.explicit_axes:
            return self
        return NamedSharding(self.grid.with_auto_axes(), self.spec, memory_kind=self.nondefault_memory)

    @property
    def replicated(self) -> "NamedSharding":
        return NamedSharding(self.mesh, PartitionSpec())

    def with_spec(self, spec: PartitionSpec | Sequence[Any]) -> "NamedSharding":
        """Return the sharding with another spec on the same mesh."""
        return self.update(spec=spec if isinstance(spec, PartitionSpec) else PartitionSpec(*spec))

    def with_memory_kind(self, kind: str | None) -> "NamedSharding":
        return NamedSharding(self.mesh, self.spec, memory_kind=kind)

    def update(
        self, *, mesh: Mesh | None = None, spec: PartitionSpec | None = None, memory_kind: str | None = None
    ) -> "NamedSharding":
        """Return this sharding with another mesh, spec or memory."""
        return NamedSharding(
            self.mesh if mesh is None else mesh,
            self.spec if spec is None else spec,
            memory_kind=memory_kind or self.nondefault_memory,
        )

    @property
    def without_trailing_nones(self) -> "NamedSharding":
        entries = self._key[1]
        if len(entries) == len(self.spec):
            return self
        return self.update(spec=PartitionSpec(*entries, unreduced=self.spec.unreduced, reduced=self.spec.reduced))

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        entries = list(self.spec)
        while entries and entries[-1] is None:
            entries.pop()
        return self.mesh, tuple(entries), self.spec.unreduced, self.spec.reduced, self.nondefault_memory

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, NamedSharding) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    @property
    def is_unreduced(self) -> bool:
        return bool(self.spec.unreduced)

    @cached_property
    def terms(self) -> dict[Any, int]:
        axes = tuple(axis for axis in self.mesh_shape.axis_names if axis in self.spec.unreduced)
        return dict(zip(self.devices, map(int, self.mesh_shape.coordinates(axes)), strict=True))

    @property
    def with_sums(self) -> "NamedSharding":
        """The sharding of the sum of an unreduced array's terms: the same one, replicated along these axes."""
        if not self.is_unreduced:
            return self
        return self.with_spec(PartitionSpec(*self.spec, reduced=self.spec.reduced))

    @property
    def is_fully_replicated(self) -> bool:
        if self.is_unreduced:
            return False
        return all(size == 1 for size in self.mesh_shape.axis_sizes) or not any(self.spec)

    def __repr__(self) -> str:
        return f"NamedSharding(mesh({self.mesh_shape}), {self.spec}{_memory_text(self.nondefault_memory)})"


@final
class SingleDeviceSharding(Sharding):
    """The sharding of an array on a single device.

    Args:
        device: the device.
        memory_kind: the memory of the device, such as "device" or "pinned_host"; by default the one it computes in.

    Raises:
        ShardingError: if the device has no such memory.

    Example:
        >>> second = jax.sharding.SingleDeviceSharding(jax.devices()[1])
        >>> jax.device_put(jnp.arange(3), second).devices() == {jax.devices()[1]}
        True
    """

    mesh_shape = ONE_DEVICE

    def __init__(self, device: Device, *, memory_kind: str | None = None):
        self.devices = (device,)
        self.nondefault_memory = _nondefault_memory("SingleDeviceSharding", memory_kind, self.devices)

    @property
    def replicated(self) -> "SingleDeviceSharding":
        return SingleDeviceSharding(self.devices[0])

    def with_memory_kind(self, kind: str | None) -> "SingleDeviceSharding":
        return SingleDeviceSharding(self.devices[0], memory_kind=kind)

    def pin(self, shape: tuple[int, ...], reason: str = "") -> Pin:
        return Pin(Layout.replicated(len(shape)), reason=reason)

    @property
    def is_fully_replicated(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SingleDeviceSharding)
            and self.devices == other.devices
            and self.nondefault_memory == other.nondefault_memory
        )

    def __hash__(self) -> int:
        return hash((self.devices, self.nondefault_memory))

    def __repr__(self) -> str:
        return f"SingleDeviceSharding({self.devices[0]}{_memory_text(self.nondefault_memory)})"


@final
class PositionalSharding(Sharding):
    """A sharding by a grid of devices: each dim of an array is split as often as the grid's dim is long.

    `reshape`, `transpose` and `replicate` return other shardings of the same devices:

        PositionalSharding(devices).reshape(4, 2)                 4 row blocks, 2 column blocks
        PositionalSharding(devices).reshape(4, 2).replicate(1)    4 row blocks, each on 2 devices

    It is implemented on a mesh with generated axis names, whose axes a reshape may split. The order of devices never
    changes, so all shardings that derive from one grid can be used in one program.

    Args:
        devices: a list or an array of devices.
        memory_kind: the memory of the devices, such as "device" or "pinned_host"; by default the one they compute in.

    Raises:
        TypeError: if `devices` holds something other than devices.
        ShardingError: if a device occurs twice, or if the devices have no such memory.

    Example:
        >>> grid = jax.sharding.PositionalSharding(jax.devices()[:4]).reshape(2, 2)
        >>> grid.shard_shape((8, 6)), grid.replicate(1).shard_shape((8, 6))
        ((4, 3), (4, 6))
    """

    def __init__(self, devices: Sequence[Device] | np.ndarray[Any, Any], *, memory_kind: str | None = None):
        grid = np.asarray(devices, dtype=object)
        if wrong := [device for device in grid.flat if not hasattr(device, "device_kind")]:
            raise TypeError(f"PositionalSharding: needs devices, such as those of `devices()`, not {wrong[0]!r}")
        self._set(tuple(grid.flat), grid.shape, tuple((axis,) for axis in range(grid.ndim)), memory_kind)

    def _set(
        self, devices: tuple[Any, ...], sizes: tuple[int, ...], dims: tuple[tuple[int, ...], ...], kind: str | None
    ) -> None:
        """Initialize. `dims` are the numbers of the mesh axes that shard each dim; the other axes replicate."""
        names = [f"axis{index}" for index in range(len(sizes))]
        self.mesh = Mesh(device_grid(devices, sizes), names)
        self.mesh_shape = self.mesh.abstract
        self.devices = devices
        self.layout = Layout(tuple(tuple(names[axis] for axis in dim) for dim in dims))
        self._dims = dims
        self.nondefault_memory = _nondefault_memory("PositionalSharding", kind, devices)

    @staticmethod
    def _made(
        devices: tuple[Any, ...], sizes: Sequence[int], dims: Sequence[tuple[int, ...]], kind: str | None = None
    ) -> "PositionalSharding":
        sharding = object.__new__(PositionalSharding)
        sharding._set(devices, tuple(sizes), tuple(dims), kind)
        return sharding

    def with_memory_kind(self, kind: str | None) -> "PositionalSharding":
        return self._made(self.devices, self.mesh.axis_sizes, self._dims, kind)

    @staticmethod
    def on(mesh: Mesh, layout: Layout) -> "PositionalSharding":
        """Return the sharding with `layout` on the mesh of another PositionalSharding."""
        dims = [tuple(mesh.axis_names.index(axis) for axis in axes) for axes in layout.dims]
        return PositionalSharding._made(mesh.flat_devices, mesh.axis_sizes, dims)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of shards along each dim."""
        return tuple(self.mesh_shape.extent(axes) for axes in self.layout.dims)

    @property
    def ndim(self) -> int:
        return len(self._dims)

    def reshape(self, *shape: Any) -> "PositionalSharding":
        """Return the sharding with the grid in another shape; one size may be -1."""
        sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        count = math.prod(self.shape)
        if sizes.count(-1) == 1:
            rest = -math.prod(sizes)
            sizes = tuple(count // rest if size == -1 and rest else size for size in sizes)
        if math.prod(sizes) != count or any(size < 1 for size in sizes):
            raise ShardingError(f"PositionalSharding: cannot reshape {self.shape}, of {count} shards, to {shape}")
        factors = _factor_axes([self.mesh.axis_sizes[axis] for dim in self._dims for axis in dim], sizes)
        if factors is None:  # such as 3×2 to 2×3: the axes cannot be split, so the devices are reordered
            replicas = self._devices_by_shard()
            grid = tuple(device for devices in replicas for device in devices)
            axes = range(len(sizes))
            return self._made(grid, (*sizes, len(replicas[0])), [(axis,) for axis in axes], self.nondefault_memory)
        used = [axis for dim in self._dims for axis in dim]
        split: dict[int, list[int]] = {axis: [] for axis in used}
        for position, size in (factor for dim in factors for factor in dim):
            split[used[position]].append(size)
        axis_sizes: list[int] = []
        first: dict[int, int] = {}
        for axis, size in enumerate(self.mesh.axis_sizes):
            first[axis] = len(axis_sizes)
            axis_sizes += split.get(axis, [size])
        assigned = dict.fromkeys(used, 0)
        dims = []
        for dim in factors:
            dim_axes = []
            for position, _ in dim:
                dim_axes.append(first[used[position]] + assigned[used[position]])
                assigned[used[position]] += 1
            dims.append(tuple(dim_axes))
        return self._made(self.devices, axis_sizes, dims, self.nondefault_memory)

    def transpose(self, *axes: Any) -> "PositionalSharding":
        """Return the sharding with the dims of the grid permuted."""
        order = tuple(axes[0]) if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        order = order or tuple(reversed(range(self.ndim)))
        if sorted(order) != list(range(self.ndim)):
            raise ShardingError(f"PositionalSharding: {order} is not a permutation of the dims of {self.shape}")
        return self._made(
            self.devices, self.mesh.axis_sizes, [self._dims[dim] for dim in order], self.nondefault_memory
        )

    @property
    def replicated(self) -> "PositionalSharding":
        return self.replicate().with_memory_kind(None)

    @property
    def T(self) -> "PositionalSharding":
        return self.transpose()

    def replicate(self, axis: int | Sequence[int] | None = None, keepdims: bool = True) -> "PositionalSharding":
        """Return the sharding replicated along `axis`, or along all dims. These dims become 1, or are removed."""
        axes = range(self.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        if wrong := [dim for dim in axes if not -self.ndim <= dim < self.ndim]:
            raise ShardingError(f"PositionalSharding: {self.shape} has no dim {wrong[0]}")
        removed = {dim % self.ndim for dim in axes}
        dims = [
            () if dim in removed else names for dim, names in enumerate(self._dims) if keepdims or dim not in removed
        ]
        return self._made(self.devices, self.mesh.axis_sizes, dims, self.nondefault_memory)

    def pin(self, shape: tuple[int, ...], reason: str = "") -> Pin:
        dims = self.layout.dims
        if self.is_fully_replicated:
            dims = ((),) * len(shape)
        while len(dims) > len(shape) and self.mesh_shape.extent(dims[0]) == 1:
            dims = dims[1:]
        if len(dims) != len(shape):
            raise ShardingError(
                f"PositionalSharding of shape {self.shape} cannot shard an array of rank {len(shape)} (shape {shape}): "
                "reshape it to one size per dim"
            )
        return Pin(Layout(dims), reason=reason)

    @property
    def is_fully_replicated(self) -> bool:
        return math.prod(self.shape) == 1

    def _devices_by_shard(self) -> list[tuple[Any, ...]]:
        """Return the devices that hold each shard, in the order of the grid."""
        devices: dict[tuple[int, ...], list[Any]] = {}
        coordinates = [self.mesh_shape.coordinates(axes) for axes in self.layout.dims]
        for index, device in enumerate(self.devices):
            devices.setdefault(tuple(int(along[index]) for along in coordinates), []).append(device)
        return [tuple(devices[position]) for position in sorted(devices)]

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return self.devices, self.shape, tuple(map(frozenset, self._devices_by_shard())), self.nondefault_memory

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PositionalSharding) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        labels = [f"{{{','.join(str(device.id) for device in devices)}}}" for devices in self._devices_by_shard()]
        cells = np.array(labels, object)
        grid = np.array2string(cells.reshape(self.shape), separator=" ", formatter={"all": str}).replace("\n", "")
        return f"PositionalSharding({' '.join(grid.split())}{_memory_text(self.nondefault_memory)})"


def _memory_text(kind: str | None) -> str:
    return f", memory_kind={kind!r}" if kind else ""


def _factor_axes(axes: Sequence[int], sizes: Sequence[int]) -> list[list[tuple[int, int]]] | None:
    """Split axes of these sizes so that consecutive factors multiply to each of `sizes`.

    Returns:
        For each size, its factors as pairs of the position of the axis and the factor; None if there is no such split.
    """
    remaining = [(position, size) for position, size in enumerate(axes) if size > 1]
    dims = []
    for size in sizes:
        factors, needed = [], size
        while needed > 1:
            position, available = remaining[0]
            if available % needed and needed % available:
                return None
            factors.append((position, min(available, needed)))
            if available > needed:
                remaining[0] = (position, available // needed)
            else:
                remaining.pop(0)
            needed //= min(available, needed)
        dims.append(factors)
    return dims


def mesh_of(where: Sharding | Mesh | AbstractMesh | None) -> Mesh | None:
    """Return the mesh of a sharding, with placeholders for the devices of an AbstractMesh; None for one device."""
    if isinstance(where, Mesh):
        return where
    if isinstance(where, AbstractMesh):
        return absent_mesh(where)
    if isinstance(where, NamedSharding):
        return where.grid
    return where.mesh if isinstance(where, PositionalSharding) else None


def sharding_in_force(spec: PartitionSpec, what: str) -> NamedSharding:
    """Return the sharding of a bare spec on the current mesh. `what` names the argument for the error."""
    if mesh_context.mesh is None:
        raise NoMeshError(
            f"{what}: a bare {spec} needs a mesh: write NamedSharding(mesh, {spec}), or set the current mesh with "
            "`with mesh:` or `set_mesh(mesh)`"
        )
    return NamedSharding(mesh_context.mesh, spec)


def resolve_sharding(target: object, what: str) -> Any:
    """Return a bare spec, and a sharding on the axes of the current mesh, as a sharding on that mesh.

    Anything else is returned unchanged. `what` names the argument for the error.
    """
    return sharding_in_force(target, what) if isinstance(target, PartitionSpec) else on_current_mesh(target)


def on_current_mesh(sharding: object) -> Any:
    """Return a sharding on an abstract mesh as one on the current mesh, if that has the same axes; else unchanged."""
    current = mesh_context.mesh
    if not isinstance(current, Mesh) or not isinstance(sharding, NamedSharding) or isinstance(sharding.mesh, Mesh):
        return sharding
    return sharding.update(mesh=current) if current.abstract == sharding.mesh else sharding


def type_sharding(type: ArrayType) -> NamedSharding:
    """Return the sharding that a type says: along the Explicit axes of its mesh.

    Without Explicit axes, the mesh is the current mesh, else that of the arguments of the traced function.
    """
    explicit = type.explicit
    if explicit is None:
        current = mesh_context.region_mesh or mesh_context.mesh
        if current is None:
            current, mesh_context.reads_argument_mesh = mesh_context.argument_mesh, True
        mesh = ONE_DEVICE if current is None else mesh_of_types(current).abstract
        return NamedSharding(mesh, PartitionSpec(*[None] * type.ndim))
    entries = [None if not axes else axes[0] if len(axes) == 1 else axes for axes in explicit.dims]
    axes = explicit.mesh.abstract.explicit_axes
    unreduced, reduced = ([axis for axis in of if axis in axes] for of in (explicit.unreduced, explicit.reduced))
    return NamedSharding(explicit.mesh.abstract, PartitionSpec(*entries, unreduced=unreduced, reduced=reduced))


installed.type_sharding = type_sharding


def as_typed(sharding: Sharding, type: ArrayType) -> Sharding:
    """Return the sharding of a result as its type along Explicit axes says.

    It has one entry per dim, and the reduced axes and the axes of size 1 of the type, which layouts do not have.
    """
    if not isinstance(sharding, NamedSharding) or not sharding.mesh_shape.explicit_axes:
        return sharding
    spec = sharding.spec
    entries = [*spec, *[None] * (type.ndim - len(spec))]
    if type.explicit is not None and type.explicit.mesh.abstract == sharding.mesh_shape:
        dims = zip(type.explicit.dims, sharding.pin(type.shape).layout.dims, strict=True)
        entries = [
            entry if set(typed) <= set(planned) else (*typed, *(axis for axis in planned if axis not in typed))
            for entry, (typed, planned) in zip(entries, dims, strict=True)
        ]
    reduced = type.explicit.reduced if type.explicit else ()
    return sharding.with_spec(PartitionSpec(*entries, unreduced=spec.unreduced, reduced=reduced))


def check_argument_type(name: str, type: ArrayType, sharding: Sharding) -> None:
    """Raise an error if an argument has another sharding along Explicit axes than its `in_shardings` say.

    Raises:
        ShardingTypeError: with both types.
    """
    wanted = type.with_explicit(explicit_sharding(sharding, type.shape))
    if isinstance(sharding, NamedSharding) and sharding.mesh_shape.explicit_axes and str(type) != str(wanted):
        raise ShardingTypeError(
            f"argument {name} has type {type}, but in_shardings has {sharding.spec}, which means {wanted}. Reshard it "
            f"before the call, `reshard(x, {sharding.spec})`, or leave out in_shardings: along Explicit axes, types "
            "decide."
        )


def explicit_sharding(sharding: Sharding, shape: tuple[int, ...], scoped: bool = False) -> ExplicitSharding | None:
    """Return the part of a sharding that the types of arrays carry: along the Explicit axes of its mesh.

    `scoped`: whether the mesh belongs to a part of the program.
    """
    if not isinstance(sharding, NamedSharding) or not (sharding.mesh_shape.explicit_axes or scoped):
        return None
    spec = sharding.spec
    return ExplicitSharding.from_dims(
        sharding.mesh, sharding.pin(shape).layout.dims, spec.unreduced, spec.reduced, scoped
    )


def traced_sharding(sharding: Sharding, shape: tuple[int, ...], scoped: bool = False) -> ExplicitSharding | None:
    """Return `explicit_sharding` as the types of traced values have it: inside `shard_map`, its axes are Manual."""
    explicit = explicit_sharding(sharding, shape, scoped)
    if explicit is None or not mesh_context.manual_axes:
        return explicit
    return explicit.inside_region(mesh_context.manual_axes.intersection(explicit.mesh.axis_names), tracked=True)


installed.explicit_sharding = traced_sharding


def is_scoped(sharding: Sharding) -> bool:
    """Return whether a sharding is on the current mesh, and that belongs to a part of the traced program."""
    current = mesh_context.mesh
    return mesh_context.scoped and current is not None and current.abstract == sharding.mesh_shape
