"""jax._src.tree_util: which classes are pytrees."""

from shardwise.base import tree_nodes
from shardwise.base.missing_names import report_missing
from shardwise.base.tree_nodes import flatten_one_level  # Orbax

_registry = tree_nodes.static_fields_of  # Flax asks whether a class is in it

__all__ = ["_registry", "flatten_one_level"]

report_missing(__name__, __all__)
