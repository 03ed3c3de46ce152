"""The routines of LAPACK that modules of JAX call on CPUs, such as `lapack_spotrf_ffi`.

Shardwise's functions return NaN where LAPACK fails, so the status that a routine returns is always 0.
"""

from collections.abc import Callable
from typing import Any

from shardwise import lax
from shardwise.base._jaxlib import mlir_ir
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ops.linalg.householder import Geqrf
from shardwise.compiler.ops.shape.constants import full, zeros_like
from shardwise.errors import UnsupportedError
from shardwise.stablehlo.operation import Operation


def _option(op: Operation, name: str) -> str:
    """Return an option of a routine, which is a letter."""
    config = op.attribute("mhlo.backend_config") if op.has("mhlo.backend_config") else op.attribute("backend_config")
    if not isinstance(config, mlir_ir.DictAttr) or name not in config:
        raise UnsupportedError(f"the routine {op.text('call_target_name')!r} has no option {name!r}")
    return chr(config[name].value)


def _success(op: Operation) -> Any:
    """Return the status: the last result, one integer for each matrix."""
    status = op.out_types[-1]
    return full(status.shape, 0, status.dtype)


def _cholesky(op: Operation, x: Array) -> Any:
    if _option(op, "uplo") != "L":
        raise UnsupportedError("a Cholesky factor of the upper triangle is not supported")
    return lax.linalg.cholesky(x, symmetrize_input=False), _success(op)


def _lu(op: Operation, x: Array) -> Any:
    factors, pivots, _ = lax.linalg.lu(x)
    return factors, lax.add(pivots, full(pivots.shape, 1, pivots.dtype)), _success(op)  # LAPACK counts from 1


def _eigh(op: Operation, x: Array) -> Any:
    vectors, values = lax.linalg.eigh(x, lower=_option(op, "uplo") == "L", symmetrize_input=False)
    return vectors, values, _success(op)


def _eig(op: Operation, x: Array) -> Any:
    if x.dtype.kind == "c":
        raise UnsupportedError("eigenvalues of complex matrices are not supported")
    values, left, right = lax.linalg.eig(x)
    return lax.real(values), lax.imag(values), left, right, _success(op)


def _svd(op: Operation, x: Array) -> Any:
    mode = _option(op, "mode")
    if mode == "N":
        values = lax.linalg.svd(x, compute_uv=False)
        u, v = (full(type.shape, 0, type.dtype) for type in op.out_types[2:4])  # which the routine does not compute
    else:
        u, values, v = lax.linalg.svd(x, full_matrices=mode == "A")
    return zeros_like(x), values, u, v, _success(op)


def _triangular_solve(op: Operation, a: Array, b: Array) -> Any:
    transpose = _option(op, "trans_x")
    return lax.linalg.triangular_solve(
        a,
        b,
        left_side=_option(op, "side") == "L",
        lower=_option(op, "uplo") == "L",
        transpose_a=transpose in "TC",
        conjugate_a=transpose == "C",
        unit_diagonal=_option(op, "diag") == "U",
    )


_ROUTINES: dict[str, Callable[..., Any]] = {
    "geev": _eig,
    "geqrf": lambda op, x: Geqrf()(x),
    "gesdd": _svd,
    "getrf": _lu,
    "orgqr": lambda op, a, taus: lax.linalg.householder_product(a, taus),
    "potrf": _cholesky,
    "syevd": _eigh,
    "trsm": _triangular_solve,
}
_COMPLEX_NAMES = {"orgqr": "ungqr", "syevd": "heevd"}
_LETTERS = "sdcz"  # of the dtype: f32, f64, c64, c128

TARGETS: dict[str, Callable[..., Any]] = {
    f"lapack_{letter}{_COMPLEX_NAMES.get(name, name) if letter in 'cz' else name}_ffi": rule
    for name, rule in _ROUTINES.items()
    for letter in _LETTERS
}
