"""The entries of `in_axes` and `out_axes` of `xmap`: the named dims of each array."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, final

from shardwise import tree, tree_util

Name = Hashable


@final
@dataclass(frozen=True)
class NamedDims:
    """The named dims of an array, its rank if known, and the user's text for errors."""

    names: Mapping[int, Name]
    rank: int | None
    text: str

    @staticmethod
    def parse(label: str, entry: Mapping[int, Name] | Sequence[Any]) -> "NamedDims":
        if isinstance(entry, dict):
            names, rank = dict(entry), None
        else:
            entries, rank = list(entry), len(entry)
            if entries and entries[-1] is ...:
                entries, rank = entries[:-1], None
            names = {dim: name for dim, name in enumerate(entries) if name is not None}
        if any(name is ... for name in names.values()):
            raise ValueError(f"{label} {entry!r}: `...` is only allowed at the end of a list")
        if wrong := [dim for dim in names if dim < 0]:
            raise ValueError(f"{label} {entry!r}: dims must not be negative, but {wrong[0]} is")
        listed = list(names.values())
        if repeated := [name for name in listed if listed.count(name) > 1]:
            raise ValueError(
                f"{label} {entry!r}: the dims of an array must have distinct names, but {repeated[0]!r} repeats"
            )
        return NamedDims(names, rank, repr(entry).replace("Ellipsis", "..."))

    @property
    def all(self) -> list[Name]:
        return list(self.names.values())

    def position(self, name: Name, present: Collection[Name]) -> int | None:
        """Return the dim of a name in an array that has only the `present` named dims; None without the name."""
        dim = next((dim for dim, other in self.names.items() if other == name), None)
        if dim is None:
            return None
        return dim - sum(other_dim < dim and other not in present for other_dim, other in self.names.items())


def is_entry(node: object) -> TypeGuard[Mapping[int, Name] | Sequence[Any]]:
    """Whether a node of a pytree is the entry of one array, rather than a pytree of entries."""
    if isinstance(node, dict):
        return all(type(dim) is int for dim in node) and tree_util.all_leaves(node.values())
    return isinstance(node, (list, tuple)) and tree_util.all_leaves([name for name in node if name is not None])


def parse_axes(label: str, axes: object) -> Any:
    """Parse a pytree of axes to a pytree of `NamedDims`."""

    def parse(entry: object) -> NamedDims:
        if not is_entry(entry):
            raise TypeError(
                f"{label}: an entry must be a list such as ['batch', ...] or a dict such as {{0: 'batch'}}, "
                f"not {entry!r}. For an array without named dims, write {{}}."
            )
        return NamedDims.parse(label, entry)

    if axes is None or axes == ():
        raise TypeError(f"{label} {axes!r} have no entry: for an array without named dims, write {{}}")
    return tree.map(parse, axes, is_leaf=lambda node: node is None or is_entry(node))


def is_named_dims(node: object) -> bool:
    return isinstance(node, NamedDims)


def named_dims_leaves(axes: object) -> list[NamedDims]:
    return tree.leaves(axes, is_named_dims)
