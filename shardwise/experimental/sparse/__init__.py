"""jax.experimental.sparse: arrays that store their nonzero elements only.

`BCOO` holds the elements and their coordinates, with batch dims and dense dims. `sparsify` transforms functions of
dense arrays so that they accept sparse ones. All functions are composed of lookups, products and sums of dense arrays.
They can be compiled, differentiated with respect to the elements, vmapped over batch dims, and sharded along the
elements, batch dims or dense dims.

`coordinates` holds what all functions share, `bcoo` the class, `bcoo_*` the functions of BCOO arrays, and
`transform_rules` which of them replaces which primitive. `bcsr`, `coo` and `csr` convert to BCOO.
"""

from shardwise.base.lazy import set_public_names
from shardwise.experimental.sparse import linalg
from shardwise.experimental.sparse.base import JAXSparse
from shardwise.experimental.sparse.bcoo import BCOO
from shardwise.experimental.sparse.bcoo_arithmetic import bcoo_multiply_dense, bcoo_multiply_sparse, bcoo_reduce_sum
from shardwise.experimental.sparse.bcoo_conversion import bcoo_extract, bcoo_fromdense, bcoo_todense
from shardwise.experimental.sparse.bcoo_convolution import bcoo_conv_general_dilated
from shardwise.experimental.sparse.bcoo_dot import bcoo_dot_general, bcoo_dot_general_sampled
from shardwise.experimental.sparse.bcoo_gather import bcoo_gather
from shardwise.experimental.sparse.bcoo_layout import bcoo_sort_indices, bcoo_sum_duplicates, bcoo_update_layout
from shardwise.experimental.sparse.bcoo_shape import (
    bcoo_broadcast_in_dim,
    bcoo_concatenate,
    bcoo_reshape,
    bcoo_rev,
    bcoo_squeeze,
    bcoo_transpose,
)
from shardwise.experimental.sparse.bcoo_slice import bcoo_dynamic_slice, bcoo_slice
from shardwise.experimental.sparse.bcsr import (
    BCSR,
    bcsr_broadcast_in_dim,
    bcsr_concatenate,
    bcsr_dot_general,
    bcsr_extract,
    bcsr_fromdense,
    bcsr_sum_duplicates,
    bcsr_todense,
)
from shardwise.experimental.sparse.coo import COO, coo_fromdense, coo_matmat, coo_matvec, coo_todense
from shardwise.experimental.sparse.creation import empty, eye
from shardwise.experimental.sparse.csr import CSC, CSR, csr_fromdense, csr_matmat, csr_matvec, csr_todense
from shardwise.experimental.sparse.densify import todense
from shardwise.experimental.sparse.derivatives import grad, jacfwd, jacobian, jacrev, value_and_grad
from shardwise.experimental.sparse.efficiency import (
    CuSparseEfficiencyWarning,
    SparseEfficiencyError,
    SparseEfficiencyWarning,
)
from shardwise.experimental.sparse.random import random_bcoo
from shardwise.experimental.sparse.transform import sparsify

__all__ = [
    "BCOO",
    "BCSR",
    "COO",
    "CSC",
    "CSR",
    "CuSparseEfficiencyWarning",
    "JAXSparse",
    "SparseEfficiencyError",
    "SparseEfficiencyWarning",
    "bcoo_broadcast_in_dim",
    "bcoo_concatenate",
    "bcoo_conv_general_dilated",
    "bcoo_dot_general",
    "bcoo_dot_general_sampled",
    "bcoo_dynamic_slice",
    "bcoo_extract",
    "bcoo_fromdense",
    "bcoo_gather",
    "bcoo_multiply_dense",
    "bcoo_multiply_sparse",
    "bcoo_reduce_sum",
    "bcoo_reshape",
    "bcoo_rev",
    "bcoo_slice",
    "bcoo_sort_indices",
    "bcoo_squeeze",
    "bcoo_sum_duplicates",
    "bcoo_todense",
    "bcoo_transpose",
    "bcoo_update_layout",
    "bcsr_broadcast_in_dim",
    "bcsr_concatenate",
    "bcsr_dot_general",
    "bcsr_extract",
    "bcsr_fromdense",
    "bcsr_sum_duplicates",
    "bcsr_todense",
    "coo_fromdense",
    "coo_matmat",
    "coo_matvec",
    "coo_todense",
    "csr_fromdense",
    "csr_matmat",
    "csr_matvec",
    "csr_todense",
    "empty",
    "eye",
    "grad",
    "jacfwd",
    "jacobian",
    "jacrev",
    "linalg",
    "random_bcoo",
    "sparsify",
    "todense",
    "value_and_grad",
]

set_public_names(__name__, __all__)
