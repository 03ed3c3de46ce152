"""ExplicitSharding: the part of an array's type that says how the array is sharded along Explicit mesh axes.

    f32[8@X,4]          dim 0 is sharded along X
    f32[8@(X,Y),4]      dim 0 is sharded along X and Y, X major
    f32[2,2]{U:X}       unreduced: each device along X holds a term of the sum
    f32[2,2]{R:X}       reduced: replicated along X, and the cotangent is unreduced

Only Explicit axes occur in types. The planner decides along Auto axes, the program itself along Manual ones.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import final

from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh

Axes = tuple[str, ...]


@final
@dataclass(frozen=True)
class ExplicitSharding:
    """The sharding of a value along the Explicit axes of a mesh. A type has None where the value is replicated.

    Attributes:
        mesh: the mesh.
        dims: the axes that shard each dim, major first.
        unreduced: the axes over which the value is the sum of the devices' terms, in the order of the mesh.
        reduced: the axes along which the value is replicated and its cotangent is unreduced.
    """

    mesh: Mesh | AbstractMesh
    dims: tuple[Axes, ...]
    unreduced: Axes = ()
    reduced: Axes = ()

    @staticmethod
    def of(
        mesh: Mesh | AbstractMesh, dims: Sequence[Axes], unreduced: Iterable[str] = (), reduced: Iterable[str] = ()
    ) -> "ExplicitSharding | None":
        """Return the sharding with only the Explicit axes of these; None if it is replicated along all of them."""
        explicit = mesh.abstract.explicit_axes
        kept = tuple(tuple(axis for axis in axes if axis in explicit) for axes in dims)
        sums, copies = (tuple(axis for axis in explicit if axis in set(axes)) for axes in (unreduced, reduced))
        return ExplicitSharding(mesh, kept, sums, copies) if any(kept) or sums or copies else None

    @property
    def cotangent(self) -> "ExplicitSharding":
        """The sharding of the cotangent: unreduced where the primal is reduced, and the other way round."""
        return ExplicitSharding(self.mesh, self.dims, self.reduced, self.unreduced)

    def without_axes(self, axes: Collection[str]) -> "ExplicitSharding | None":
        """Return the sharding along the other axes: that of a shard in a manual region over `axes`."""
        dims = tuple(tuple(axis for axis in of_dim if axis not in axes) for of_dim in self.dims)
        sums, copies = ([axis for axis in of if axis not in axes] for of in (self.unreduced, self.reduced))
        return ExplicitSharding.of(self.mesh, dims, sums, copies)

    def without_dims(self, dims: Collection[int]) -> "ExplicitSharding | None":
        """Return the sharding of a value that lacks these dims."""
        kept = tuple(axes for dim, axes in enumerate(self.dims) if dim not in dims)
        return ExplicitSharding.of(self.mesh, kept, self.unreduced, self.reduced)

    def replicating(self, dim: int) -> "ExplicitSharding | None":
        """Return the sharding of the same value with one dim replicated."""
        dims = (*self.dims[:dim], (), *self.dims[dim + 1 :])
        return ExplicitSharding.of(self.mesh, dims, self.unreduced, self.reduced)

    def format_dims(self, shape: Sequence[int]) -> str:
        """Return the dims of a type as text: `8@X,4`."""
        return ",".join(f"{size}{_suffix(axes)}" for size, axes in zip(shape, self.dims, strict=True))

    def format_sums(self) -> str:
        """Return the unreduced and reduced axes of a type as text: `{U:X}`."""
        groups = [f"{name}:{','.join(axes)}" for name, axes in (("U", self.unreduced), ("R", self.reduced)) if axes]
        return f"{{{', '.join(groups)}}}" if groups else ""


def _suffix(axes: Axes) -> str:
    return "" if not axes else f"@{axes[0]}" if len(axes) == 1 else f"@({','.join(axes)})"
