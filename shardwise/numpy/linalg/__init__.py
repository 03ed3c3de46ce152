"""numpy.linalg for arrays that may be sharded.

The last two dims of an operand hold matrices, the dims before them are batch dims. If batch dims are sharded, each
device decomposes the matrices of its own shard.
"""

from shardwise.base.lazy import set_public_names
from shardwise.numpy.linalg.decompositions import cholesky, eig, eigh, eigvals, eigvalsh, qr, svd, svdvals
from shardwise.numpy.linalg.linear_systems import det, inv, lstsq, pinv, slogdet, solve, tensorinv, tensorsolve
from shardwise.numpy.linalg.norms import cond, matrix_norm, matrix_rank, norm, vector_norm
from shardwise.numpy.linalg.products import (
    cross,
    diagonal,
    matmul,
    matrix_power,
    matrix_transpose,
    multi_dot,
    outer,
    tensordot,
    trace,
    vecdot,
)

__all__ = [
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "tensorinv",
    "tensorsolve",
    "trace",
    "vecdot",
    "vector_norm",
]


set_public_names(__name__, __all__)
