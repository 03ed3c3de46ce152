"""Refinement of meshes: layouts and pins on a mesh, expressed on a finer mesh of the same devices, and back.

The axes of the finer mesh are sub-axes of the coarse mesh's axes (Shardy: sub-axis). 4×2 and 2×4 devices in the same
order both refine to 2×2×2. A layout on either mesh is a layout on the refined mesh, so programs can mix them without
moving data. Sub-axes have the names that Shardy prints: `data:(4)2` has size 2, and the parts of `data` that are major
to it have total size 4.

    sub_axes_of(AbstractMesh((4, 2), ("a", "b")), AbstractMesh((2, 2, 2), ("a:(1)2", "a:(2)2", "b")))
    == {"a": ("a:(1)2", "a:(2)2"), "b": ("b",)}
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from shardwise.base.caches import registered_cache
from shardwise.compiler.shardings.explicit import Axes, ExplicitSharding
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh, AxisType, Mesh, device_grid

# The strides of an axis in device order: its own, and the stride of the next major axis (stride × size).
Strides = tuple[int, int]
_SUB_AXIS = re.compile(r"(.*):\((\d+)\)\d+")


def common_mesh(meshes: Sequence[Mesh], scoped: Iterable[AbstractMesh] = ()) -> Mesh | None:
    """Return the coarsest common refinement of meshes; if possible, one of these meshes.

    Args:
        meshes: the meshes.
        scoped: the meshes of parts of the program. The result refines their axes too, and keeps the axis types of
            `meshes`.

    Returns:
        The mesh; None if the meshes differ in devices or in device order, if their axes do not nest, or if Explicit
        axes of `meshes` would have to be split. A mesh with Explicit axes is preferred to one without.
    """
    mesh = _refine_all(meshes)
    for part in scoped:
        mesh = mesh and _split_for(mesh, part)
    return mesh


def _split_for(mesh: Mesh, part: AbstractMesh) -> Mesh | None:
    """Split the axes of a mesh so that they refine the axes of `part`; None if the axes do not nest."""
    ends = {end for strides in _strides(part).values() for end in strides}
    while True:  # an axis with several ends inside is split in two per round, at the most major end
        sizes = {}  # split axis → size of its major sub-axis
        for axis, (low, high) in _strides(mesh.abstract).items():
            inside = [end for end in ends if low < end < high]
            if any(end % low or high % end for end in inside):
                return None
            if inside:
                sizes[axis] = high // max(inside)
        if not sizes:
            return mesh if part.device_count == mesh.device_count else None
        mesh = mesh.with_axes(split_mesh(mesh.abstract, sizes))


def _refine_all(meshes: Sequence[Mesh]) -> Mesh | None:
    """Return the common refinement of meshes; the helper of `common_mesh` for meshes that are not scoped."""
    first = meshes[0]
    if any(mesh.flat_devices != first.flat_devices for mesh in meshes):
        return None
    ends = sorted({end for mesh in meshes for strides in _strides(mesh.abstract).values() for end in strides})
    # 2×3 and 3×2 devices have the ends 1, 2, 3, 6: an axis from 2 to 3 would have size 1.5.
    if any(high % low for low, high in pairwise(ends)):
        return None
    refined = list(reversed(list(pairwise(ends))))
    for mesh in sorted(meshes, key=lambda mesh: not mesh.abstract.explicit_axes):
        # Axes of size one have no extent, so their position does not matter.
        if [strides for strides in _strides(mesh.abstract).values() if strides[0] < strides[1]] == refined:
            return mesh
    if any(mesh.abstract.explicit_axes for mesh in meshes):
        return None  # types refer to the axes of one mesh
    names: list[str] = []
    for strides in refined:
        names.append(_axis_name(strides, meshes, names))
    return Mesh(device_grid(first.flat_devices, [high // low for low, high in refined]), names)


def split_mesh(mesh: AbstractMesh, parts: Mapping[str, int]) -> AbstractMesh:
    """Split axes of a mesh into two sub-axes each. `parts` has the size of the major sub-axis."""
    names: list[str] = []
    sizes: list[int] = []
    types: list[AxisType] = []
    for (name, size), kind in zip(mesh.shape.items(), mesh.axis_types, strict=True):
        sub_sizes = (parts[name], size // parts[name]) if name in parts else (size,)
        names += [_sub_axis(name, 1, sub_sizes[0]), _sub_axis(name, *sub_sizes)] if name in parts else [name]
        sizes += sub_sizes
        types += [kind] * len(sub_sizes)
    return AbstractMesh(sizes, names, types)


def sub_axes_of(coarse: AbstractMesh, fine: AbstractMesh) -> dict[str, tuple[str, ...]]:
    """Return, for each axis of a mesh, its sub-axes in a finer mesh."""
    fine_strides = _strides(fine)
    return {
        axis: tuple(name for name, (start, end) in fine_strides.items() if low <= start < end <= high)
        for axis, (low, high) in _strides(coarse).items()
    }


@registered_cache(maxsize=1024)
def axis_of_sub_axis(name: str) -> str:
    """Return the axis of which `name` is a sub-axis: "data" for "data:(4)2", and for "data" itself."""
    nested = _SUB_AXIS.fullmatch(name)
    return nested[1] if nested else name


def merge_sub_axes(mesh: AbstractMesh) -> AbstractMesh:
    """Return the mesh whose axes a finer mesh has split into sub-axes."""
    sizes: dict[str, int] = {}
    for name, size in mesh.shape.items():
        axis = axis_of_sub_axis(name)
        sizes[axis] = sizes.get(axis, 1) * size
    return mesh if len(sizes) == len(mesh.shape) else AbstractMesh(tuple(sizes.values()), tuple(sizes))


def refine_axis_types(coarse: AbstractMesh, fine: AbstractMesh) -> AbstractMesh:
    """Return the finer mesh with the axis types of the coarser one. Additional axes of size 1 are Auto."""
    if coarse.shape == fine.shape:
        return coarse
    coarse_types = dict(zip(coarse.axis_names, coarse.axis_types, strict=True))
    types = {part: coarse_types[axis] for axis, parts in sub_axes_of(coarse, fine).items() for part in parts}
    return fine.update_axis_types({**dict.fromkeys(fine.axis_names, AxisType.Auto), **types})


def refine_sharding(sharding: ExplicitSharding, fine: AbstractMesh) -> ExplicitSharding:
    """Express the sharding of a type on a finer mesh. A scoped sharding keeps the axis types of its own mesh."""
    coarse = sharding.mesh.abstract
    if coarse.shape == fine.shape:
        return replace(sharding, mesh=coarse if sharding.scoped else fine)
    sub_axes = sub_axes_of(coarse, fine)

    def refine(axes: Axes) -> Axes:
        return tuple([part for axis in axes for part in sub_axes[axis]])

    return ExplicitSharding(
        refine_axis_types(coarse, fine) if sharding.scoped else fine,
        tuple([refine(axes) for axes in sharding.dims]),
        refine(sharding.unreduced),
        refine(sharding.reduced),
        sharding.scoped,
    )


def refine_pin(pin: Pin, coarse: AbstractMesh, fine: AbstractMesh) -> Pin:
    """Express a pin on a finer mesh."""
    if coarse == fine:
        return pin
    sub_axes = sub_axes_of(coarse, fine)
    dims = tuple(tuple(sub_axis for axis in dim for sub_axis in sub_axes[axis]) for dim in pin.layout.dims)
    partial = ((part, reduction) for axis, reduction in pin.layout.partial for part in sub_axes[axis])
    return Pin(Layout(dims, tuple(sorted(partial))), pin.open_dims, pin.reason)


def coarsen_layout(layout: Layout, coarse: AbstractMesh, fine: AbstractMesh) -> Layout | None:
    """Express a layout of a fine mesh on a coarser mesh; return None if it splits an axis of the coarser mesh."""
    if coarse.shape == fine.shape:  # their axis types may differ
        return layout
    by_first = {sub_axes[0]: (axis, sub_axes) for axis, sub_axes in sub_axes_of(coarse, fine).items() if sub_axes}
    dims = []
    for dim in layout.dims:
        axes, rest = [], tuple(axis for axis in dim if fine.shape[axis] > 1)
        while rest:
            # An axis of the coarser mesh represents all of its sub-axes, which must be adjacent and in order.
            axis, sub_axes = by_first.get(rest[0], ("", ()))
            if not axis or rest[: len(sub_axes)] != sub_axes:
                return None
            axes.append(axis)
            rest = rest[len(sub_axes) :]
        dims.append(tuple(axes))
    terms = dict(layout.partial)
    partial = []
    for axis, sub_axes in by_first.values():
        reductions = {terms.pop(part, None) for part in sub_axes}
        if len(reductions) > 1:  # sub-axes with different partial states
            return None
        partial += [(axis, reduction) for reduction in reductions if reduction is not None]
    return None if terms else Layout(tuple(dims), tuple(sorted(partial)))


def coarsen_to_first(layout: Layout, meshes: Sequence[AbstractMesh], fine: AbstractMesh) -> Layout | None:
    """Express a layout of a fine mesh on the first of `meshes` on which that is possible; return None if on none."""
    coarse = (coarsen_layout(layout, mesh, fine) for mesh in meshes)
    return next((expressed for expressed in coarse if expressed is not None), None)


def _strides(mesh: AbstractMesh) -> dict[str, Strides]:
    low = [math.prod(mesh.axis_sizes[position + 1 :]) for position in range(len(mesh.axis_sizes))]
    return {
        name: (start, start * size) for name, start, size in zip(mesh.axis_names, low, mesh.axis_sizes, strict=True)
    }


def _axis_name(strides: Strides, meshes: Sequence[Mesh], used: Sequence[str]) -> str:
    """Return the name of the axis with these strides in the first mesh that has one; else a new sub-axis name."""
    low, high = strides
    for mesh in meshes:
        for name, (start, end) in _strides(mesh.abstract).items():
            if (start, end) == strides and name not in used:
                return name
    outer, end = next(
        (name, end)
        for name, (start, end) in _strides(meshes[0].abstract).items()
        if start <= low and high <= end and start < end
    )
    return _sub_axis(outer, end // high, high // low)


def _sub_axis(axis: str, major: int, size: int) -> str:
    """Return the name of a sub-axis of this size. `major` is the total size of the parts that are major to it."""
    if nested := _SUB_AXIS.fullmatch(axis):
        axis, major = nested[1], int(nested[2]) * major
    return f"{axis}:({major}){size}"
