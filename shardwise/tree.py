"""Pytree functions under their short names: `tree.map` is `tree_util.tree_map`.

The names from `Structure` on are for the rest of the package.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, TypeAlias

from shardwise import tree_util
from shardwise.base.lazy import set_public_names

__all__ = [
    "all",
    "broadcast",
    "flatten",
    "flatten_with_path",
    "leaves",
    "leaves_with_path",
    "map",
    "map_with_path",
    "reduce",
    "reduce_associative",
    "static",
    "structure",
    "transpose",
    "unflatten",
]

all = tree_util.tree_all
broadcast = tree_util.tree_broadcast
flatten = tree_util.tree_flatten
flatten_with_path = tree_util.tree_flatten_with_path
leaves = tree_util.tree_leaves
leaves_with_path = tree_util.tree_leaves_with_path
map = tree_util.tree_map
map_with_path = tree_util.tree_map_with_path
reduce = tree_util.tree_reduce
reduce_associative = tree_util.tree_reduce_associative
structure = tree_util.tree_structure
transpose = tree_util.tree_transpose
unflatten = tree_util.tree_unflatten

if TYPE_CHECKING:  # type checkers only recognize `dataclasses.field` itself as a field specifier
    static = dataclasses.field
else:

    def static(**kwargs: Any) -> Any:
        """Declare a dataclass field that `register_dataclass` treats as static; arguments as of `dataclasses.field`."""
        metadata = {"static": True, **(kwargs.pop("metadata", None) or {})}
        return dataclasses.field(metadata=metadata, **kwargs)


Structure: TypeAlias = tree_util.PyTreeDef
TreeMismatch = tree_util.TreeMismatch
broadcast_prefix = tree_util.broadcast_prefix
first_difference = tree_util.first_difference
keystr = tree_util.keystr
leaf_names = tree_util.leaf_names
registry = tree_util.default_registry

set_public_names(__name__, __all__)
