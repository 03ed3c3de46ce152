"""jax.experimental.fused: functions that XLA must fuse into one kernel of a GPU.

It is not supported yet: the names exist, and using one is an error.
"""

from shardwise.base.unsupported import set_unsupported_names

set_unsupported_names(
    __name__,
    [
        "fused",
    ],
    "Leave the decorator out: XLA chooses fusions itself.",
)
