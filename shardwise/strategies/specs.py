"""Specs: which mesh axes each dim of a parameter has, and the checks of them."""

import math

from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import StrategyError

Dims = list[tuple[str, ...]]


def dims_of(spec: PartitionSpec, ndim: int) -> Dims:
    """Return the mesh axes of each of `ndim` dims."""
    entries = [*spec, *[None] * (ndim - len(spec))]
    return [() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for entry in entries]


def spec_of_dims(dims: Dims) -> PartitionSpec:
    """Return the spec of dims with these mesh axes, without Nones at its end."""
    entries = [None if not axes else axes[0] if len(axes) == 1 else axes for axes in dims]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def check_mesh(mesh: Mesh, who: str) -> None:
    """Raise StrategyError if an argument is not a mesh. `who` names the caller."""
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        raise StrategyError(f"{who}: mesh must be a Mesh, not {mesh!r:.80}")


def check_axis(mesh: Mesh, axis: str, who: str) -> int:
    """Return the size of a mesh axis.

    Raises:
        StrategyError: if the mesh has no such axis, or is not a mesh. `who` names the caller.
    """
    check_mesh(mesh, who)
    if axis not in mesh.axis_names:
        raise StrategyError(f"{who}: the mesh has no axis {axis!r}; it has {', '.join(map(repr, mesh.axis_names))}")
    return int(mesh.shape[axis])


def checked_sharding(
    mesh: Mesh, name: str, shape: tuple[int, ...], spec: PartitionSpec, who: str, allow_uneven: bool | None = None
) -> NamedSharding:
    """Return the sharding of an array of a tree. `allow_uneven` is an argument of the caller; None if it has none.

    Raises:
        StrategyError: if the spec does not fit the array, or if a dim is not divisible and not `allow_uneven`.
    """
    if not isinstance(spec, PartitionSpec):
        entries = ", ".join(map(repr, spec)) if isinstance(spec, (tuple, list)) else repr(spec)
        raise StrategyError(f"{who}: the spec of {name!r} is {spec!r}: write PartitionSpec({entries})")
    if len(spec) > len(shape):
        raise StrategyError(f"{who}: {spec} has {len(spec)} dims, but {name!r} has the shape {shape}")
    for dim, axes in enumerate(dims_of(spec, len(shape))):
        count = math.prod(check_axis(mesh, axis, f"{who}: {name!r}") for axis in axes)
        if shape[dim] % count and not allow_uneven:
            array = f"{name!r}, of shape {shape}," if name else f"the array of shape {shape}"
            change = "Change the size or the mesh" + ("." if allow_uneven is None else ", or pass allow_uneven=True.")
            raise StrategyError(
                f"{who}: dim {dim} of {array} has size {shape[dim]}, which {count} devices along "
                f"{' × '.join(map(repr, axes))} do not divide. {change}"
            )
    return NamedSharding(mesh, spec)
