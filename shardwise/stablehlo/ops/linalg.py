"""Fourier transforms and linear algebra of StableHLO."""

from collections.abc import Callable
from typing import Any

from shardwise import lax, numpy
from shardwise.compiler.arrays.methods import Array
from shardwise.stablehlo.operation import Operation


def _fft(op: Operation, x: Array) -> Any:
    return lax.fft(x, lax.FftType[op.enum("fft_type")], op.integers("fft_length"))


def _cholesky(op: Operation, x: Array) -> Any:
    if op.flag("lower"):
        return lax.linalg.cholesky(numpy.tril(x), symmetrize_input=False)
    adjoint = numpy.conj(numpy.swapaxes(x, -1, -2))
    return numpy.conj(numpy.swapaxes(lax.linalg.cholesky(adjoint, symmetrize_input=False), -1, -2))


def _triangular_solve(op: Operation, a: Array, b: Array) -> Any:
    transpose = op.enum("transpose_a")
    return lax.linalg.triangular_solve(
        a,
        b,
        left_side=op.flag("left_side"),
        lower=op.flag("lower"),
        transpose_a=transpose != "NO_TRANSPOSE",
        conjugate_a=transpose == "ADJOINT",
        unit_diagonal=op.flag("unit_diagonal"),
    )


OPS: dict[str, Callable[..., Any]] = {
    "stablehlo.cholesky": _cholesky,
    "stablehlo.fft": _fft,
    "stablehlo.triangular_solve": _triangular_solve,
}
