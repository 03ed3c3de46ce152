"""jax.experimental.buffer_callback: host functions that receive the buffers of devices.

It is not supported yet: the names exist, and using one is an error.
"""

from shardwise.base.unsupported import set_unsupported_names

set_unsupported_names(
    __name__,
    [
        "Buffer",
        "ExecutionContext",
        "ExecutionStage",
        "buffer_callback",
    ],
    "`pure_callback` and `io_callback` call host functions with NumPy arrays.",
)
