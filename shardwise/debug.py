"""Looking at arrays on many devices, and into running programs."""

from typing import TYPE_CHECKING

from shardwise.api.callback import debug_callback as callback
from shardwise.api.callback import debug_print as print
from shardwise.api.inspect_sharding import inspect_array_sharding
from shardwise.lazy import lazy_names

if TYPE_CHECKING:
    from shardwise.explain.picture import visualize_array_sharding, visualize_sharding

__all__ = ["callback", "inspect_array_sharding", "print", "visualize_array_sharding", "visualize_sharding"]

__getattr__, __dir__ = lazy_names("shardwise.debug", __all__, homes=("shardwise.explain.picture",))
