"""jax._src.tree_util: the registry of pytree node types."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, final

from shardwise.base.missing_names import report_missing
from shardwise.base.tree_nodes import PyTreeDef, default_registry, static_fields_of


@final
class _RegistryEntry(NamedTuple):
    """How nodes of a type are flattened by one level, and created from metadata and children."""

    to_iter: Callable[[Any], tuple[Iterable[Any], Any]]
    from_iter: Callable[[Any, Iterable[Any]], Any]


def _to_iter(node: Any) -> tuple[list[Any], PyTreeDef]:
    children, treedef = default_registry.flatten(node, lambda x: x is not node)
    return children, treedef


def _from_iter(treedef: PyTreeDef, children: Iterable[Any]) -> Any:
    return treedef.unflatten(children)


@final
class _Registry(Mapping[type, _RegistryEntry]):
    """The registered node types. The metadata of a node is the treedef of its level, which libraries only compare."""

    def __contains__(self, nodetype: object) -> bool:
        return nodetype in static_fields_of

    def __getitem__(self, nodetype: type) -> _RegistryEntry:
        if nodetype not in static_fields_of:
            raise KeyError(nodetype)
        return _RegistryEntry(_to_iter, _from_iter)

    def __iter__(self) -> Iterator[type]:
        return iter(static_fields_of)

    def __len__(self) -> int:
        return len(static_fields_of)


_registry = _Registry()  # Flax asks whether a class is in it; jaxlie flattens and creates nodes by their entries

__all__ = ["_registry"]

report_missing(__name__, __all__)
