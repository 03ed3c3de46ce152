from shardwise.api.callbacks.breakpoint import debug_breakpoint
from shardwise.api.callbacks.debug_callback import debug_callback, debug_print
from shardwise.api.meshes.inspect_sharding import inspect_array_sharding as inspect_array_sharding
from shardwise.explain.picture import (
    visualize_array_sharding as visualize_array_sharding,
    visualize_sharding as visualize_sharding,
)

breakpoint = debug_breakpoint
callback = debug_callback
print = debug_print
