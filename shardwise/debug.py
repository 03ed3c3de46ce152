"""Looking at arrays on many devices, and into running programs."""

from shardwise.api.callback import debug_callback as callback
from shardwise.api.callback import debug_print as print
from shardwise.api.watch import inspect_array_sharding
from shardwise.explain.picture import visualize_array_sharding, visualize_sharding

__all__ = ["callback", "inspect_array_sharding", "print", "visualize_array_sharding", "visualize_sharding"]
