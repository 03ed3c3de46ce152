"""jax.experimental.mosaic: kernels in MLIR.

It is not supported yet: the names exist, and using one is an error.
"""

from shardwise.base.unsupported import set_unsupported_names

set_unsupported_names(
    __name__,
    [
        "Tiling",
        "TpuMemorySpace",
        "TpuSideEffectType",
        "as_tpu_kernel",
        "lower_module_to_custom_call",
        "lowered_as_tpu_kernel",
    ],
    "Write the function with `numpy` and `lax`, which XLA compiles into kernels; `pure_callback` calls host code.",
)
