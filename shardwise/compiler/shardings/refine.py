"""Meshes over the same devices in the same order, as one: the mesh whose axes are common pieces of all their axes.

4×2 and 2×4 are both 2×2×2, whose axes they join in other ways: an array that lies on one of them lies on that mesh too,
without moving, and so programs can mix them.

    axes_on(AbstractMesh((4, 2), ("a", "b")), AbstractMesh((2, 2, 2), ("a_0", "a_1", "b")))
    == {"a": ("a_0", "a_1"), "b": ("b",)}
"""

import math
from collections.abc import Mapping, Sequence
from itertools import count, pairwise

from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh, AxisType, Mesh, device_grid

# An axis: from one neighbour along it to the next it is so many devices, and so many to where it ends.
Stretch = tuple[int, int]


def common_mesh(meshes: Sequence[Mesh]) -> Mesh | None:
    """The coarsest mesh that all of these are joins of; one of them where it will do. None where there is none."""
    first = meshes[0]
    if any(mesh.flat_devices != first.flat_devices for mesh in meshes):
        return None
    ends = sorted({end for mesh in meshes for stretch in _stretches(mesh.abstract).values() for end in stretch})
    if any(high % low for low, high in pairwise(ends)):
        return None
    wanted = list(reversed(list(pairwise(ends))))
    for mesh in meshes:
        if [stretch for stretch in _stretches(mesh.abstract).values() if stretch[0] < stretch[1]] == wanted:
            return mesh
    names: list[str] = []
    for stretch in wanted:
        names.append(_name(stretch, meshes, names))
    return Mesh(device_grid(first.flat_devices, [high // low for low, high in wanted]), names)


def split_mesh(mesh: AbstractMesh, parts: Mapping[str, int]) -> AbstractMesh:
    """The mesh with axes taken in two: `parts` gives the size of the major piece of each."""
    names: list[str] = []
    sizes: list[int] = []
    types: list[AxisType] = []
    for (name, size), kind in zip(mesh.shape.items(), mesh.axis_types, strict=True):
        pieces = (parts[name], size // parts[name]) if name in parts else (size,)
        taken = [*mesh.axis_names, *names]
        names += [_new(name, taken), _new(name, [*taken, _new(name, taken)])] if name in parts else [name]
        sizes += pieces
        types += [kind] * len(pieces)
    return AbstractMesh(sizes, names, types)


def sub_axes_of(coarse: AbstractMesh, fine: AbstractMesh) -> dict[str, tuple[str, ...]]:
    """For each axis of a mesh, the axes of a finer one that it is made of."""
    pieces = _stretches(fine)
    return {
        axis: tuple(name for name, (start, end) in pieces.items() if low <= start < end <= high)
        for axis, (low, high) in _stretches(coarse).items()
    }


def refine_pin(pin: Pin, coarse: AbstractMesh, fine: AbstractMesh) -> Pin:
    """A pin on a mesh, said on a finer one."""
    if coarse == fine:
        return pin
    axes = sub_axes_of(coarse, fine)
    dims = tuple(tuple(piece for axis in dim for piece in axes[axis]) for dim in pin.layout.dims)
    return Pin(Layout(dims), pin.open_dims, pin.reason)


def coarsen_layout(layout: Layout, coarse: AbstractMesh, fine: AbstractMesh) -> Layout | None:
    """A layout on a fine mesh, said on a coarser one; None where it takes an axis of that apart."""
    whole = {pieces[0]: (axis, pieces) for axis, pieces in sub_axes_of(coarse, fine).items() if pieces}
    dims = []
    for dim in layout.dims:
        axes, rest = [], dim
        while rest:
            axis, pieces = whole.get(rest[0], ("", ()))
            if not axis or rest[: len(pieces)] != pieces:
                return None
            axes.append(axis)
            rest = rest[len(pieces) :]
        dims.append(tuple(axes))
    return Layout(tuple(dims))


def coarsen_to_first(layout: Layout, meshes: Sequence[AbstractMesh], fine: AbstractMesh) -> Layout | None:
    """A layout on a fine mesh, said on the first of these meshes that has names for it; None where none has."""
    return next((said for mesh in meshes if (said := coarsen_layout(layout, mesh, fine)) is not None), None)


def _stretches(mesh: AbstractMesh) -> dict[str, Stretch]:
    low = [math.prod(mesh.axis_sizes[place + 1 :]) for place in range(len(mesh.axis_sizes))]
    return {
        name: (start, start * size) for name, start, size in zip(mesh.axis_names, low, mesh.axis_sizes, strict=True)
    }


def _name(stretch: Stretch, meshes: Sequence[Mesh], taken: Sequence[str]) -> str:
    """The name of the axis that is this stretch, in the first mesh that has it whole; or a new one, after its axis."""
    low, high = stretch
    for mesh in meshes:
        for name, (start, end) in _stretches(mesh.abstract).items():
            if (start, end) == stretch and name not in taken:
                return name
    inside = next(name for name, (start, end) in _stretches(meshes[0].abstract).items() if start <= low and high <= end)
    return _new(inside, [*(name for mesh in meshes for name in mesh.axis_names), *taken])


def _new(axis: str, known: Sequence[str]) -> str:
    """A name for a piece of an axis that is not among the known ones."""
    return next(name for number in count() if (name := f"{axis}_{number}") not in known)
