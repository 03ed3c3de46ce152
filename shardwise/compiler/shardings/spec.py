"""PartitionSpec: the mesh axes along which each dim of an array is sharded, as users write them."""

from typing import Any, final

from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.errors import ShardingError


@final
class Unconstrained:
    """The entry of a spec for a dim whose sharding the planner chooses."""

    def __repr__(self) -> str:
        return "UNCONSTRAINED"

    def __reduce__(self) -> str:
        return "UNCONSTRAINED"  # copies and pickles are the same object


UNCONSTRAINED = Unconstrained()


@final
class PartitionSpec(tuple[Any, ...]):
    """The mesh axes along which each dim of an array is sharded.

    A tuple with one name is equivalent to the name, and an empty tuple to None.

    Args:
        *entries: one entry per dim: None if the dim is not sharded, an axis name, a tuple of axis names (the first is
            major), or `PartitionSpec.UNCONSTRAINED` to leave the dim to the planner. Dims without an entry are not
            sharded.

    Raises:
        TypeError: if an entry is something else, or if a class derives from it.
        ValueError: if a tuple contains a tuple.

    Example:
        >>> P("data", None, ("model", "expert"))
        P('data', None, ('model', 'expert'))
    """

    UNCONSTRAINED = UNCONSTRAINED

    def __init_subclass__(cls, **keywords: Any) -> None:
        raise TypeError(f"PartitionSpec cannot be subclassed, as by {cls.__name__}")

    def __new__(cls, *entries: Any) -> "PartitionSpec":
        normalized = []
        for entry in entries:
            names = entry if isinstance(entry, tuple) else (entry,)
            if any(isinstance(name, tuple) for name in names):
                raise ValueError(f"PartitionSpec: a tuple of axis names cannot contain another tuple, as in {entry!r}")
            if entry is not None and entry is not UNCONSTRAINED and not all(isinstance(name, str) for name in names):
                raise TypeError(
                    "PartitionSpec accepts None, an axis name, a tuple of names or UNCONSTRAINED for each dim, "
                    f"not {entry!r}"
                )
            normalized.append(names if len(names) > 1 else names[0] if names else None)
        return super().__new__(cls, normalized)

    def __repr__(self) -> str:
        return f"P({', '.join(map(repr, self))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return PartitionSpec, tuple(self)


def pin_of(spec: PartitionSpec, shape: tuple[int, ...], mesh: AbstractMesh, reason: str = "") -> Pin:
    """Return the pin that `spec` means for an array of this shape.

    Raises:
        ShardingError: if the spec has more entries than the array has dims, names an axis that the mesh does not have,
            or uses an axis twice.
    """
    entries = list(spec)
    while len(entries) > len(shape) and entries[-1] in (None, ()):
        entries.pop()
    if len(entries) > len(shape):
        raise ShardingError(
            f"{spec} has {len(entries)} entries, but the array has rank {len(shape)} (shape {shape}). "
            f"Remove {len(entries) - len(shape)}: a spec has at most one entry per dim."
        )
    dims: list[tuple[str, ...]] = []
    open_dims = []
    for dim, entry in enumerate(entries):
        if entry is UNCONSTRAINED:
            open_dims.append(dim)
        dims.append(() if entry is None or entry is UNCONSTRAINED else entry if isinstance(entry, tuple) else (entry,))
    seen: dict[str, int] = {}
    for dim, axes in enumerate(dims):
        for axis in axes:
            if axis not in mesh.shape:
                raise ShardingError(f"{spec}: {mesh.unknown_axis_message(axis)}")
            if axis in seen:
                raise ShardingError(
                    f"{spec} uses axis {axis!r} for dim {seen[axis]} and for dim {dim}: an axis can shard one dim only."
                )
            seen[axis] = dim
    dims += [()] * (len(shape) - len(dims))
    return Pin(Layout(tuple(dims)), frozenset(open_dims), reason)


def spec_of(layout: Layout) -> PartitionSpec:
    """Return the spec of a layout, without trailing Nones."""
    entries: list[Any] = [None if not axes else axes[0] if len(axes) == 1 else axes for axes in layout.dims]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)
