"""Special matrices: those built from vectors (Toeplitz, companion, ...) and those of a given size (Hilbert, DFT, ...).

Dims of the vectors before the last one are batch dims.
"""

import math
from typing import Any

import numpy as np
import scipy  # `scipy.linalg` is loaded on first access; importing it here would cost every program 0.3 s

from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, broadcast_shapes, static_integer, type_of
from shardwise.compiler.arrays.promotion import default_dtype, requested_dtype
from shardwise.numpy.creation import array, zeros
from shardwise.numpy.joining import concatenate
from shardwise.numpy.linalg.decompositions import as_inexact_operand
from shardwise.numpy.shapes import broadcast_to
from shardwise.typing import ArrayLike, DTypeLike


def _as_vector(name: str, x: ArrayLike) -> Array:
    """Convert `x` to an array of rank 1 or more."""
    x = as_operand(x, name)
    return x.reshape(-1) if x.ndim < 1 else x


def _broadcast_batch_dims(name: str, *vectors: Array) -> list[Any]:
    """Broadcast all dims but the last of arrays of vectors."""
    batch = broadcast_shapes(name, *(vector.shape[:-1] for vector in vectors))
    return [broadcast_to(vector, (*batch, vector.shape[-1])) for vector in vectors]


def toeplitz(c: ArrayLike, r: ArrayLike | None = None) -> Array:
    """Build Toeplitz matrices, which are constant along each diagonal.

    Args:
        c: the first column.
        r: the first row; its first element is ignored. The default is the conjugate of `c`.

    Returns:
        The matrices, with as many rows as `c` has elements and as many columns as `r`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the batch dims do not broadcast.

    Example:
        >>> jax.scipy.linalg.toeplitz(jnp.array([1, 2]), jnp.array([1, 5, 6]))
        Array([[1, 5, 6],
               [2, 1, 5]], dtype=int32)
    """
    column = _as_vector("toeplitz", c)
    row = column.conj() if r is None else _as_vector("toeplitz", r)
    column, row = _broadcast_batch_dims("toeplitz", column, row)
    rows, columns = column.shape[-1], row.shape[-1]
    diagonals = concatenate([row[..., :0:-1], column], axis=-1)
    return diagonals[..., columns - 1 + np.arange(rows)[:, None] - np.arange(columns)]


def hankel(c: ArrayLike, r: ArrayLike | None = None) -> Array:
    """Build Hankel matrices, which are constant along each antidiagonal.

    Args:
        c: the first column.
        r: the last row; its first element is ignored. The default is zeros, as many as `c` has elements.

    Returns:
        The matrices, with as many rows as `c` has elements and as many columns as `r`.

    Raises:
        TypeError: if an argument is not an array or a number, or if the batch dims do not broadcast.
        ValueError: if an argument is a scalar.

    Example:
        >>> jax.scipy.linalg.hankel(jnp.array([1, 2]), jnp.array([2, 5, 6]))
        Array([[1, 2, 5],
               [2, 5, 6]], dtype=int32)
    """
    column = as_operand(c, "hankel")
    row = column * 0 if r is None else as_operand(r, "hankel")
    if not (column.ndim and row.ndim):
        raise ValueError(f"hankel: c and r must have a rank of at least 1, not {column.type} and {row.type}")
    column, row = _broadcast_batch_dims("hankel", column, row)
    antidiagonals = concatenate([column, row[..., 1:]], axis=-1)
    return antidiagonals[..., np.arange(column.shape[-1])[:, None] + np.arange(row.shape[-1])]


_MATRIX = Family(
    {
        "c": "the first column.",
        "a": "the coefficients, highest power first.",
        "n": "the size of the matrix.",
        "kind": Parameter(
            '"symmetric" (the default), "lower" or "upper" triangular.',
            "ValueError: if `kind` is unknown, or if `n` is negative.",
        ),
    },
    returns="The square matrix of size `n`, with the default float dtype.",
    raises=["TypeError: if `n` is not an integer."],
)


@documented(_MATRIX, returns="The square matrices.", raises=["TypeError: if `c` is not an array or a number."])
def circulant(c: ArrayLike) -> Array:
    """Build circulant matrices: each column is the one before it, rotated down by one.

    Example:
        >>> jax.scipy.linalg.circulant(jnp.array([1, 2, 3]))
        Array([[1, 3, 2],
               [2, 1, 3],
               [3, 2, 1]], dtype=int32)
    """
    column = _as_vector("circulant", c)
    index = np.arange(column.shape[-1])
    return column[..., (index[:, None] - index) % max(1, index.size)]


@documented(_MATRIX)
def companion(a: ArrayLike) -> Array:
    """Build companion matrices of polynomials: the eigenvalues of a matrix are the roots of its polynomial.

    Returns:
        The square matrices, with one row less than there are coefficients.

    Raises:
        ValueError: if there are fewer than two coefficients.
        TypeError: if `a` is not an array or a number.

    Example:
        >>> jax.scipy.linalg.companion(jnp.array([1.0, 2.0, 3.0]))
        Array([[-2., -3.],
               [ 1.,  0.]], dtype=float32)
    """
    coefficients = as_inexact_operand(_as_vector("companion", a), "companion")
    size = coefficients.shape[-1] - 1
    if size < 1:
        raise ValueError(f"companion: needs at least two coefficients, not {type_of(coefficients)}")
    first_row = -coefficients[..., 1:] / coefficients[..., :1]
    shift = np.broadcast_to(np.eye(size - 1, size), (*coefficients.shape[:-1], size - 1, size)).astype(first_row.dtype)
    return concatenate([first_row[..., None, :], array(shift)], axis=-2)


@documented(_MATRIX, raises=["TypeError: if `a` is not an array or a number."])
def fiedler_companion(a: ArrayLike) -> Array:
    """Build Fiedler companion matrices: pentadiagonal matrices whose eigenvalues are the roots of a polynomial.

    Returns:
        The square matrices, with one row less than there are coefficients; an empty array for one coefficient.

    Example:
        >>> jax.scipy.linalg.fiedler_companion(jnp.array([1.0, 2.0, 3.0]))
        Array([[-2., -3.],
               [ 1.,  0.]], dtype=float32)
    """
    coefficients = as_inexact_operand(_as_vector("fiedler_companion", a), "fiedler_companion")
    size = coefficients.shape[-1] - 1
    if size < 1:
        return zeros((*coefficients.shape[:-1], 0), coefficients.dtype)
    coefficient_index, ones = np.zeros((size, size), np.int32), np.zeros((size, size))
    coefficient_index[0, 0], ones[1:2, 0] = 1, 1
    for row in range(0, size - 1, 2):  # even rows hold two coefficients, odd rows only ones
        coefficient_index[row, row + 1] = row + 2
        ones[row, row + 2 : row + 3] = 1
    for row in range(2, size, 2):
        coefficient_index[row, row - 1] = row + 1
        ones[row + 1 : row + 2, row - 1] = 1
    monic = concatenate(
        [zeros(coefficients[..., :1].shape, coefficients.dtype), -coefficients[..., 1:] / coefficients[..., :1]],
        axis=-1,
    )
    return monic[..., coefficient_index] + array(ones.astype(coefficients.dtype))


def leslie(f: ArrayLike, s: ArrayLike) -> Array:
    """Build Leslie matrices of population dynamics: `f` in the first row and `s` on the subdiagonal.

    Args:
        f: the fecundities, n of them.
        s: the survival rates, n - 1 of them.

    Returns:
        The square matrices of size n.

    Raises:
        ValueError: if there are fewer than two fecundities, or not one survival rate less.
        TypeError: if an argument is not an array or a number, or if the batch dims differ.

    Example:
        >>> jax.scipy.linalg.leslie(jnp.array([1, 2]), jnp.array([3]))
        Array([[1, 2],
               [3, 0]], dtype=int32)
    """
    first_row, rates = _as_vector("leslie", f), _as_vector("leslie", s)
    size = first_row.shape[-1]
    if rates.shape[-1] != size - 1 or size < 2:
        raise ValueError(
            "leslie: f must have at least two elements, and s one element less: "
            f"f is {type_of(first_row)}, s is {type_of(rates)}"
        )
    lower_rows = rates[..., :, None] * np.eye(size - 1, size, dtype=rates.dtype)
    return concatenate([first_row[..., None, :], lower_rows], axis=-2)


def fiedler(a: ArrayLike) -> Array:
    """Build Fiedler matrices of pairwise distances: element (i, j) is `abs(a[i] - a[j])`.

    Args:
        a: the numbers.

    Returns:
        The symmetric matrices.

    Raises:
        TypeError: if `a` is not an array or a number.

    Example:
        >>> jax.scipy.linalg.fiedler(jnp.array([1, 4]))
        Array([[0, 3],
               [3, 0]], dtype=int32)
    """
    a = _as_vector("fiedler", a)
    return abs(a[..., :, None] - a[..., None, :])


def convolution_matrix(a: ArrayLike, n: int, mode: str = "full") -> Array:
    """Build the matrices that convolve a vector with `a` by a matrix product.

    Args:
        a: the convolution kernel.
        n: the length of the vector.
        mode: "full", "same" or "valid": the part of the convolution that is computed, as in `jnp.convolve`.

    Returns:
        The matrices, with `n` columns.

    Raises:
        ValueError: if `mode` is unknown, if `n` is not positive, or if `a` is empty.
        TypeError: if `a` is not an array or a number, or if `n` is not an integer.

    Example:
        >>> jax.scipy.linalg.convolution_matrix(jnp.array([1, 2]), 2)
        Array([[1, 0],
               [2, 1],
               [0, 2]], dtype=int32)
    """
    if mode not in ("full", "same", "valid"):
        raise ValueError(f"convolution_matrix: mode must be 'full', 'same' or 'valid', not {mode!r}")
    a = _as_vector("convolution_matrix", a)
    size = a.shape[-1]
    if n <= 0 or not size:
        raise ValueError(f"convolution_matrix: n must be positive and a not empty: n is {n}, a is {type_of(a)}")
    trim = min(n, size) - 1
    before, after = {"full": (0, 0), "same": (trim // 2, trim - trim // 2), "valid": (trim, trim)}[mode]
    padded = concatenate([a * 0, a, (a * 0)[..., :1]], axis=-1)
    rows = np.arange(before, size + n - 1 - after)[:, None] - np.arange(n)
    return padded[..., np.where((rows >= 0) & (rows < size), rows + size, 2 * size)]


def block_diag(*arrs: ArrayLike) -> Array:
    """Build a block diagonal matrix.

    Args:
        *arrs: the diagonal blocks. A vector is a block of one row, a scalar a block of one element.

    Returns:
        The matrix with the blocks on its diagonal and zeros elsewhere.

    Raises:
        ValueError: if a block has a rank above 2.
        TypeError: if a block is not an array or a number.

    Example:
        >>> jax.scipy.linalg.block_diag(jnp.array([[1, 2]]), jnp.array([[3]]))
        Array([[1, 2, 0],
               [0, 0, 3]], dtype=int32)
    """
    if not arrs:
        return zeros((1, 0))
    blocks = [as_operand(x, "block_diag") for x in arrs]
    blocks = [x.reshape(1, -1) if x.ndim < 2 else x for x in blocks]
    if invalid := [type_of(x) for x in blocks if x.ndim != 2]:
        raise ValueError(f"block_diag: blocks must have rank 2 or less, not {invalid[0]}")
    columns = sum(x.shape[1] for x in blocks)
    start, rows = 0, []
    for x in blocks:
        left, right = zeros((x.shape[0], start), x.dtype), zeros((x.shape[0], columns - start - x.shape[1]), x.dtype)
        rows.append(concatenate([left, x, right], axis=1))
        start += x.shape[1]
    return concatenate(rows, axis=0)


@documented(_MATRIX)
def hilbert(n: int) -> Array:
    """Return the Hilbert matrix, whose element (i, j) is 1 / (i + j + 1).

    Example:
        >>> jax.scipy.linalg.hilbert(2)
        Array([[1.        , 0.5       ],
               [0.5       , 0.33333334]], dtype=float32)
    """
    return _as_default_float(scipy.linalg.hilbert(n))


@documented(_MATRIX, raises=["ValueError: if `n` is negative."])
def invhilbert(n: int) -> Array:
    """Return the inverse of the Hilbert matrix.

    Returns:
        The square matrix of size `n`, with the default float dtype. Its elements are integers, rounded to that dtype.

    Example:
        >>> jax.scipy.linalg.invhilbert(2)
        Array([[ 4., -6.],
               [-6., 12.]], dtype=float32)
    """
    return _as_default_float(scipy.linalg.invhilbert(n, exact=True))


@documented(_MATRIX)
def pascal(n: int, kind: str | None = None) -> Array:
    """Return the Pascal matrix of binomial coefficients.

    Example:
        >>> jax.scipy.linalg.pascal(3, "lower")
        Array([[1., 0., 0.],
               [1., 1., 0.],
               [1., 2., 1.]], dtype=float32)
    """
    return _as_default_float(scipy.linalg.pascal(n, _pascal_kind("pascal", kind), exact=True))


@documented(_MATRIX)
def invpascal(n: int, kind: str | None = None) -> Array:
    """Return the inverse of the Pascal matrix.

    Example:
        >>> jax.scipy.linalg.invpascal(2)
        Array([[ 2., -1.],
               [-1.,  1.]], dtype=float32)
    """
    return _as_default_float(scipy.linalg.invpascal(n, _pascal_kind("invpascal", kind), exact=True))


def _pascal_kind(name: str, kind: str | None) -> str:
    if kind not in (None, "symmetric", "lower", "upper"):
        raise ValueError(f"{name}: kind must be 'symmetric', 'lower' or 'upper', not {kind!r}")
    return kind or "symmetric"


def hadamard(n: int, dtype: DTypeLike = int) -> Array:
    """Return the Hadamard matrix of Sylvester's construction, with elements 1 and -1 and orthogonal rows.

    Args:
        n: the size of the matrix, a power of 2.
        dtype: the dtype of the matrix.

    Returns:
        The square matrix of size `n`.

    Raises:
        ValueError: if `n` is not a power of 2.
        TypeError: if `n` is not an integer, or if `dtype` is not a dtype.

    Example:
        >>> jax.scipy.linalg.hadamard(2)
        Array([[ 1,  1],
               [ 1, -1]], dtype=int32)
    """
    if n < 1 or n & (n - 1):
        raise ValueError(f"hadamard: n must be a power of 2, not {n}")
    return array(scipy.linalg.hadamard(n).astype(requested_dtype("hadamard", dtype)))


def helmert(n: int, full: bool = False) -> Array:
    """Return the Helmert matrix, whose rows are orthonormal and sum to 0.

    Args:
        n: the number of columns.
        full: whether to include the first row, of equal elements, which makes the matrix square.

    Returns:
        The matrix of shape `(n - 1, n)`, or `(n, n)` with `full`, with the default float dtype.

    Raises:
        TypeError: if `n` is not an integer.
        ValueError: if `n` is less than 1.

    Example:
        >>> jax.scipy.linalg.helmert(2, full=True)
        Array([[ 0.70710677,  0.70710677],
               [ 0.70710677, -0.70710677]], dtype=float32)
    """
    if (count := static_integer("helmert", "n", n)) < 1:
        raise ValueError(f"helmert: n must be at least 1, not {count}")
    return _as_default_float(scipy.linalg.helmert(count, full))


def dft(n: int, scale: str | None = None, *, dtype: DTypeLike | None = None) -> Array:
    """Return the matrix of the discrete Fourier transform.

    Args:
        n: the size of the matrix.
        scale: None for no scaling, "sqrtn" to divide by sqrt(n), which makes the matrix unitary, "n" to divide by n.
        dtype: the dtype of the matrix; the default is the complex dtype of the default float precision.

    Returns:
        The square matrix of size `n`.

    Raises:
        ValueError: if `scale` is unknown, or if `n` is negative.
        TypeError: if `n` is not an integer, or if `dtype` is not a dtype.

    Example:
        >>> jax.scipy.linalg.dft(1)
        Array([[1.+0.j]], dtype=complex64)
    """
    if scale not in (None, "sqrtn", "n"):
        raise ValueError(f"dft: scale must be None, 'sqrtn' or 'n', not {scale!r}")
    if (n := static_integer("dft", "n", n)) < 0:
        raise ValueError(f"dft: n must not be negative: {n}")
    out_dtype = (
        np.result_type(default_dtype("float*"), np.complex64) if dtype is None else requested_dtype("dft", dtype)
    )
    divisor = {None: 1, "sqrtn": math.sqrt(n), "n": n}[scale]
    index = np.arange(n)
    return array((np.exp(-2j * np.pi * (np.outer(index, index) % max(1, n)) / max(1, n)) / divisor).astype(out_dtype))


def _as_default_float(x: Array) -> Any:
    return array(np.asarray(x, np.float64).astype(default_dtype("float*")))
