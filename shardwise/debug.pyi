from shardwise.api.callbacks.breakpoint import debug_breakpoint
from shardwise.api.callbacks.debug_callback import debug_callback, debug_log, debug_print
from shardwise.api.jaxprs.effects import DebugEffect as DebugEffect, OrderedDebugEffect as OrderedDebugEffect
from shardwise.api.meshes.inspect_sharding import inspect_array_sharding as inspect_array_sharding
from shardwise.explain.picture import (
    visualize_array_sharding as visualize_array_sharding,
    visualize_sharding as visualize_sharding,
)

breakpoint = debug_breakpoint
callback = debug_callback
log = debug_log
print = debug_print
