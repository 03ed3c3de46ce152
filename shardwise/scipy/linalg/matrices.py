"""Matrices of a known form: those of a vector, whose dims before the last are a batch, and those of a size alone."""

import math
from typing import Any

import numpy as np
import scipy  # loads `scipy.linalg` once it is asked for: a third of a second that few programs need

from shardwise.compiler.ops.operands import as_operand, type_of
from shardwise.compiler.ops.promote import canonical_dtype, default_dtype
from shardwise.numpy.creation import array, zeros
from shardwise.numpy.joining import concatenate
from shardwise.numpy.linalg.factors import as_floats


def _vector(name: str, x: Any) -> Any:
    x = as_operand(x, name)
    return x.reshape(-1) if x.ndim < 1 else x


def toeplitz(c: Any, r: Any = None) -> Any:
    """Matrices that are constant along each diagonal: `c` is the first column, `r` the first row, without its first
    element; without `r`, the conjugate of `c`.

    >>> jax.scipy.linalg.toeplitz(jnp.array([1, 2]), jnp.array([1, 5, 6]))
    Array([[1, 5, 6],
           [2, 1, 5]], dtype=int32)
    """
    column = _vector("toeplitz", c)
    row = column.conj() if r is None else _vector("toeplitz", r)
    rows, columns = column.shape[-1], row.shape[-1]
    both = concatenate([row[..., :0:-1], column], axis=-1)
    return both[..., columns - 1 + np.arange(rows)[:, None] - np.arange(columns)]


def hankel(c: Any, r: Any = None) -> Any:
    """Matrices that are constant along each counterdiagonal: `c` is the first column, `r` the last row, without its
    first element; without `r`, zeros.

    >>> jax.scipy.linalg.hankel(jnp.array([1, 2]), jnp.array([2, 5, 6]))
    Array([[1, 2, 5],
           [2, 5, 6]], dtype=int32)
    """
    column = _vector("hankel", c)
    row = column * 0 if r is None else _vector("hankel", r)
    both = concatenate([column, row[..., 1:]], axis=-1)
    return both[..., np.arange(column.shape[-1])[:, None] + np.arange(row.shape[-1])]


def circulant(c: Any) -> Any:
    """Matrices whose columns are `c`, each one step further down than the one before it.

    >>> jax.scipy.linalg.circulant(jnp.array([1, 2, 3]))
    Array([[1, 3, 2],
           [2, 1, 3],
           [3, 2, 1]], dtype=int32)
    """
    column = _vector("circulant", c)
    places = np.arange(column.shape[-1])
    return column[..., (places[:, None] - places) % max(1, places.size)]


def companion(a: Any) -> Any:
    """Matrices whose characteristic polynomial has these coefficients, the highest power first.

    >>> jax.scipy.linalg.companion(jnp.array([1.0, 2.0, 3.0]))
    Array([[-2., -3.],
           [ 1.,  0.]], dtype=float32)
    """
    a = as_floats(_vector("companion", a), "companion")
    size = a.shape[-1] - 1
    if size < 1:
        raise ValueError(f"companion: needs two or more coefficients, not {type_of(a)}")
    first = -a[..., 1:] / a[..., :1]
    below = np.broadcast_to(np.eye(size - 1, size), (*a.shape[:-1], size - 1, size)).astype(first.dtype)
    return concatenate([first[..., None, :], array(below)], axis=-2)


def fiedler_companion(a: Any) -> Any:
    """Matrices of five diagonals whose characteristic polynomial has these coefficients, the highest power first.

    >>> jax.scipy.linalg.fiedler_companion(jnp.array([1.0, 2.0, 3.0]))
    Array([[-2., -3.],
           [ 1.,  0.]], dtype=float32)
    """
    a = as_floats(_vector("fiedler_companion", a), "fiedler_companion")
    size = a.shape[-1] - 1
    if size < 1:
        return zeros((*a.shape[:-1], 0), a.dtype)
    which, ones = np.zeros((size, size), np.int32), np.zeros((size, size))
    which[0, 0], ones[1:2, 0] = 1, 1
    for row in range(0, size - 1, 2):  # rows of even numbers hold two coefficients, those of odd ones only a 1
        which[row, row + 1] = row + 2
        ones[row, row + 2 : row + 3] = 1
    for row in range(2, size, 2):
        which[row, row - 1] = row + 1
        ones[row + 1 : row + 2, row - 1] = 1
    monic = concatenate([zeros(a[..., :1].shape, a.dtype), -a[..., 1:] / a[..., :1]], axis=-1)
    return monic[..., which] + array(ones.astype(a.dtype))


def leslie(f: Any, s: Any) -> Any:
    """Matrices with `f` in the first row, and `s` below the diagonal.

    >>> jax.scipy.linalg.leslie(jnp.array([1, 2]), jnp.array([3]))
    Array([[1, 2],
           [3, 0]], dtype=int32)
    """
    top, below = _vector("leslie", f), _vector("leslie", s)
    size = top.shape[-1]
    if below.shape[-1] != size - 1 or size < 2:
        raise ValueError(f"leslie: needs two or more numbers f, and one fewer s, not {type_of(top)}, {type_of(below)}")
    under = below[..., :, None] * np.eye(size - 1, size, dtype=below.dtype)
    return concatenate([top[..., None, :], under], axis=-2)


def fiedler(a: Any) -> Any:
    """The matrix of the distances of each two of some numbers.

    >>> jax.scipy.linalg.fiedler(jnp.array([1, 4]))
    Array([[0, 3],
           [3, 0]], dtype=int32)
    """
    a = _vector("fiedler", a)
    return abs(a[..., :, None] - a[..., None, :])


def convolution_matrix(a: Any, n: int, mode: str = "full") -> Any:
    """The matrix whose product with a vector of `n` numbers is its convolution with `a`, in `mode` "full", "same" or
    "valid".

    >>> jax.scipy.linalg.convolution_matrix(jnp.array([1, 2]), 2)
    Array([[1, 0],
           [2, 1],
           [0, 2]], dtype=int32)
    """
    if mode not in ("full", "same", "valid"):
        raise ValueError(f"convolution_matrix: mode {mode!r} is none of 'full', 'same' and 'valid'")
    a = _vector("convolution_matrix", a)
    size = a.shape[-1]
    if n <= 0 or not size:
        raise ValueError(f"convolution_matrix: needs numbers on both sides, not {type_of(a)} and {n}")
    shorter = min(n, size) - 1
    before, after = {"full": (0, 0), "same": (shorter // 2, shorter - shorter // 2), "valid": (shorter, shorter)}[mode]
    padded = concatenate([a * 0, a, (a * 0)[..., :1]], axis=-1)
    rows = np.arange(before, size + n - 1 - after)[:, None] - np.arange(n)
    return padded[..., np.where((rows >= 0) & (rows < size), rows + size, 2 * size)]


def block_diag(*arrs: Any) -> Any:
    """The matrix with these along its diagonal, and zeros elsewhere; a vector is a row.

    >>> jax.scipy.linalg.block_diag(jnp.array([[1, 2]]), jnp.array([[3]]))
    Array([[1, 2, 0],
           [0, 0, 3]], dtype=int32)
    """
    if not arrs:
        return zeros((1, 0))
    blocks = [as_operand(x, "block_diag") for x in arrs]
    blocks = [x.reshape(1, -1) if x.ndim < 2 else x for x in blocks]
    if wrong := [type_of(x) for x in blocks if x.ndim != 2]:
        raise ValueError(f"block_diag: needs matrices, not {wrong[0]}")
    columns = sum(x.shape[1] for x in blocks)
    done, rows = 0, []
    for x in blocks:
        left, right = zeros((x.shape[0], done), x.dtype), zeros((x.shape[0], columns - done - x.shape[1]), x.dtype)
        rows.append(concatenate([left, x, right], axis=1))
        done += x.shape[1]
    return concatenate(rows, axis=0)


def hilbert(n: int) -> Any:
    """The matrix of 1 / (i + j + 1).

    >>> jax.scipy.linalg.hilbert(2)
    Array([[1.        , 0.5       ],
           [0.5       , 0.33333334]], dtype=float32)
    """
    return _floats(scipy.linalg.hilbert(n))


def invhilbert(n: int) -> Any:
    """The inverse of `hilbert(n)`.

    >>> jax.scipy.linalg.invhilbert(2)
    Array([[ 4., -6.],
           [-6., 12.]], dtype=float32)
    """
    return _floats(scipy.linalg.invhilbert(n, exact=True))


def pascal(n: int, kind: str | None = None) -> Any:
    """The matrix of the binomial coefficients: "symmetric" (as None), "lower" or "upper" triangular.

    >>> jax.scipy.linalg.pascal(3, "lower")
    Array([[1., 0., 0.],
           [1., 1., 0.],
           [1., 2., 1.]], dtype=float32)
    """
    return _floats(scipy.linalg.pascal(n, _kind("pascal", kind), exact=True))


def invpascal(n: int, kind: str | None = None) -> Any:
    """The inverse of `pascal(n, kind)`.

    >>> jax.scipy.linalg.invpascal(2)
    Array([[ 2., -1.],
           [-1.,  1.]], dtype=float32)
    """
    return _floats(scipy.linalg.invpascal(n, _kind("invpascal", kind), exact=True))


def _kind(name: str, kind: str | None) -> str:
    if kind not in (None, "symmetric", "lower", "upper"):
        raise ValueError(f"{name}: kind {kind!r} is none of 'symmetric', 'lower' and 'upper'")
    return kind or "symmetric"


def hadamard(n: int, dtype: Any = int) -> Any:
    """A matrix of ones and minus ones whose rows are orthogonal; `n` is a power of 2.

    >>> jax.scipy.linalg.hadamard(2)
    Array([[ 1,  1],
           [ 1, -1]], dtype=int32)
    """
    if n < 1 or n & (n - 1):
        raise ValueError(f"hadamard: n must be a power of 2, not {n}")
    return array(scipy.linalg.hadamard(n).astype(canonical_dtype(dtype)))


def helmert(n: int, full: bool = False) -> Any:
    """A matrix with orthonormal rows that all sum to 0; `full`: also the row of equal numbers.

    >>> jax.scipy.linalg.helmert(2, full=True)
    Array([[ 0.70710677,  0.70710677],
           [ 0.70710677, -0.70710677]], dtype=float32)
    """
    return _floats(scipy.linalg.helmert(n, full))


def dft(n: int, scale: str | None = None, *, dtype: Any = None) -> Any:
    """The matrix whose product with a vector is its Fourier transform; `scale` "sqrtn" or "n": divided by that.

    >>> jax.scipy.linalg.dft(1)
    Array([[1.+0.j]], dtype=complex64)
    """
    if scale not in (None, "sqrtn", "n"):
        raise ValueError(f"dft: scale {scale!r} is none of None, 'sqrtn' and 'n'")
    wanted = np.result_type(default_dtype("float*"), np.complex64) if dtype is None else canonical_dtype(dtype)
    shared = {None: 1, "sqrtn": math.sqrt(n), "n": n}[scale]
    places = np.arange(n)
    return array((np.exp(-2j * np.pi * (np.outer(places, places) % max(1, n)) / max(1, n)) / shared).astype(wanted))


def _floats(x: Any) -> Any:
    return array(np.asarray(x, np.float64).astype(default_dtype("float*")))
