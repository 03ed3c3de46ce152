"""Layout: the sharding of a value on a mesh. Pin: a layout that the user requested.

    Layout((("data",), ()))                        rows sharded along data
    Layout(((), ()), partial=(("model", SUM),))    each device along model holds a term of the sum

A value is replicated along the axes that are not in its layout. The axes of a dim are ordered, major first.
"""

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from shardwise.compiler.reduction import SUM, Reduction, reduction_named
from shardwise.compiler.shardings.mesh import AbstractMesh


@final
@dataclass(frozen=True)
class Layout:
    """The axes that shard each dim, and the axes over which the value is partial, each with its reduction."""

    dims: tuple[tuple[str, ...], ...]
    partial: tuple[tuple[str, Reduction], ...] = ()

    @staticmethod
    def replicated(ndim: int) -> "Layout":
        return Layout(((),) * ndim)

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes over which the value is sharded or partial."""
        return tuple(axis for axes in self.dims for axis in axes) + tuple(axis for axis, _ in self.partial)

    def dim_of(self, axis: str) -> int | None:
        """Return the dim that is sharded along `axis`; None if there is none."""
        return next((dim for dim, axes in enumerate(self.dims) if axis in axes), None)

    def is_partial(self, axis: str) -> bool:
        return any(axis == name for name, _ in self.partial)

    def with_dim(self, dim: int, axes: tuple[str, ...]) -> "Layout":
        return Layout((*self.dims[:dim], axes, *self.dims[dim + 1 :]), self.partial)

    def without_partial(self, *axes: str) -> "Layout":
        return Layout(self.dims, tuple(p for p in self.partial if p[0] not in axes))

    def evenly(self, shape: Sequence[int], mesh: AbstractMesh) -> "Layout":
        """Return the layout with the first axes of each dim that divide its size; others replicate."""
        dims = []
        for size, axes in zip(shape, self.dims, strict=True):
            count = next((count for count in range(len(axes)) if size % mesh.extent(axes[: count + 1])), len(axes))
            dims.append(axes[:count])
        return Layout(tuple(dims), self.partial)

    def shard_shape(self, shape: Sequence[int], mesh: AbstractMesh) -> tuple[int, ...]:
        """Return the shape of one shard of an array whose padded shape is `shape`."""
        return tuple([size // mesh.extent(axes) if axes else size for size, axes in zip(shape, self.dims, strict=True)])

    def padded_shape(self, shape: Sequence[int], mesh: AbstractMesh) -> tuple[int, ...]:
        """Return `shape` with every dim rounded up to a multiple of its number of shards."""
        extents = [mesh.extent(axes) for axes in self.dims]
        return tuple(-(-size // extent) * extent for size, extent in zip(shape, extents, strict=True))

    def shard_indices(self, shape: Sequence[int], mesh: AbstractMesh) -> list[tuple[slice, ...]]:
        """Return the index of each device's shard in an array of this shape, without padding, in device order."""
        shard_shape = self.shard_shape(self.padded_shape(shape, mesh), mesh)
        starts = [mesh.coordinates(axes) * size for axes, size in zip(self.dims, shard_shape, strict=True)]
        return [
            tuple(
                slice(min(int(start[device]), limit), min(int(start[device]) + size, limit))
                for start, size, limit in zip(starts, shard_shape, shape, strict=True)
            )
            for device in range(mesh.device_count)
        ]

    def __str__(self) -> str:
        dims = ", ".join("None" if not a else repr(a[0]) if len(a) == 1 else repr(a) for a in self.dims)
        partial = "".join(f" + {reduction} over {axis!r}" for axis, reduction in self.partial)
        return f"P({dims}){partial}"


def partial_sums(axes: Iterable[str]) -> tuple[tuple[str, Reduction], ...]:
    """Return the `partial` of a layout that is a sum of one term per device along each of these axes."""
    return tuple((axis, SUM) for axis in sorted(axes))


def parse_layout(text: str) -> Layout:
    """Parse a printed layout.

    Raises:
        ValueError: if `text` is not a layout.
    """
    match = re.fullmatch(r"P\((.*?)\)((?: \+ \w+ over '[^']*')*)", text.strip())
    if match is None:
        raise ValueError(f"not a layout: {text!r}")
    entries = ast.literal_eval(f"({match[1]},)") if match[1] else ()
    dims = tuple(() if e is None else e if isinstance(e, tuple) else (e,) for e in entries)
    partial = tuple((axis, reduction_named(name)) for name, axis in re.findall(r"\+ (\w+) over '(\w+)'", match[2]))
    return Layout(dims, partial)


@final
@dataclass(frozen=True)
class Pin:
    """A layout that the user requested for an argument, a constraint or an output.

    Attributes:
        layout: the layout.
        open_dims: the dims that may be sharded along further axes; the other dims are closed.
        reason: where the user requested it, for messages.
    """

    layout: Layout
    open_dims: frozenset[int] = frozenset()
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.layout}{''.join(f' open {dim}' for dim in sorted(self.open_dims))}"
