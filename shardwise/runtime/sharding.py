"""SingleDeviceSharding and PositionalSharding, and shardings derived from the current mesh and from types.

`NamedSharding` is in `compiler/shardings/`, because array types have one.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, final

import numpy as np

from shardwise.base._jaxlib import Device
from shardwise.base.config import config
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import ONE_DEVICE, AbstractMesh, Mesh, absent_mesh, device_grid, mesh_context
from shardwise.compiler.shardings.named_sharding import NamedSharding, explicit_sharding
from shardwise.compiler.shardings.sharding import Sharding, memory_text, nondefault_memory
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import NoMeshError, ShardingError, ShardingTypeError
from shardwise.runtime.box import box_of


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

    def __init__(self, device: Any, *, memory_kind: str | None = None):
        self.devices = (device,)
        self.nondefault_memory = nondefault_memory("SingleDeviceSharding", memory_kind, self.devices)

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
        if config.is_exact:
            return f"SingleDeviceSharding(device={self.devices[0]!r}, memory_kind={self.memory_kind})"
        return f"SingleDeviceSharding({self.devices[0]}{memory_text(self.nondefault_memory)})"


def make_single_device_sharding(device: Device, *, memory_kind: str | None = None) -> SingleDeviceSharding:
    """Return the sharding of an array on a single device: `SingleDeviceSharding(device)`.

    Args:
        device: the device.
        memory_kind: the memory of the device; by default the one it computes in.

    Returns:
        The sharding.

    Raises:
        ShardingError: if the device has no such memory.

    Example:
        >>> jax.sharding.make_single_device_sharding(jax.devices()[1]).num_devices
        1
    """
    return SingleDeviceSharding(device, memory_kind=memory_kind)


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

    def __init__(self, devices: Any, *, memory_kind: str | None = None):
        grid = np.asarray(devices, dtype=object)
        if wrong := [device for device in grid.flat if not hasattr(device, "device_kind")]:
            raise TypeError(f"PositionalSharding: needs devices, such as those of `devices()`, not {wrong[0]!r}")
        self._set(tuple(grid.flat), grid.shape, tuple((axis,) for axis in range(grid.ndim)), memory_kind)

    def _set(
        self, devices: tuple[Any, ...], sizes: tuple[int, ...], dims: tuple[tuple[int, ...], ...], kind: str | None
    ) -> None:
        """Initialize. `dims` are the indices of the mesh axes that shard each dim; the other axes replicate."""
        names = [f"axis{index}" for index in range(len(sizes))]
        self.mesh = Mesh(device_grid(devices, sizes), names)
        self.mesh_shape = self.mesh.abstract
        self.devices = devices
        self.layout = Layout(tuple(tuple(names[axis] for axis in dim) for dim in dims))
        self._dims = dims
        self.nondefault_memory = nondefault_memory("PositionalSharding", kind, devices)

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
        if factors is None:  # such as 3×2 to 2×3: the axes cannot be split, so reorder the devices
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
        return f"PositionalSharding({' '.join(grid.split())}{memory_text(self.nondefault_memory)})"


def _factor_axes(axes: Sequence[int], sizes: Sequence[int]) -> list[list[tuple[int, int]]] | None:
    """Split axes of these sizes so that the products of consecutive factors are `sizes`.

    Returns:
        For each size, its factors as (position of the axis, factor) pairs; None if there is no such split.
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
    """Return the sharding of a bare spec on the current mesh. `what` describes the argument, for the error."""
    if mesh_context.mesh is None:
        raise NoMeshError(
            f"{what}: a bare {spec} needs a mesh: write NamedSharding(mesh, {spec}), or set the current mesh with "
            "`with mesh:` or `set_mesh(mesh)`"
        )
    return NamedSharding(mesh_context.mesh, spec)


def resolve_sharding(target: object, what: str) -> Any:
    """Convert a bare spec, or a sharding on the axes of the current mesh, to a sharding on the current mesh.

    Anything else is returned unchanged. `what` describes the argument, for the error.
    """
    return sharding_in_force(target, what) if isinstance(target, PartitionSpec) else on_current_mesh(target)


def on_current_mesh(sharding: object) -> Any:
    """Move a sharding from an abstract mesh to the current mesh, if its axes are the same; else return it unchanged."""
    current = mesh_context.mesh
    if not isinstance(current, Mesh) or not isinstance(sharding, NamedSharding) or isinstance(sharding.mesh, Mesh):
        return sharding
    return sharding.update(mesh=current) if current.abstract == sharding.mesh else sharding


def has_all_shards_here(sharding: Sharding, shape: tuple[int, ...]) -> bool:
    """Return whether the devices of this process hold every shard of an array of this shape."""
    if sharding.is_fully_addressable:
        return True
    if not sharding.has_addressable_devices or sharding.is_fully_replicated:
        return sharding.has_addressable_devices
    here = {box_of(index) for index in sharding.local_shard_indices(shape).values()}
    return all(box_of(index) in here for index in sharding.shard_indices(shape))


def as_typed(sharding: Sharding, type: ArrayType) -> Sharding:
    """Return the sharding of a result in the form of its type along Explicit axes.

    It has one entry per dim, and the type's reduced axes and axes of size 1, which layouts do not have.
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
    """Raise an error if the Explicit sharding of an argument differs from its `in_shardings`.

    Raises:
        ShardingTypeError: if they differ; the message has both types.
    """
    wanted = type.with_explicit(explicit_sharding(sharding, type.shape))
    if isinstance(sharding, NamedSharding) and sharding.mesh_shape.explicit_axes and str(type) != str(wanted):
        raise ShardingTypeError(
            f"argument {name} has type {type}, but in_shardings has {sharding.spec}, which means {wanted}. Reshard it "
            f"before the call, `reshard(x, {sharding.spec})`, or leave out in_shardings: along Explicit axes, types "
            "decide."
        )


def is_scoped(sharding: Sharding) -> bool:
    """Return whether a sharding is on the current mesh, which belongs to a part of the traced program."""
    current = mesh_context.mesh
    return mesh_context.scoped and current is not None and current.abstract == sharding.mesh_shape
