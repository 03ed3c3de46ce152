"""PartitionSpec: the mesh axes along which each dim of an array is sharded, as users write them."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, TypeAlias, final

from shardwise.base.config import config
from shardwise.base.render_hooks import renderers
from shardwise.compiler.shardings.layout import Layout, Pin, partial_sums
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.unreduced_kind import UnreducedKind, kind_of
from shardwise.errors import ShardingError


@final
class Unconstrained:
    """The entry of a spec for a dim whose sharding the planner chooses."""

    def __repr__(self) -> str:
        return "UNCONSTRAINED"

    def __reduce__(self) -> str:
        return "UNCONSTRAINED"  # so that copies and pickles are the same object


UNCONSTRAINED = Unconstrained()
SpecEntry: TypeAlias = str | Sequence[str] | Unconstrained | None


@final
class PartitionSpec(tuple[Any, ...]):
    """The mesh axes along which each dim of an array is sharded.

    A tuple with one name is equivalent to the name, and an empty tuple to None. Equal specs are one object.

    Args:
        *partitions: one entry per dim: None if the dim is not sharded, an axis name, a tuple of axis names (the first
            is major), or `PartitionSpec.UNCONSTRAINED` to leave the dim to the planner. Dims without an entry are not
            sharded.
        unreduced: Explicit axes over which the array is a sum of one term per device.
        reduced: Explicit axes along which the array is replicated, and its cotangent is unreduced.
        unreduced_kind: the reduction over the unreduced axes: `UnreducedKind.sum`, the default.

    Raises:
        TypeError: if an entry is something else, or if a class derives from it.
        ValueError: if a tuple contains a tuple.
        ShardingError: if an axis is both unreduced and reduced, or also shards a dim, or if there is a kind without
            unreduced axes.
        UnsupportedError: if the kind is not `sum`.

    Example:
        >>> P("data", None, ("model", "expert"))
        P('data', None, ('model', 'expert'))
    """

    UNCONSTRAINED = UNCONSTRAINED

    unreduced: frozenset[str]
    reduced: frozenset[str]

    _interned: ClassVar[dict[tuple[Any, ...], "PartitionSpec"]] = {}

    def __init_subclass__(cls, **keywords: Any) -> None:
        raise TypeError(f"PartitionSpec cannot be subclassed, as by {cls.__name__}")

    def __new__(
        cls,
        *partitions: SpecEntry,
        unreduced: Iterable[str] = frozenset(),
        reduced: Iterable[str] = frozenset(),
        unreduced_kind: UnreducedKind | None = None,
    ) -> "PartitionSpec":
        normalized = []
        for entry in partitions:
            names = tuple(entry) if isinstance(entry, (tuple, list)) else (entry,)
            if any(isinstance(name, tuple) for name in names):
                raise ValueError(f"PartitionSpec: a tuple of axis names cannot contain another tuple, as in {entry!r}")
            if entry is not None and entry is not UNCONSTRAINED and not all(isinstance(name, str) for name in names):
                raise TypeError(
                    "PartitionSpec accepts None, an axis name, a tuple of names or UNCONSTRAINED for each dim, "
                    f"not {entry!r}"
                )
            normalized.append(names if len(names) > 1 else names[0] if names else None)
        self = super().__new__(cls, normalized)
        self.unreduced, self.reduced = _axis_set("unreduced", unreduced), _axis_set("reduced", reduced)
        kind_of(self.unreduced, unreduced_kind, "PartitionSpec")
        sharding = {axis for entry in normalized for axis in (entry if isinstance(entry, tuple) else (entry,))}
        if twice := sorted((self.unreduced | self.reduced) & sharding or self.unreduced & self.reduced):
            raise ShardingError(
                f"{self} uses axis {twice[0]!r} twice: an axis shards a dim, or is unreduced, or reduced."
            )
        return cls._interned.setdefault((tuple(normalized), self.unreduced, self.reduced), self)

    @property
    def unreduced_kind(self) -> UnreducedKind | None:
        """The reduction over the unreduced axes; None if there are none."""
        return kind_of(self.unreduced, None, "PartitionSpec")

    def __repr__(self) -> str:
        sums = [
            f"{name}={{{', '.join(map(repr, sorted(axes)))}}}"
            for name, axes in (("unreduced", self.unreduced), ("reduced", self.reduced))
            if axes
        ]
        comma = "," if config.is_exact and len(self) == 1 and not sums else ""  # JAX prints the tuple of the entries
        return f"P({', '.join([*map(repr, self), *sums])}{comma})"

    def _repr_html_(self) -> str:
        """Return a picture of the mesh axes of each dim, for notebooks."""
        return renderers.pictures.spec_html(self)

    def __add__(self, other: Iterable[Any]) -> "PartitionSpec":
        if isinstance(other, PartitionSpec):
            unreduced, reduced = self.unreduced | other.unreduced, self.reduced | other.reduced
            return PartitionSpec(*self, *other, unreduced=unreduced, reduced=reduced)
        return self._joined((*self, *other))

    def __radd__(self, other: Iterable[SpecEntry]) -> "PartitionSpec":
        return self._joined((*other, *self))

    def _joined(self, entries: tuple[Any, ...]) -> "PartitionSpec":
        """Return the spec with these entries; an error if this spec has unreduced or reduced axes, unlike a tuple."""
        if self.unreduced or self.reduced:
            raise TypeError(f"{self} has unreduced or reduced axes: add a PartitionSpec to it and not a tuple")
        return PartitionSpec(*entries)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PartitionSpec):
            return (tuple(self), self.unreduced, self.reduced) == (tuple(other), other.unreduced, other.reduced)
        return tuple(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return (
            hash((tuple(self), self.unreduced, self.reduced)) if self.unreduced or self.reduced else hash(tuple(self))
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _spec, (tuple(self), self.unreduced, self.reduced)


def _spec(entries: tuple[Any, ...], unreduced: frozenset[str], reduced: frozenset[str]) -> PartitionSpec:
    """Return a PartitionSpec from its parts; used by pickle."""
    return PartitionSpec(*entries, unreduced=unreduced, reduced=reduced)


def _axis_set(parameter: str, axes: Iterable[str]) -> frozenset[str]:
    names = frozenset((axes,) if isinstance(axes, str) else axes)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise TypeError(f"PartitionSpec: {parameter} needs a set of axis names, not {wrong[0]!r}")
    return names


def pin_of(spec: PartitionSpec, shape: tuple[int, ...], mesh: AbstractMesh, reason: str = "") -> Pin:
    """Return the pin that `spec` denotes for an array of this shape.

    Raises:
        ShardingError: if the spec has more entries than the array has dims, names an axis that the mesh does not have,
            or uses an axis twice.
    """
    entries = list(spec)
    while len(entries) > len(shape) and entries[-1] in (None, ()):
        entries.pop()
    if len(entries) > len(shape):
        remedy = f"Remove {len(entries) - len(shape)}: a spec has at most one entry per dim."
        raise ShardingError(
            f"{spec} has {len(entries)} entries, but the array has rank {len(shape)} (shape {shape}). "
            + (remedy if shape else "A scalar is not sharded: its spec is P().")
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
    for axis in sorted(spec.unreduced | spec.reduced):
        if axis not in mesh.shape:
            raise ShardingError(f"{spec}: {mesh.unknown_axis_message(axis)}")
    dims += [()] * (len(shape) - len(dims))
    return Pin(Layout(tuple(dims), partial_sums(spec.unreduced)), frozenset(open_dims), reason)


def check_length(spec: PartitionSpec, shape: tuple[int, ...]) -> None:
    """Raise ShardingError if a spec has an entry for a dim that an array lacks, and `jax_compatibility` is "exact".

    `pin_of` ignores such entries if they are None.
    """
    if config.is_exact and len(spec) > len(shape):
        raise ShardingError(
            f"{spec} has {len(spec)} entries, but the array has rank {len(shape)} (shape {shape}). Remove "
            f"{len(spec) - len(shape)}. The setting jax_compatibility is 'exact': otherwise, Nones beyond the rank are "
            "ignored."
        )


def spec_of(layout: Layout) -> PartitionSpec:
    """Return the spec of a layout, without trailing Nones. It is unreduced over the axes of partial sums."""
    entries: list[Any] = [None if not axes else axes[0] if len(axes) == 1 else axes for axes in layout.dims]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries, unreduced=[axis for axis, _ in layout.partial])
