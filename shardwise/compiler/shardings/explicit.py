"""ExplicitSharding: the part of an array's type with its sharding along Explicit mesh axes.

    f32[8@X,4]          dim 0 is sharded along X
    f32[8@(X,Y),4]      dim 0 is sharded along X and Y, X major
    f32[2,2]{U:X}       unreduced: each device along X holds a term of the sum
    f32[2,2]{R:X}       reduced: replicated along X, and the cotangent is unreduced

Only Explicit axes shard dims in types. The planner decides along Auto axes, and the program itself along Manual axes.
In
a manual region, a value may also be unreduced or reduced along the Manual axes of the region:

| outside, along an Explicit axis X | inside a region over X | cotangent |
|---|---|---|
| sharded `8@X` | varying `{V:X}` | the same |
| replicated | replicated | the same |
| reduced `{R:X}` | reduced `{R:X}` | unreduced `{U:X}` |
| unreduced `{U:X}` | unreduced `{U:X}` | reduced `{R:X}` |
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import final

from shardwise.compiler.shardings.mesh import AbstractMesh, AxisType, Mesh

Axes = tuple[str, ...]


@final
@dataclass(frozen=True)
class ExplicitSharding:
    """The sharding of a value along the Explicit axes of a mesh. In a type, None means replicated.

    Attributes:
        mesh: the mesh. Inside a manual region it is abstract, and the axes of the region are Manual.
        dims: the axes that shard each dim, major first.
        unreduced: the axes over which the value is the sum of the devices' terms, in the order of the mesh.
        reduced: the axes along which the value is replicated and its cotangent is unreduced.
        scoped: whether `mesh` belongs to a part of the program (`auto_axes`, `explicit_axes`, `use_abstract_mesh`). The
            types, names and sizes of its axes may then differ from the axes of the mesh that the program runs on, so
            replicated values have such a sharding too.
    """

    mesh: Mesh | AbstractMesh
    dims: tuple[Axes, ...]
    unreduced: Axes = ()
    reduced: Axes = ()
    scoped: bool = False

    @staticmethod
    def from_dims(
        mesh: Mesh | AbstractMesh,
        dims: Sequence[Axes],
        unreduced: Iterable[str] = (),
        reduced: Iterable[str] = (),
        scoped: bool = False,
    ) -> "ExplicitSharding | None":
        """Return the sharding along these axes; None if it is replicated and not scoped.

        Only Explicit axes shard dims. Unreduced and reduced values exist along Explicit and Manual axes.
        """
        explicit, auto = mesh.explicit_axes, mesh.auto_axes
        kept = tuple(tuple(axis for axis in axes if axis in explicit) for axes in dims)
        sums, copies = (
            tuple(axis for axis in mesh.axis_names if axis in set(axes) and axis not in auto)
            for axes in (unreduced, reduced)
        )
        return ExplicitSharding(mesh, kept, sums, copies, scoped) if any(kept) or sums or copies or scoped else None

    @property
    def cotangent(self) -> "ExplicitSharding":
        """The sharding of the cotangent, in which the unreduced and reduced axes are swapped."""
        return ExplicitSharding(self.mesh, self.dims, self.reduced, self.unreduced, self.scoped)

    def inside_region(self, axes: Collection[str], tracked: bool) -> "ExplicitSharding | None":
        """Return the sharding of a shard in a manual region over `axes`; they are Manual there.

        `tracked` is whether types in the region record along which of its axes a value is unreduced or reduced.
        """
        mesh = self.mesh.abstract.update_axis_types(dict.fromkeys(axes, AxisType.Manual))
        sums, copies = ([axis for axis in of if tracked or axis not in axes] for of in (self.unreduced, self.reduced))
        return ExplicitSharding.from_dims(mesh, self.dims, sums, copies, self.scoped)

    @property
    def manual_sums(self) -> tuple[Axes, Axes]:
        """The Manual axes along which the value is unreduced, and the Manual axes along which it is reduced."""
        manual = self.mesh.abstract.manual_axes
        unreduced, reduced = (tuple(axis for axis in of if axis in manual) for of in (self.unreduced, self.reduced))
        return unreduced, reduced

    def with_manual_sums(self, unreduced: Iterable[str], reduced: Iterable[str]) -> "ExplicitSharding | None":
        """Return the sharding with other unreduced and reduced Manual axes, unchanged along Explicit axes."""
        explicit = self.mesh.abstract.explicit_axes
        sums, copies = ([axis for axis in of if axis in explicit] for of in (self.unreduced, self.reduced))
        return ExplicitSharding.from_dims(self.mesh, self.dims, (*sums, *unreduced), (*copies, *reduced), self.scoped)

    def without_dims(self, dims: Collection[int]) -> "ExplicitSharding | None":
        """Return the sharding of a value without these dims."""
        kept = tuple(axes for dim, axes in enumerate(self.dims) if dim not in dims)
        return ExplicitSharding.from_dims(self.mesh, kept, self.unreduced, self.reduced, self.scoped)

    def replicating(self, dim: int) -> "ExplicitSharding | None":
        """Return the sharding of the same value with one dim replicated."""
        dims = (*self.dims[:dim], (), *self.dims[dim + 1 :])
        return ExplicitSharding.from_dims(self.mesh, dims, self.unreduced, self.reduced, self.scoped)

    def format_dims(self, shape: Sequence[int]) -> str:
        """Format the dims of a type: `8@X,4`."""
        return ",".join(f"{size}{_suffix(axes)}" for size, axes in zip(shape, self.dims, strict=True))


def _suffix(axes: Axes) -> str:
    return "" if not axes else f"@{axes[0]}" if len(axes) == 1 else f"@({','.join(axes)})"
