"""jax.experimental.pallas.triton: kernels for GPUs, by Triton.

It is not supported yet: the names exist, and using one is an error.
"""

from shardwise.base.unsupported import set_unsupported_names

set_unsupported_names(
    __name__,
    [
        "CompilerParams",
        "approx_tanh",
        "atomic_add",
        "atomic_and",
        "atomic_cas",
        "atomic_max",
        "atomic_min",
        "atomic_or",
        "atomic_xchg",
        "atomic_xor",
        "debug_barrier",
        "dot",
        "elementwise_inline_asm",
        "load",
        "max_contiguous",
        "store",
    ],
    "Write the function with `numpy` and `lax`, which XLA compiles into kernels; `pure_callback` calls host code.",
)
