"""Looking at arrays on many devices, and into running programs."""

from shardwise.api.callback import debug_callback as callback
from shardwise.api.callback import debug_print as print
from shardwise.explain.picture import visualize_array_sharding, visualize_sharding

__all__ = ["callback", "print", "visualize_array_sharding", "visualize_sharding"]
