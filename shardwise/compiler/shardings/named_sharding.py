"""NamedSharding: a mesh and a spec. `explicit_sharding` extracts the part of it that array types carry."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, final

from shardwise.base.config import config
from shardwise.base.render_hooks import renderers
from shardwise.compiler.shardings.explicit import ExplicitSharding
from shardwise.compiler.shardings.layout import Pin
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh, absent_mesh, mesh_context, typed_axes
from shardwise.compiler.shardings.sharding import Sharding, memory_text, nondefault_memory
from shardwise.compiler.shardings.spec import PartitionSpec, check_length, pin_of
from shardwise.errors import ShardingError


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
        self.nondefault_memory = nondefault_memory("NamedSharding", memory_kind, self.devices)
        pin_of(spec, (1,) * len(spec), self.mesh_shape)  # raises an error for an unknown or repeated axis
        for parameter, axes in (("unreduced", spec.unreduced), ("reduced", spec.reduced)):
            if wrong := sorted(axes - set(self.mesh_shape.explicit_axes)):
                raise ShardingError(
                    f"{spec}: {parameter} needs Explicit axes, and {', '.join(map(repr, wrong))} of the mesh "
                    f"{self.mesh_shape} is not: pass `axis_types` to `make_mesh`"
                )

    def pin(self, shape: tuple[int, ...], reason: str = "") -> Pin:
        return pin_of(self.spec, shape, self.mesh_shape, reason)

    def check_compatible_aval(self, aval_shape: Sequence[int]) -> None:
        super().check_compatible_aval(aval_shape)
        check_length(self.spec, tuple(aval_shape))

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
        """The sharding after reducing an unreduced array: the same, but replicated along the unreduced axes."""
        if not self.is_unreduced:
            return self
        return self.with_spec(PartitionSpec(*self.spec, reduced=self.spec.reduced))

    @property
    def is_fully_replicated(self) -> bool:
        if self.is_unreduced:
            return False
        return all(size == 1 for size in self.mesh_shape.axis_sizes) or not any(self.spec)

    def __repr__(self) -> str:
        if config.is_exact and isinstance(self.mesh, Mesh):
            return f"NamedSharding(mesh={self.mesh}, spec={self.spec}, memory_kind={self.memory_kind})"
        return f"NamedSharding(mesh({self.mesh_shape}), {self.spec}{memory_text(self.nondefault_memory)})"

    def _repr_html_(self) -> str:
        """Return a picture of the devices that hold each shard, for notebooks."""
        return renderers.pictures.sharding_html(self)


def unreduced_sharding(mesh: Mesh | AbstractMesh, spec: PartitionSpec) -> NamedSharding:
    """Return a sharding that may be unreduced along Auto axes too, for the arguments and results of compiled programs.

    Users cannot construct it: only types with Explicit axes tell that an array is unreduced, so an array with this
    sharding must not reach them.
    """
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    sharding.spec = spec
    return sharding


def explicit_sharding(sharding: Sharding, shape: tuple[int, ...], scoped: bool = False) -> ExplicitSharding | None:
    """Return the part of a sharding along the Explicit axes of its mesh, which array types carry.

    `scoped` is whether the mesh belongs to a part of the program.
    """
    if not isinstance(sharding, NamedSharding) or not (sharding.mesh_shape.explicit_axes or scoped):
        return None
    sizes = sharding.mesh_shape.shape
    dims = tuple(typed_axes(axes, sizes) for axes in sharding.pin(shape).layout.dims)
    unreduced, reduced = (typed_axes(axes, sizes) for axes in (sharding.spec.unreduced, sharding.spec.reduced))
    return ExplicitSharding.from_dims(sharding.mesh, dims, unreduced, reduced, scoped)


def traced_sharding(sharding: Sharding, shape: tuple[int, ...], scoped: bool = False) -> ExplicitSharding | None:
    """Return `explicit_sharding` for the types of traced values, in which the axes of a `shard_map` are Manual."""
    explicit = explicit_sharding(sharding, shape, scoped)
    if explicit is None or not mesh_context.manual_axes:
        return explicit
    return explicit.inside_region(mesh_context.manual_axes.intersection(explicit.mesh.axis_names), tracked=True)
