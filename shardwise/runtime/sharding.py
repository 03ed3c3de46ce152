"""Shardings: a layout on devices, as users see it on an array."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.partition.local_program import Placement
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbsentDevice, AbstractMesh, Mesh, absent_mesh, device_grid, mesh_context
from shardwise.compiler.shardings.spec import PartitionSpec, pin_of
from shardwise.errors import ShardingError

ONE_DEVICE = AbstractMesh((), ())


class Sharding:
    """Base class of shardings: which device holds which part of an array.

    Example:
        >>> isinstance(jnp.arange(3).sharding, jax.sharding.Sharding)
        True
    """

    mesh_shape: AbstractMesh
    devices: tuple[Any, ...]
    kind: str | None = None  # the memory of the devices that holds the array, where it is not the one they compute in

    def pin(self, shape: tuple[int, ...], reason: str = "") -> Pin:
        """The layout for an array of this shape; a ShardingError where it does not fit."""
        raise NotImplementedError

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole array."""
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
    def local_devices(self) -> tuple[Any, ...]:
        """The devices that belong to this process, in order."""
        here = self.devices[0].client.process_index()
        return tuple(device for device in self.devices if device.process_index == here)

    @property
    def addressable_devices(self) -> set[Any]:
        """The devices that belong to this process."""
        return set(self.local_devices)

    @property
    def is_fully_addressable(self) -> bool:
        """Whether every device belongs to this process."""
        return len(self.local_devices) == len(self.devices)

    def devices_indices_map(self, global_shape: Sequence[int]) -> dict[Any, tuple[slice, ...]]:
        """For each device, the part of an array of this shape that it holds."""
        return dict(zip(self.devices, self.shard_indices(tuple(global_shape)), strict=True))

    def addressable_devices_indices_map(self, global_shape: Sequence[int]) -> dict[Any, tuple[slice, ...]]:
        """For each device of this process, the part of an array of this shape that it holds."""
        here = self.addressable_devices
        return {device: index for device, index in self.devices_indices_map(global_shape).items() if device in here}

    def shard_indices(self, shape: tuple[int, ...]) -> list[tuple[slice, ...]]:
        """The part of an array of this shape that each device holds, in the order of `devices`, without padding."""
        return self.pin(shape).layout.shard_indices(shape, self.mesh_shape)

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of one piece; of an uneven dim, the longest piece."""
        shape = tuple(global_shape)
        layout = self.pin(shape).layout
        return layout.shard_shape(layout.padded_shape(shape, self.mesh_shape), self.mesh_shape)

    def is_equivalent_to(self, other: "Sharding", ndim: int) -> bool:
        """Whether both put the same parts of any array of this rank on the same devices, in the same memory."""
        if self.device_set != other.device_set or self.kind != other.kind:
            return False
        probe = (self.num_devices,) * ndim  # long enough that any two ways to cut a dim differ
        return self.devices_indices_map(probe) == other.devices_indices_map(probe)

    @property
    def memory_kind(self) -> str | None:
        """The memory of each device that holds its part: `device`, `pinned_host`, …; None where nobody has devices."""
        first = self.devices[0]
        return self.kind or (None if isinstance(first, AbsentDevice) else str(first.default_memory().kind))

    def with_memory_kind(self, kind: str | None) -> "Sharding":
        """This sharding in a certain memory of its devices; in the one that they compute in, where None."""
        raise NotImplementedError

    @property
    def in_default_memory(self) -> "Sharding":
        """This sharding in the memory that its devices compute in."""
        return self if self.kind is None else self.with_memory_kind(None)


def _other_memory(name: str, kind: str | None, devices: Sequence[Any]) -> str | None:
    """A memory of devices by its kind; None for the one that they compute in. One that they lack is an error."""
    if kind is None:
        return None
    first = devices[0]
    if isinstance(first, AbsentDevice):
        return None if kind == "device" else kind
    default = first.default_memory().kind
    known = [memory.kind for memory in first.addressable_memories()] or [default]
    if kind not in known:
        raise ShardingError(
            f"{name}: memory_kind={kind!r} is no memory of {first}: there {'are' if len(known) > 1 else 'is'} "
            f"{', '.join(map(repr, known))}, of which it computes in {default!r}"
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
        ShardingError: if `spec` uses an unknown axis, or an axis twice, or if the devices have no such memory.

    Example:
        >>> rows = jax.NamedSharding(jax.make_mesh((4,), ("rows",)), P("rows"))
        >>> rows.shard_shape((8, 3))
        (2, 3)
    """

    def __init__(self, mesh: Mesh | AbstractMesh, spec: PartitionSpec, *, memory_kind: str | None = None):
        if not isinstance(mesh, (Mesh, AbstractMesh)):
            raise TypeError(f"NamedSharding needs a Mesh, not {mesh!r}")
        if not isinstance(spec, PartitionSpec):
            raise TypeError(f"NamedSharding needs a PartitionSpec, not {spec!r}: write PartitionSpec({spec!r})")
        self.mesh = mesh
        self.spec = spec
        self.grid = mesh if isinstance(mesh, Mesh) else absent_mesh(mesh)
        self.mesh_shape = self.grid.abstract
        self.devices = self.grid.flat_devices
        self.kind = _other_memory("NamedSharding", memory_kind, self.devices)
        pin_of(spec, (1,) * len(spec), self.mesh_shape)  # an unknown or repeated axis is an error here already

    def pin(self, shape: tuple[int, ...], reason: str = "") -> Pin:
        return pin_of(self.spec, shape, self.mesh_shape, reason)

    def with_spec(self, spec: Any) -> "NamedSharding":
        """Another spec on the same mesh."""
        return self.update(spec=spec if isinstance(spec, PartitionSpec) else PartitionSpec(*spec))

    def with_memory_kind(self, kind: str | None) -> "NamedSharding":
        return NamedSharding(self.mesh, self.spec, memory_kind=kind)

    def update(
        self, *, mesh: Mesh | None = None, spec: PartitionSpec | None = None, memory_kind: str | None = None
    ) -> "NamedSharding":
        """This sharding with another mesh, another spec, or in another memory."""
        return NamedSharding(
            self.mesh if mesh is None else mesh,
            self.spec if spec is None else spec,
            memory_kind=memory_kind or self.kind,
        )

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        entries = list(self.spec)
        while entries and entries[-1] is None:
            entries.pop()
        return self.mesh, tuple(entries), self.kind

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
        return f"NamedSharding(mesh({self.mesh_shape}), {self.spec}{_memory_text(self.kind)})"


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
        self.kind = _other_memory("SingleDeviceSharding", memory_kind, self.devices)

    def with_memory_kind(self, kind: str | None) -> "SingleDeviceSharding":
        return SingleDeviceSharding(self.devices[0], memory_kind=kind)

    def pin(self, shape: tuple[int, ...], reason: str = "") -> Pin:
        return Pin(Layout.replicated(len(shape)), reason=reason)

    @property
    def is_fully_replicated(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SingleDeviceSharding) and self.devices == other.devices and self.kind == other.kind

    def __hash__(self) -> int:
        return hash((self.devices, self.kind))

    def __repr__(self) -> str:
        return f"SingleDeviceSharding({self.devices[0]}{_memory_text(self.kind)})"


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
        ShardingError: if a device occurs twice, or if the devices have no such memory.

    Example:
        >>> grid = jax.sharding.PositionalSharding(jax.devices()[:4]).reshape(2, 2)
        >>> grid.shard_shape((8, 6)), grid.replicate(1).shard_shape((8, 6))
        ((4, 3), (4, 6))
    """

    def __init__(self, devices: Any, *, memory_kind: str | None = None):
        grid = np.asarray(devices, dtype=object)
        self._set(tuple(grid.flat), grid.shape, tuple((axis,) for axis in range(grid.ndim)), memory_kind)

    def _set(
        self, devices: tuple[Any, ...], sizes: tuple[int, ...], dims: tuple[tuple[int, ...], ...], kind: str | None
    ) -> None:
        """`dims` are the axes, by number, that cut each dim; other axes replicate."""
        names = [f"axis{number}" for number in range(len(sizes))]
        self.mesh = Mesh(device_grid(devices, sizes), names)
        self.mesh_shape = self.mesh.abstract
        self.devices = devices
        self.layout = Layout(tuple(tuple(names[axis] for axis in dim) for dim in dims))
        self._dims = dims
        self.kind = _other_memory("PositionalSharding", kind, devices)

    @staticmethod
    def _made(
        devices: tuple[Any, ...], sizes: Sequence[int], dims: Sequence[tuple[int, ...]], kind: str | None = None
    ) -> "PositionalSharding":
        made = object.__new__(PositionalSharding)
        made._set(devices, tuple(sizes), tuple(dims), kind)
        return made

    def with_memory_kind(self, kind: str | None) -> "PositionalSharding":
        return self._made(self.devices, self.mesh.axis_sizes, self._dims, kind)

    @staticmethod
    def on(mesh: Mesh, layout: Layout) -> "PositionalSharding":
        """A layout on the mesh of another PositionalSharding."""
        dims = [tuple(mesh.axis_names.index(axis) for axis in axes) for axes in layout.dims]
        return PositionalSharding._made(mesh.flat_devices, mesh.axis_sizes, dims)

    @property
    def shape(self) -> tuple[int, ...]:
        """Into how many pieces each dim is cut."""
        return tuple(self.mesh_shape.extent(axes) for axes in self.layout.dims)

    @property
    def ndim(self) -> int:
        return len(self._dims)

    def reshape(self, *shape: Any) -> "PositionalSharding":
        """The same pieces in a grid of another shape; one size may be -1."""
        sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        count = math.prod(self.shape)
        if sizes.count(-1) == 1:
            rest = -math.prod(sizes)
            sizes = tuple(count // rest if size == -1 and rest else size for size in sizes)
        if math.prod(sizes) != count or any(size < 1 for size in sizes):
            raise ShardingError(f"PositionalSharding: {self.shape} is {count} pieces, which have no shape {shape}")
        parts = _factored([self.mesh.axis_sizes[axis] for dim in self._dims for axis in dim], sizes)
        if parts is None:  # 3×2 as 2×3: no order of axes does it, so the devices get another order
            copies = self._copies()
            grid = tuple(device for held in copies for device in held)
            axes = range(len(sizes))
            return self._made(grid, (*sizes, len(copies[0])), [(axis,) for axis in axes], self.kind)
        used = [axis for dim in self._dims for axis in dim]
        split: dict[int, list[int]] = {axis: [] for axis in used}
        for place, size in (part for dim in parts for part in dim):
            split[used[place]].append(size)
        fine: list[int] = []
        first: dict[int, int] = {}
        for axis, size in enumerate(self.mesh.axis_sizes):
            first[axis] = len(fine)
            fine += split.get(axis, [size])
        seen = dict.fromkeys(used, 0)
        dims = []
        for dim in parts:
            axes_here = []
            for place, _ in dim:
                axes_here.append(first[used[place]] + seen[used[place]])
                seen[used[place]] += 1
            dims.append(tuple(axes_here))
        return self._made(self.devices, fine, dims, self.kind)

    def transpose(self, *axes: Any) -> "PositionalSharding":
        """The grid with its dims in another order."""
        order = tuple(axes[0]) if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        order = order or tuple(reversed(range(self.ndim)))
        if sorted(order) != list(range(self.ndim)):
            raise ShardingError(f"PositionalSharding: {order} is no order of the {self.ndim} dims of {self.shape}")
        return self._made(self.devices, self.mesh.axis_sizes, [self._dims[dim] for dim in order], self.kind)

    @property
    def T(self) -> "PositionalSharding":
        return self.transpose()

    def replicate(self, axis: int | Sequence[int] | None = None, keepdims: bool = True) -> "PositionalSharding":
        """Every device holds what those along `axis` (all dims where None) held; these dims are 1, or are gone."""
        given = range(self.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        if wrong := [dim for dim in given if not -self.ndim <= dim < self.ndim]:
            raise ShardingError(f"PositionalSharding: {self.shape} has no dim {wrong[0]}")
        whole = {dim % self.ndim for dim in given}
        dims = [() if dim in whole else axes for dim, axes in enumerate(self._dims) if keepdims or dim not in whole]
        return self._made(self.devices, self.mesh.axis_sizes, dims, self.kind)

    def pin(self, shape: tuple[int, ...], reason: str = "") -> Pin:
        dims = self.layout.dims
        if self.is_fully_replicated:
            dims = ((),) * len(shape)
        while len(dims) > len(shape) and self.mesh_shape.extent(dims[0]) == 1:
            dims = dims[1:]
        if len(dims) != len(shape):
            raise ShardingError(
                f"PositionalSharding of shape {self.shape} cannot cut an array of rank {len(shape)} (shape {shape}): "
                "reshape it to one size a dim"
            )
        return Pin(Layout(dims), reason=reason)

    @property
    def is_fully_replicated(self) -> bool:
        return math.prod(self.shape) == 1

    def _copies(self) -> list[tuple[Any, ...]]:
        """The devices of each piece, in the order of the grid."""
        pieces: dict[tuple[int, ...], list[Any]] = {}
        positions = [self.mesh_shape.coordinates(axes) for axes in self.layout.dims]
        for number, device in enumerate(self.devices):
            pieces.setdefault(tuple(int(place[number]) for place in positions), []).append(device)
        return [tuple(pieces[place]) for place in sorted(pieces)]

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return self.devices, self.shape, tuple(map(frozenset, self._copies())), self.kind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PositionalSharding) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        cells = np.array([f"{{{','.join(str(device.id) for device in held)}}}" for held in self._copies()], object)
        grid = np.array2string(cells.reshape(self.shape), separator=" ", formatter={"all": str}).replace("\n", "")
        return f"PositionalSharding({' '.join(grid.split())}{_memory_text(self.kind)})"


def _memory_text(kind: str | None) -> str:
    return f", memory_kind={kind!r}" if kind else ""


def _factored(axes: Sequence[int], sizes: Sequence[int]) -> list[list[tuple[int, int]]] | None:
    """For each of `sizes`, the parts (axis, size) of axes in a row that make it up; None where there are none."""
    left = [(place, size) for place, size in enumerate(axes) if size > 1]
    dims = []
    for size in sizes:
        parts, need = [], size
        while need > 1:
            place, have = left[0]
            if have % need and need % have:
                return None
            parts.append((place, min(have, need)))
            if have > need:
                left[0] = (place, have // need)
            else:
                left.pop(0)
            need //= min(have, need)
        dims.append(parts)
    return dims


def mesh_of(where: Sharding | Mesh | None) -> Mesh | None:
    """The mesh that a sharding is about; None where it is about one device."""
    if isinstance(where, Mesh):
        return where
    if isinstance(where, NamedSharding):
        return where.grid
    return where.mesh if isinstance(where, PositionalSharding) else None


def sharding_in_force(spec: PartitionSpec, what: str) -> NamedSharding:
    """What a bare spec means: it on the mesh in force."""
    if mesh_context.mesh is None:
        raise TypeError(
            f"{what}: a bare {spec} needs a mesh: write NamedSharding(mesh, {spec}), or set the mesh that is meant, "
            "with `with mesh:` or `set_mesh(mesh)`"
        )
    return NamedSharding(mesh_context.mesh, spec)
