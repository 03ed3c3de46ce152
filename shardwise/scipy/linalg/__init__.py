"""scipy.linalg: decompositions, linear solvers, matrix functions and special matrices, on sharded arrays too."""

from typing import NoReturn

from shardwise.lazy import missing_attribute_error
from shardwise.scipy.linalg.decompositions import (
    cho_factor,
    cholesky,
    eigh,
    eigh_tridiagonal,
    hessenberg,
    lu,
    lu_factor,
    polar,
    qr,
    qr_multiply,
    rsf2csf,
    schur,
    svd,
)
from shardwise.scipy.linalg.matrix_functions import expm, expm_frechet, funm, sqrtm
from shardwise.scipy.linalg.solvers import (
    cho_solve,
    det,
    inv,
    lu_solve,
    solve,
    solve_sylvester,
    solve_triangular,
)
from shardwise.scipy.linalg.special_matrices import (
    block_diag,
    circulant,
    companion,
    convolution_matrix,
    dft,
    fiedler,
    fiedler_companion,
    hadamard,
    hankel,
    helmert,
    hilbert,
    invhilbert,
    invpascal,
    leslie,
    pascal,
    toeplitz,
)

__all__ = [
    "block_diag",
    "cho_factor",
    "cho_solve",
    "cholesky",
    "circulant",
    "companion",
    "convolution_matrix",
    "det",
    "dft",
    "eigh",
    "eigh_tridiagonal",
    "expm",
    "expm_frechet",
    "fiedler",
    "fiedler_companion",
    "funm",
    "hadamard",
    "hankel",
    "helmert",
    "hessenberg",
    "hilbert",
    "inv",
    "invhilbert",
    "invpascal",
    "leslie",
    "lu",
    "lu_factor",
    "lu_solve",
    "pascal",
    "polar",
    "qr",
    "qr_multiply",
    "rsf2csf",
    "schur",
    "solve",
    "solve_sylvester",
    "solve_triangular",
    "sqrtm",
    "svd",
    "toeplitz",
]


def __getattr__(name: str) -> NoReturn:
    raise missing_attribute_error("shardwise.scipy.linalg", name, __all__)
