"""jax.experimental.transfer: arrays that one process pulls from another.

It is not supported yet: the names exist, and using one is an error.
"""

from shardwise.base.unsupported import set_unsupported_names

set_unsupported_names(
    __name__,
    [
        "TransferConnection",
        "TransferServer",
        "make_error_array",
        "start_transfer_server",
    ],
    "Processes of one program exchange arrays by `device_put` and `multihost_utils`.",
)
