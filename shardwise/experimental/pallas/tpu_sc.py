"""jax.experimental.pallas.tpu_sc: kernels for the sparse cores of TPUs.

It is not supported yet: the names exist, and using one is an error.
"""

from shardwise.base.unsupported import set_unsupported_names

set_unsupported_names(
    __name__,
    [
        "Indices",
        "PackFormat",
        "ScalarSubcoreMesh",
        "VectorSubcoreMesh",
        "addupdate",
        "addupdate_compressed",
        "addupdate_scatter",
        "all_reduce_ffs",
        "all_reduce_population_count",
        "bitcast",
        "cummax",
        "cumsum",
        "fetch_and_add",
        "get_sparse_core_info",
        "load_expanded",
        "load_gather",
        "pack",
        "parallel_loop",
        "scan_count",
        "sort_key_val",
        "store_compressed",
        "store_scatter",
        "subcore_barrier",
        "unpack",
    ],
    "Write the function with `numpy` and `lax`, which XLA compiles into kernels; `pure_callback` calls host code.",
)
