"""HTML pictures of meshes, shardings and specs for notebooks: self-contained, on a light or a dark background.

The pictures are those of `drawing`, with a caption that has all names in full. Names are the user's, so they are
escaped.
"""

from collections.abc import Iterable
from html import escape

from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import UNCONSTRAINED, PartitionSpec
from shardwise.explain.drawing import draw_mesh, draw_shards, draw_spec
from shardwise.explain.page_assets import PICTURE_STYLE


def mesh_html(mesh: Mesh | AbstractMesh) -> str | None:
    """Draw the ids of the devices as a grid, with the axes and their types; None for a mesh without axes."""
    axes = mesh.abstract
    if axes.empty:
        return None
    pairs = zip(axes.shape.items(), axes.axis_types, strict=True)
    types = ", ".join(f"{name}={size} {kind.name}" for (name, size), kind in pairs)
    return _figure(draw_mesh(axes, _device_ids(mesh)), f"{_count_devices(mesh)}: {types}")


def sharding_html(sharding: NamedSharding) -> str:
    """Draw the devices that hold each shard of an array, whose shape is not known, along at most two dims."""
    mesh, spec = sharding.mesh_shape, sharding.spec
    layout = sharding.pin((1,) * len(spec)).layout
    used = {axis for axes in layout.dims for axis in axes} | spec.unreduced
    notes = [repr(sharding)]
    if sharded := [dim for dim, axes in enumerate(layout.dims) if axes][2:]:
        notes.append(f"also sharded, but not drawn: {', '.join(f'dim {dim}' for dim in sharded)}")
    if replicated := [axis for axis in mesh.axis_names if axis not in used and mesh.shape[axis] > 1]:
        notes.append(f"replicated over {_join(replicated)}")
    if spec.unreduced:
        notes.append(f"unreduced over {_join(sorted(spec.unreduced))}: each device holds a term of the sum")
    return _figure(draw_shards(layout, mesh, _device_ids(sharding.mesh)), *notes)


def spec_html(spec: PartitionSpec) -> str:
    """Draw the mesh axes that shard each dim."""
    entries = [_axes(entry) for entry in spec]
    notes = [repr(spec), *(["not sharded along any dim"] if not any(entries) and None not in entries else [])]
    return _figure(draw_spec(entries), *notes)


def _axes(entry: object) -> tuple[str, ...] | None:
    """Return the axes of an entry of a spec; None if the planner chooses them."""
    if entry is UNCONSTRAINED:
        return None
    return () if entry is None else entry if isinstance(entry, tuple) else (str(entry),)


def _device_ids(mesh: Mesh | AbstractMesh) -> list[int] | None:
    return [device.id for device in mesh.flat_devices] if isinstance(mesh, Mesh) else None


def _count_devices(mesh: Mesh | AbstractMesh) -> str:
    kind = f"{mesh.flat_devices[0].platform} " if isinstance(mesh, Mesh) else ""
    return f"{mesh.device_count} {kind}device{'s' if mesh.device_count > 1 else ''}"


def _join(axes: Iterable[str]) -> str:
    return " and ".join(map(repr, axes))


def _figure(svg: str, *notes: str) -> str:
    lines = "<br>".join(map(escape, notes))
    return f'<div class="shardwise-picture"><style>{PICTURE_STYLE}</style>{svg}<small>{lines}</small></div>'
