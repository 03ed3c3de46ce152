"""jax.experimental.pallas.fuser: fusion into kernels.

It is not supported yet: the names exist, and using one is an error.
"""

from shardwise.base.unsupported import set_unsupported_names

set_unsupported_names(
    __name__,
    [
        "BlockIndexTransform",
        "Fusion",
        "custom_fusion",
        "evaluate",
        "fuse",
        "fusible",
        "get_fusion_values",
        "get_stateful_input_fusion_values",
        "get_stateful_output_fusion_values",
        "make_scalar_prefetch_handler",
        "pull_block_spec",
        "push_block_spec",
    ],
    "Write the function with `numpy` and `lax`, which XLA compiles into kernels; `pure_callback` calls host code.",
)
