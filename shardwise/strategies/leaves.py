"""The leaves of a tree of parameters: their names and shapes, and trees of shardings that match it."""

from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar

import shardwise.numpy as jnp
from shardwise import tree_util
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.tree_util import KeyPath
from shardwise.typing import DTypeLike, SupportsShape

_T = TypeVar("_T")

# A function from the name and the shape of a parameter to its sharding.
Choose = Callable[[str, tuple[int, ...]], NamedSharding]


def leaf_name(path: KeyPath) -> str:
    """Return the path of a leaf as text, such as `layers/0/kernel`."""
    return tree_util.keystr(path, simple=True, separator="/")


def is_array(leaf: object) -> TypeGuard[SupportsShape]:
    """Return whether a leaf is an array, or stands for one: it has a shape and a dtype."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def has_dtype(leaf: object, kind: DTypeLike) -> bool:
    """Return whether a leaf is an array of a kind of dtypes, such as `jnp.floating`."""
    return is_array(leaf) and jnp.issubdtype(leaf.dtype, kind)


def map_dtype(function: Callable[[Any], Any], tree: _T, kind: DTypeLike) -> _T:
    """Return a tree with a function applied to the arrays of a kind of dtypes. All other leaves stay."""
    mapped: _T = tree_util.tree_map(lambda leaf: function(leaf) if has_dtype(leaf, kind) else leaf, tree)
    return mapped


def array_shapes(tree: object) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of a tree, by name."""
    leaves = tree_util.tree_leaves_with_path(tree)
    return {leaf_name(path): tuple(leaf.shape) for path, leaf in leaves if is_array(leaf)}


def map_arrays(choose: Choose, tree: object) -> Any:
    """Return a tree of shardings like `tree`, with None in place of leaves that are not arrays."""

    def choose_leaf(path: KeyPath, leaf: object) -> NamedSharding | None:
        return choose(leaf_name(path), tuple(leaf.shape)) if is_array(leaf) else None

    return tree_util.tree_map_with_path(choose_leaf, tree)


def arrays_with_shardings(tree: object, shardings: object) -> dict[str, tuple[tuple[int, ...], NamedSharding]]:
    """Return the shapes and shardings of the arrays of a tree, by name. `shardings` is a tree like it."""
    return {
        leaf_name(path): (tuple(leaf.shape), sharding)
        for path, leaf, sharding in leaves_with_shardings(tree, shardings)
    }


def leaves_with_shardings(tree: object, shardings: object) -> list[tuple[KeyPath, Any, NamedSharding]]:
    """Return the path, the leaf and the sharding of each array of a tree. `shardings` is a tree like it."""

    def is_none(node: object) -> bool:  # in a tree such as a module without a bias, and for leaves that are not arrays
        return node is None

    leaves = tree_util.tree_leaves_with_path(tree, is_leaf=is_none)
    chosen = tree_util.tree_leaves(shardings, is_leaf=is_none)
    return [(path, leaf, sharding) for (path, leaf), sharding in zip(leaves, chosen, strict=True) if is_array(leaf)]
