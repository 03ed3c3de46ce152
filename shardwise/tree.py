"""Trees: arrays in nested tuples, lists, dicts and None. Flatten, unflatten, map."""

from collections.abc import Callable
from typing import Any, TypeAlias

from shardwise._jaxlib import PyTreeDef, PyTreeRegistry

Structure: TypeAlias = PyTreeDef

# Our own registry: jaxlib's default one is shared with the jax package.
registry = PyTreeRegistry(
    enable_none=True, enable_tuple=True, enable_namedtuple=True, enable_list=True, enable_dict=True
)


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Structure]:
    """The leaves of a tree, and its structure."""
    leaves, structure = registry.flatten(tree, is_leaf)
    return leaves, structure


def unflatten(structure: Structure, leaves: list[Any]) -> Any:
    """The tree with this structure and these leaves."""
    return structure.unflatten(leaves)


def leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves of a tree."""
    return flatten(tree, is_leaf)[0]


def structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Structure:
    """The structure of a tree."""
    return flatten(tree, is_leaf)[1]


def map(function: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """The tree of `function(leaf, *leaves of the rest)`; the rest have the first tree's structure, or more below it."""
    first, shape = flatten(tree, is_leaf)
    others = [shape.flatten_up_to(other) for other in rest]
    return shape.unflatten([function(*items) for items in zip(first, *others, strict=True)])


def broadcast_prefix(prefix: Any, tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """For each leaf of `tree`, the leaf of `prefix` at or above it. ValueError where `prefix` does not fit."""
    found: list[Any] = []
    given, shape = flatten(prefix, is_leaf)
    for item, below in zip(given, shape.flatten_up_to(tree), strict=True):
        found += [item] * structure(below).num_leaves
    return found


def leaf_names(tree: Any, root: str) -> list[str]:
    """How a Python program would name each leaf: `root['w'][0]`."""

    def names(node: Any, name: str) -> list[str]:
        if node is None:
            return []
        if isinstance(node, dict):
            return [n for key in sorted(node) for n in names(node[key], f"{name}[{key!r}]")]
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            return [n for field in node._fields for n in names(getattr(node, field), f"{name}.{field}")]
        if isinstance(node, (tuple, list)):
            return [n for i, item in enumerate(node) for n in names(item, f"{name}[{i}]")]
        return [name]

    return names(tree, root)
