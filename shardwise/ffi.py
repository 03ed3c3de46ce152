"""jax.ffi: calls of compiled functions.

It is not supported yet: the names exist, and using one is an error.
"""

from shardwise.base.unsupported import set_unsupported_names

set_unsupported_names(
    __name__,
    [
        "build_ffi_lowering_function",
        "ffi_call",
        "ffi_lowering",
        "include_dir",
        "pycapsule",
        "register_ffi_target",
        "register_ffi_target_as_batch_partitionable",
        "register_ffi_type",
        "register_ffi_type_id",
    ],
    "Call a host function with `pure_callback` or `io_callback`, or lower an op of your own: docs/own-ops.md.",
)
