"""jax._src.tree_util: which classes are pytrees."""

from shardwise import tree_nodes
from shardwise.jax_modules.missing import report_missing

_registry = tree_nodes.static_fields_of  # Flax asks whether a class is in it

report_missing(__name__, ["_registry"])
