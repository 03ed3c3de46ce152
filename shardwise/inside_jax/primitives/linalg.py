"""Decompositions and solvers."""

from collections.abc import Callable
from typing import Any

from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ops.linalg.householder import Geqrf
from shardwise.inside_jax.primitives.parameters import require
from shardwise.lax import linalg


def _eigh(
    x: Array, *, lower: bool, sort_eigenvalues: bool, subset_by_index: Any, algorithm: Any
) -> tuple[Array, Array]:
    # The eigenvalues are always sorted, which `sort_eigenvalues=False` permits.
    return linalg.eigh(
        x, lower=lower, symmetrize_input=False, subset_by_index=subset_by_index, implementation=algorithm
    )


def _qr(x: Array, *, pivoting: bool, full_matrices: bool, use_magma: bool | None) -> tuple[Array, ...]:
    require("qr", use_magma=(bool(use_magma), False))
    return linalg.qr(x, pivoting=pivoting, full_matrices=full_matrices)


def _schur(x: Array, *, compute_schur_vectors: bool, sort_eig_vals: bool, select_callable: object) -> tuple[Array, ...]:
    require("schur", sort_eig_vals=(sort_eig_vals, False))
    return linalg.schur(x, compute_schur_vectors=compute_schur_vectors)


def _svd(x: Array, *, full_matrices: bool, compute_uv: bool, subset_by_index: Any, algorithm: Any) -> tuple[Array, ...]:
    options = {"full_matrices": full_matrices, "subset_by_index": subset_by_index, "algorithm": algorithm}
    if not compute_uv:
        return (linalg.svd(x, compute_uv=False, **options),)
    u, s, vt = linalg.svd(x, **options)
    return s, u, vt


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "cholesky_update": linalg.cholesky_update,
    "eig": linalg.eig,
    "eigh": _eigh,
    "geqrf": lambda x: Geqrf()(as_operand(x)),
    "lu": linalg.lu,
    "lu_pivots_to_permutation": linalg.lu_pivots_to_permutation,
    "qr": _qr,
    "schur": _schur,
    "svd": _svd,
    "symmetric_product": linalg.symmetric_product,
    "tridiagonal": linalg.tridiagonal,
    "tridiagonal_solve": linalg.tridiagonal_solve,
}
