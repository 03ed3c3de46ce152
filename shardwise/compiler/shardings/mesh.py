"""Meshes: devices in a grid with named axes.

`AbstractMesh` holds the names and sizes of the axes, which is all that the compiler reads. `Mesh` adds the devices,
which are opaque here. `mesh_context` holds the current mesh of a thread (`with mesh:`), to which bare PartitionSpecs
refer, with the axis types that `auto_axes`, `explicit_axes` and `use_abstract_mesh` set.
"""

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ContextDecorator, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar, final
from weakref import WeakValueDictionary

import numpy as np

from shardwise.base.caches import registered_cache
from shardwise.base.call_site import warn_user
from shardwise.base.config import config
from shardwise.base.render_hooks import renderers
from shardwise.base.unspecified import UNSPECIFIED
from shardwise.errors import ShardingError


@final
class AxisType(Enum):
    """The type of a mesh axis: who decides how values are sharded along it.

    `Auto`: the planner. `Explicit`: the types of the program. `Manual`: the program itself, as inside `shard_map`.

    Example:
        >>> jax.make_mesh((4,), ("rows",)).axis_types
        (Auto,)
    """

    Auto = "auto"
    Explicit = "explicit"
    Manual = "manual"

    def __repr__(self) -> str:
        return self.name


@final
@dataclass(frozen=True)
class AbstractDevice:
    """A kind of devices, for an `AbstractMesh`.

    Attributes:
        device_kind: the name of the chip, such as "TPU v5p".
        num_cores: the number of cores per device; None if the platform does not tell.
        platform: the platform, such as "tpu".

    Example:
        >>> jax.sharding.AbstractDevice("TPU v5p", 2, "tpu")
        AbstractDevice(device_kind=TPU v5p, num_cores=2, platform=tpu)
    """

    device_kind: str
    num_cores: int | None
    platform: str

    def __repr__(self) -> str:
        return f"AbstractDevice(device_kind={self.device_kind}, num_cores={self.num_cores}, platform={self.platform})"


def typed_axes(axes: Iterable[str], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the axes that types show: without those of size 1 if `remove_size_one_mesh_axis_from_type` is on."""
    removes_size_one = config.remove_size_one_mesh_axis_from_type
    return tuple(axis for axis in axes if not (removes_size_one and sizes.get(axis) == 1))


class _MeshAxes:
    """The axes of a mesh by type, for `AbstractMesh` and `Mesh`."""

    axis_names: tuple[str, ...]
    axis_types: tuple[AxisType, ...]

    def axes_of_type(self, axis_type: AxisType) -> tuple[str, ...]:
        """Return the names of the axes of one type, in order."""
        pairs = zip(self.axis_names, self.axis_types, strict=True)
        return tuple(name for name, kind in pairs if kind is axis_type)

    @cached_property
    def explicit_axes(self) -> tuple[str, ...]:
        return self.axes_of_type(AxisType.Explicit)

    @cached_property
    def auto_axes(self) -> tuple[str, ...]:
        return self.axes_of_type(AxisType.Auto)

    @cached_property
    def manual_axes(self) -> tuple[str, ...]:
        return self.axes_of_type(AxisType.Manual)

    @property
    def are_all_axes_auto(self) -> bool:
        """Whether the mesh has axes, all of them Auto."""
        return self._has_only(AxisType.Auto)

    @property
    def are_all_axes_explicit(self) -> bool:
        """Whether the mesh has axes, all of them Explicit."""
        return self._has_only(AxisType.Explicit)

    @property
    def are_all_axes_manual(self) -> bool:
        """Whether the mesh has axes, all of them Manual."""
        return self._has_only(AxisType.Manual)

    def _has_only(self, axis_type: AxisType) -> bool:
        return bool(self.axis_types) and all(kind is axis_type for kind in self.axis_types)

    def _repr_html_(self) -> str | None:
        """Return a picture of the devices for notebooks; None for a mesh without axes, which notebooks show as text."""
        return renderers.pictures.mesh_html(self)


@final
class AbstractMesh(_MeshAxes):
    """The names, sizes and types of a mesh's axes, without devices.

    Programs can be planned and lowered for it, but not run.

    Args:
        axis_sizes: the size of each axis.
        axis_names: the name of each axis.
        axis_types: an `AxisType` for all axes, or one per axis; by default `AxisType.Auto`.
        abstract_device: the kind of the devices, if the mesh is for one kind only. Meshes with different ones differ.

    Raises:
        ShardingError: if sizes, names and types differ in number, if a name repeats, or if a size is less than 1.
        TypeError: if `axis_types` holds something else.

    Example:
        >>> jax.sharding.AbstractMesh((64, 8), ("data", "model")).size
        512
    """

    def __init__(
        self,
        axis_sizes: Sequence[int],
        axis_names: Sequence[str],
        axis_types: AxisType | Sequence[AxisType] | None = None,
        *,
        abstract_device: AbstractDevice | None = None,
    ):
        if wrong := [size for size in axis_sizes if not hasattr(size, "__index__")]:
            raise ShardingError(f"a mesh needs one integer per axis: {wrong[0]!r} in {tuple(axis_sizes)} is none")
        self.axis_sizes = tuple(int(size) for size in axis_sizes)
        self.axis_names = tuple(axis_names)
        if len(self.axis_sizes) != len(self.axis_names):
            raise ShardingError(
                f"a mesh needs one name per axis: sizes {self.axis_sizes} have {len(self.axis_sizes)} axes, "
                f"names {self.axis_names} have {len(self.axis_names)}"
            )
        if None in self.axis_names:
            raise ShardingError(f"mesh axis names cannot be None: {self.axis_names}")
        if repeated := {n for n in self.axis_names if self.axis_names.count(n) > 1}:
            raise ShardingError(f"mesh axis names must differ: {sorted(repeated)} repeat in {self.axis_names}")
        if any(size < 1 for size in self.axis_sizes):
            raise ShardingError(f"mesh axis sizes must be at least 1, not {self.axis_sizes}")
        self.axis_types = _axis_types(axis_types, self.axis_names)
        self.abstract_device = abstract_device
        self.shape = dict(zip(self.axis_names, self.axis_sizes, strict=True))
        self.device_count = math.prod(self.axis_sizes)  # a program on a mesh without axes runs on one device
        self.size = self.device_count if self.axis_names else 0

    @property
    def abstract(self) -> "AbstractMesh":
        """The mesh itself; `Mesh` has the same attribute."""
        return self

    @property
    def empty(self) -> bool:
        """Whether the mesh has no axes, as when no mesh is set."""
        return not self.axis_names

    @property
    def shape_tuple(self) -> tuple[tuple[str, int], ...]:
        return tuple(self.shape.items())

    @property
    def abstract_mesh(self) -> "AbstractMesh":
        """The mesh itself; `Mesh` has the same attribute."""
        return self

    def update(
        self,
        axis_sizes: Sequence[int] | None = None,
        axis_names: Sequence[str] | None = None,
        axis_types: AxisType | Sequence[AxisType] | None = None,
        *,
        abstract_device: AbstractDevice | None = UNSPECIFIED,
    ) -> "AbstractMesh":
        """Return the mesh with other sizes, names or types of its axes, or another kind of devices."""
        return AbstractMesh(
            self.axis_sizes if axis_sizes is None else axis_sizes,
            self.axis_names if axis_names is None else axis_names,
            self.axis_types if axis_types is None else axis_types,
            abstract_device=self.abstract_device if abstract_device is UNSPECIFIED else abstract_device,
        )

    def update_axis_types(self, axis_types: Mapping[str, AxisType]) -> "AbstractMesh":
        """Return the mesh with other types for these axes."""
        kinds = {**dict(zip(self.axis_names, self.axis_types, strict=True)), **axis_types}
        return self.update(axis_types=tuple(kinds.values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbstractMesh) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[Any, ...]:
        return self.axis_sizes, self.axis_names, self.axis_types, self.abstract_device

    def __str__(self) -> str:
        return ", ".join(
            f"{name}={size}" if kind is AxisType.Auto else f"{name}={size} {kind.value}"
            for (name, size), kind in zip(self.shape.items(), self.axis_types, strict=True)
        )

    def __repr__(self) -> str:
        return f"AbstractMesh({self}{'' if self.abstract_device is None else f', {self.abstract_device}'})"

    def extent(self, axes: Iterable[str]) -> int:
        """Return the product of the sizes of these axes: the number of shards of a dim that they shard."""
        return math.prod(self.shape[axis] for axis in axes)

    def coordinates(self, axes: Sequence[str]) -> np.ndarray[Any, Any]:
        """Return the flattened position of every device along `axes` (first axis major), in device order."""
        grid = np.indices(self.axis_sizes).reshape(len(self.axis_sizes), self.device_count)
        position = np.zeros(self.device_count, np.int64)
        for axis in axes:
            position = position * self.shape[axis] + grid[self.axis_names.index(axis)]
        return position

    def groups(self, axes: Sequence[str], parts: Sequence[Sequence[int]] | None = None) -> np.ndarray[Any, Any]:
        """Return the groups of devices that differ only along `axes`, one row per group, ordered along `axes`.

        Args:
            axes: the axes.
            parts: sets of positions along `axes` that split each group, so that a row is one part. The rows of smaller
                parts end with -1.
        """
        rest = [axis for axis in self.axis_names if axis not in axes]
        order = [self.axis_names.index(axis) for axis in (*rest, *axes)]
        groups = np.arange(self.device_count).reshape(self.axis_sizes).transpose(order).reshape(-1, self.extent(axes))
        if parts is None:
            return groups
        size = max(map(len, parts))
        padded = np.array([[*part, *[-1] * (size - len(part))] for part in parts])
        return np.where(padded < 0, -1, groups[:, padded]).reshape(-1, size)

    def unknown_axis_message(self, axis: str) -> str:
        """Return the error message for an unknown axis name, with a suggestion."""
        near = get_close_matches(axis, self.axis_names, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Its axes are {', '.join(map(repr, self.axis_names))}."
        return f"the mesh {self} has no axis {axis!r}. {hint}"


def parse_mesh(text: str) -> AbstractMesh:
    """Return the abstract mesh that prints as `text`, such as `data=4, model=2 explicit`."""
    axes = [part.partition("=") for part in text.split(", ") if part]
    sizes = [size.partition(" ") for _, _, size in axes]
    types = [AxisType(kind or "auto") for _, _, kind in sizes]
    return AbstractMesh([int(size) for size, _, _ in sizes], [name for name, _, _ in axes], types)


def _axis_types(axis_types: AxisType | Sequence[AxisType] | None, names: tuple[str, ...]) -> tuple[AxisType, ...]:
    """Return the type of each axis, from the `axis_types` argument of a mesh."""
    if axis_types is None or isinstance(axis_types, AxisType):
        return (axis_types or AxisType.Auto,) * len(names)
    types = tuple(axis_types)
    if wrong := [kind for kind in types if not isinstance(kind, AxisType)]:
        raise TypeError(f"axis_types accepts AxisType.Auto, AxisType.Explicit or AxisType.Manual, not {wrong[0]!r}")
    if len(types) != len(names):
        raise ShardingError(f"axis_types needs one type per axis: {len(types)} types for the axes {names}")
    return types


def device_grid(devices: Sequence[Any], *shape: int | Sequence[int]) -> np.ndarray[Any, Any]:
    """Return an object array of devices, filled element by element, because numpy must not inspect the devices."""
    grid = np.empty(len(devices), object)
    grid[:] = devices
    return grid.reshape(*shape)


@final
@dataclass(frozen=True)
class AbsentDevice:
    """Placeholder for a device of an AbstractMesh, for which programs are planned but not run.

    Placeholders with equal ids are equal, because the caches that create them may be cleared at any time.
    """

    platform: ClassVar[str] = "cpu"
    device_kind: ClassVar[str] = "absent"
    process_index: ClassVar[int] = 0
    id: int

    @property
    def client(self) -> Any:
        raise ValueError("an AbstractMesh has no devices: programs can be planned for it, but it cannot hold arrays")


class _MeshContext(threading.local):
    """The current mesh of this thread, and the manual axes of the regions that are being traced."""

    def __init__(self) -> None:
        self.mesh: Mesh | AbstractMesh | None = None
        # Whether programs without committed arrays run on `mesh`. They do after `set_mesh`, but not in `with mesh:`.
        self.runs_programs = False
        self.region_mesh: Mesh | AbstractMesh | None = None  # the mesh of the innermost manual region
        self.manual_axes: frozenset[str] = frozenset()
        # Whether the axes of `mesh` differ from the default mesh of the traced program's values.
        self.scoped = False
        self.argument_mesh: AbstractMesh | None = None  # the mesh of the arguments of the traced function
        self.reads_argument_mesh = False  # whether the traced function has read `argument_mesh`
        self.outer: list[tuple[Mesh | AbstractMesh | None, bool, bool]] = []  # restored after `with mesh:`

    @property
    def state(self) -> "tuple[Mesh | AbstractMesh | None, bool, bool]":
        """The current mesh, whether it belongs to a part of a program, and whether programs run on it."""
        return self.mesh, self.scoped, self.runs_programs

    @state.setter
    def state(self, state: "tuple[Mesh | AbstractMesh | None, bool, bool]") -> None:
        self.mesh, self.scoped, self.runs_programs = state

    @property
    def concrete(self) -> "Mesh":
        """The current mesh; an empty mesh if there is none, or if it has no devices."""
        return self.mesh if isinstance(self.mesh, Mesh) else EMPTY_MESH

    @property
    def program_mesh(self) -> "Mesh | AbstractMesh | None":
        """The mesh on which programs without committed arrays run; None if they run on one device.

        It is the current mesh if `set_mesh` has set it or if it has Explicit axes.
        """
        mesh = self.mesh
        if mesh is None or mesh.explicit_axes:
            return mesh
        return mesh if self.runs_programs and isinstance(mesh, Mesh) else None

    @contextmanager
    def entered(self, mesh: "Mesh | AbstractMesh | None", scoped: bool = False) -> Iterator[None]:
        """Make `mesh` the current mesh in a `with` block."""
        before = self.mesh, self.region_mesh, self.scoped
        self.mesh, self.scoped = mesh, scoped
        self.region_mesh = None if self.region_mesh is None else mesh
        try:
            yield
        finally:
            self.mesh, self.region_mesh, self.scoped = before

    @contextmanager
    def traced_for(self, mesh: "AbstractMesh | None") -> Iterator[None]:
        """Trace a function of arguments on `mesh` in a `with` block.

        At the end, `reads_argument_mesh` is whether the function has read the mesh of its arguments. Reads of an inner
        function also count for the outer one.
        """
        before, outer_reads = self.argument_mesh, self.reads_argument_mesh
        self.argument_mesh, self.reads_argument_mesh = mesh, False
        try:
            yield
        finally:
            self.argument_mesh = before
            self.reads_argument_mesh |= outer_reads

    @contextmanager
    def outside_regions(self) -> Iterator[None]:
        """Leave all manual regions in a `with` block, to run an op on arrays."""
        before = self.region_mesh, self.manual_axes
        self.region_mesh, self.manual_axes = None, frozenset()
        try:
            yield
        finally:
            self.region_mesh, self.manual_axes = before

    @contextmanager
    def in_region(self, mesh: "Mesh | AbstractMesh", axes: Iterable[str]) -> Iterator[None]:
        """Trace or rewrite the program of a manual region over `axes` in a `with` block."""
        before = self.mesh, self.region_mesh, self.manual_axes
        self.mesh = mesh if isinstance(mesh, Mesh) else self.mesh
        self.region_mesh, self.manual_axes = mesh, self.manual_axes | frozenset(axes)
        try:
            yield
        finally:
            self.mesh, self.region_mesh, self.manual_axes = before


mesh_context = _MeshContext()


def mesh_of_types(mesh: "Mesh | AbstractMesh") -> "Mesh | AbstractMesh":
    """Return the mesh to use in types: in a manual region it is abstract, and the region's axes are Manual."""
    manual = {axis: AxisType.Manual for axis in mesh.axis_names if axis in mesh_context.manual_axes}
    return mesh.abstract.update_axis_types(manual) if manual else mesh


@final
class Mesh(_MeshAxes, ContextDecorator):
    """A grid of devices with named axes.

    `with mesh:` makes it the current mesh of this thread, on which bare PartitionSpecs are interpreted. Equal meshes
    are one object.

    Args:
        devices: an array of devices with one dim per axis. A flat list for several axes is reshaped, with a
            warning; it is an error if the setting `jax_compatibility` is "exact".
        axis_names: the name of each axis, or a single name.
        axis_types: an `AxisType` for all axes, or one per axis; by default `AxisType.Auto`.

    Raises:
        ShardingError: if dims, names and types differ in number, if a name repeats, or if a device occurs twice.
        TypeError: if `axis_types` holds something else.

    Example:
        >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
        >>> mesh.shape
        {'data': 2, 'model': 2}
    """

    abstract: AbstractMesh
    devices: np.ndarray[Any, Any]

    _interned: ClassVar[WeakValueDictionary[tuple[Any, ...], "Mesh"]] = WeakValueDictionary()

    def __new__(
        cls,
        devices: np.ndarray[Any, Any] | Sequence[Any],
        axis_names: str | Sequence[str],
        axis_types: AxisType | Sequence[AxisType] | None = None,
    ) -> "Mesh":
        self = super().__new__(cls)
        names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
        grid = np.array(devices, dtype=object)  # a copy, because the mesh's own array is made read-only below
        if grid.ndim == 1 and len(names) > 1 and not config.is_exact:
            sizes = _even_factors(grid.size, len(names))
            warn_user(
                f"Mesh got a flat list of {grid.size} devices for {len(names)} axis names, and arranges them as "
                f"{' × '.join(map(str, sizes))}. Write the shape: Mesh(np.array(devices).reshape{sizes}, {names})",
            )
            grid = grid.reshape(sizes)
        self.abstract = AbstractMesh(grid.shape, names, axis_types)
        if (manual := self.abstract.manual_axes) and not isinstance(grid.flat[0], AbsentDevice):
            warn_user(
                f"The Manual axes {', '.join(manual)} of a mesh are planned like Auto axes outside `shard_map`.",
            )
        if len(set(map(id, grid.flat))) != grid.size:
            raise ShardingError(f"a mesh cannot contain a device twice: {list(grid.flat)}")
        grid.flags.writeable = False
        self.devices = grid

        self.axis_names = self.abstract.axis_names
        self.axis_types = self.abstract.axis_types
        return cls._interned.setdefault(self._key, self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Mesh, (self.devices, self.axis_names, self.axis_types)

    def __copy__(self) -> "Mesh":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Mesh":
        return self

    @property
    def axis_sizes(self) -> tuple[int, ...]:
        return self.abstract.axis_sizes

    def update(
        self,
        devices: np.ndarray[Any, Any] | Sequence[Any] | None = None,
        axis_names: Sequence[str] | None = None,
        axis_types: AxisType | Sequence[AxisType] | None = None,
    ) -> "Mesh":
        """Return the mesh with other devices, names or types of its axes."""
        return Mesh(
            self.devices if devices is None else devices,
            self.axis_names if axis_names is None else axis_names,
            self.axis_types if axis_types is None else axis_types,
        )

    def with_axes(self, axes: AbstractMesh) -> "Mesh":
        """Return the mesh of the same devices, in the same order, with other axes."""
        if axes == self.abstract:
            return self
        return Mesh(device_grid(self.flat_devices, axes.axis_sizes), axes.axis_names, axes.axis_types)

    def with_auto_axes(self) -> "Mesh":
        """Return the mesh with Auto axes only."""
        return self if not self.explicit_axes else Mesh(self.devices, self.axis_names)

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """The mesh without its devices."""
        return self.abstract

    @property
    def shape(self) -> dict[str, int]:
        return self.abstract.shape

    @property
    def shape_tuple(self) -> tuple[tuple[str, int], ...]:
        return self.abstract.shape_tuple

    @property
    def size(self) -> int:
        return self.abstract.size

    @property
    def device_count(self) -> int:
        return self.abstract.device_count

    @property
    def empty(self) -> bool:
        return self.abstract.empty

    @property
    def device_ids(self) -> np.ndarray[Any, Any]:
        """The ids of the devices, as an array of the mesh's shape."""
        return np.array([device.id for device in self.flat_devices]).reshape(self.devices.shape)

    @property
    def local_devices(self) -> list[Any]:
        """The devices that belong to this process, in mesh order."""
        here = self.flat_devices[0].client.process_index()
        return [device for device in self.flat_devices if device.process_index == here]

    @property
    def is_multi_process(self) -> bool:
        """Whether the devices belong to several processes, or to another process than this one."""
        return len(self.local_devices) != self.device_count

    @cached_property
    def local_mesh(self) -> "Mesh":
        """The mesh of this process's devices, with the same axes.

        Raises:
            ShardingError: if this process has no device in the mesh, or if its devices do not form a grid. Devices at
                (0, 0) and (1, 1) alone, for example, form no rows and columns.
        """
        process = self.flat_devices[0].client.process_index()
        here = np.array([device.process_index == process for device in self.flat_devices]).reshape(self.devices.shape)
        positions = [
            np.flatnonzero(here.any(axis=tuple(other for other in range(here.ndim) if other != axis)))
            for axis in range(here.ndim)
        ]
        grid = np.ix_(*positions)
        if not here.any() or not here[grid].all():
            raise ShardingError(
                f"local_mesh: the devices of process {process} in the mesh {self.abstract} must be a grid, but they "
                f"are at {[tuple(map(int, place)) for place in np.argwhere(here)]}. Order the devices of the mesh by "
                "process, as `make_mesh` does."
            )
        return Mesh(self.devices[grid], self.axis_names, self.axis_types)

    def __enter__(self) -> "Mesh":
        mesh_context.outer.append(mesh_context.state)
        mesh_context.mesh, mesh_context.scoped = self, False
        return self

    def __exit__(self, *exception: object) -> None:
        mesh_context.state = mesh_context.outer.pop()

    @cached_property
    def flat_devices(self) -> tuple[Any, ...]:
        """The devices in row-major order; the position of a device is its replica index."""
        return tuple(self.devices.flat)

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return self.abstract, self.flat_devices

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Mesh) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        """Return `Mesh(data=4, model=2)`, or JAX's text if `jax_compatibility` is "exact"."""
        if not config.is_exact:
            return repr(self)
        axes = ", ".join(f"{name!r}: {size}" for name, size in self.shape.items())
        return f"Mesh({axes}, axis_types={self.axis_types})"

    def __repr__(self) -> str:
        if not config.is_exact:
            return f"Mesh({self.abstract})"
        return f"Mesh(axis_sizes={self.axis_sizes}, axis_names={self.axis_names}, axis_types={self.axis_types})"


def _even_factors(count: int, parts: int) -> tuple[int, ...]:
    """Return `parts` factors of `count` that are as equal as possible, largest first: 8 → 4 × 2, 2 × 2 × 2."""
    if parts == 1:
        return (count,)
    root = count ** (1 / parts)
    last = max(d for d in range(1, int(root + 1e-9) + 1) if count % d == 0)
    return tuple(sorted((*_even_factors(count // last, parts - 1), last), reverse=True))


EMPTY_MESH = Mesh(np.empty((), object), ())  # the public value of the current mesh if none is set


@registered_cache(maxsize=256)
def absent_mesh(mesh: AbstractMesh) -> Mesh:
    """Return a mesh of placeholder devices, for which programs can be planned and lowered, but not run."""
    absent = [AbsentDevice(index) for index in range(mesh.device_count)]
    return Mesh(device_grid(absent, mesh.axis_sizes), mesh.axis_names, mesh.axis_types)


def ranks_of(devices: Sequence[Any]) -> tuple[int, ...]:
    """Return the sorted indices of the processes that own these devices."""
    return tuple(sorted({device.process_index for device in devices}))


ONE_DEVICE = AbstractMesh((), ())  # the mesh of arrays that are on a single device
