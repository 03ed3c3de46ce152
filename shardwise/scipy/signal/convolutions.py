"""Convolution and correlation of arrays of any rank, directly or by Fourier transforms."""

from collections.abc import Sequence
from typing import Any

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, canonical_axes
from shardwise.lax.precision import PrecisionLike
from shardwise.typing import ArrayLike

MODES = ("full", "same", "valid")


_CONVOLUTION = Family(
    {
        "in1, in2": "the arrays. Integers become floats.",
        "mode": '"full" for all sums, "same" for the central part of the shape of `in1`, "valid" for sums\n'
        "without padding.",
        "method": '"direct" (also "auto") for one convolution op, "fft" for products of Fourier transforms.',
        "precision": "the precision of the products of the direct method.",
        "boundary": Parameter(
            '"fill"; other boundaries are not supported.',
            "NotImplementedError: if `boundary` or `fillvalue` is not supported.",
        ),
        "fillvalue": "0, the value outside of the matrices.",
    },
    returns="The convolution.",
    raises=[
        'ValueError: if ranks differ, `mode` or `method` is unknown, or with "valid" no array contains\nthe other.'
    ],
)


@documented(_CONVOLUTION, raises=["TypeError: if an argument is not an array."])
def convolve(
    in1: ArrayLike, in2: ArrayLike, mode: str = "full", method: str = "auto", precision: PrecisionLike = None
) -> Array:
    """Convolve two arrays of the same rank.

    Example:
        >>> jax.scipy.signal.convolve(jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 1.0]))
        Array([1., 3., 5., 3.], dtype=float32)
    """
    if method not in ("auto", "direct", "fft"):
        raise ValueError(f"convolve: method must be 'auto', 'direct' or 'fft', not {method!r}")
    if method == "fft":
        return fftconvolve(in1, in2, mode)
    return _direct("convolve", in1, in2, mode, precision)


@documented(_CONVOLUTION, returns="The correlation.", raises=["TypeError: if an argument is not an array."])
def correlate(
    in1: ArrayLike, in2: ArrayLike, mode: str = "full", method: str = "auto", precision: PrecisionLike = None
) -> Array:
    """Cross-correlate two arrays of the same rank: convolve `in1` with the reversed conjugate of `in2`.

    Example:
        >>> jax.scipy.signal.correlate(jnp.array([1.0, 2.0, 3.0]), jnp.array([0.0, 1.0]), mode="valid")
        Array([2., 3.], dtype=float32)
    """
    kernel = as_inexact(in2, "correlate")
    return convolve(in1, jnp.flip(kernel).conj(), mode, method, precision)


@documented(_CONVOLUTION)
def convolve2d(
    in1: ArrayLike,
    in2: ArrayLike,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: float = 0,
    precision: PrecisionLike = None,
) -> Array:
    """Convolve two matrices.

    Args:
        in1, in2: the matrices. Integers become floats.
        precision: the precision of the products.

    Raises:
        ValueError: if the arguments are not matrices, `mode` is unknown, or with "valid" no matrix contains the other.

    Example:
        >>> jax.scipy.signal.convolve2d(jnp.ones((2, 2)), jnp.ones((2, 2)), mode="valid")
        Array([[4.]], dtype=float32)
    """
    _check_matrices("convolve2d", in1, in2, boundary, fillvalue)
    return _direct("convolve2d", in1, in2, mode, precision)


@documented(_CONVOLUTION, returns="The correlation.")
def correlate2d(
    in1: ArrayLike,
    in2: ArrayLike,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: float = 0,
    precision: PrecisionLike = None,
) -> Array:
    """Cross-correlate two matrices.

    Args:
        in1, in2: the matrices. Integers become floats.
        precision: the precision of the products.

    Raises:
        ValueError: if the arguments are not matrices, `mode` is unknown, or with "valid" no matrix contains the other.

    Example:
        >>> jax.scipy.signal.correlate2d(jnp.eye(2), jnp.eye(2), mode="valid")
        Array([[2.]], dtype=float32)
    """
    _check_matrices("correlate2d", in1, in2, boundary, fillvalue)
    kernel = as_inexact(in2, "correlate2d")
    return _direct("correlate2d", in1, jnp.flip(kernel).conj(), mode, precision, from_end=True)


@documented(_CONVOLUTION)
def fftconvolve(in1: ArrayLike, in2: ArrayLike, mode: str = "full", axes: Sequence[int] | None = None) -> Array:
    """Convolve two arrays of the same rank by Fourier transforms, along all or some axes.

    Args:
        axes: the axes to convolve along; all if None. Along the others, arrays are broadcast.

    Raises:
        ValueError: if ranks differ, other axes do not broadcast, `mode` is unknown, an axis repeats or does not exist,
            or with "valid" no array contains the other.

    Example:
        >>> jax.scipy.signal.fftconvolve(jnp.array([1.0, 2.0]), jnp.array([1.0, 1.0])).round(4)
        Array([1., 3., 2.], dtype=float32)
    """
    x, y = _same_rank("fftconvolve", in1, in2, mode)
    dims = tuple(range(x.ndim)) if axes is None else canonical_axes("fftconvolve", tuple(axes), x.type)
    x, y = _larger_first("fftconvolve", x, y, mode, dims)
    for dim in range(x.ndim):
        if dim not in dims and x.shape[dim] != y.shape[dim] and 1 not in (x.shape[dim], y.shape[dim]):
            raise ValueError(f"fftconvolve: shapes {x.shape} and {y.shape} do not broadcast along axis {dim}")
    if not dims or not x.size or not y.size:
        return x * y
    sizes = [x.shape[dim] + y.shape[dim] - 1 for dim in dims]
    is_complex = jnp.iscomplexobj(x) or jnp.iscomplexobj(y)
    forward, inverse = (jnp.fft.fftn, jnp.fft.ifftn) if is_complex else (jnp.fft.rfftn, jnp.fft.irfftn)
    full = inverse(forward(x, sizes, axes=dims) * forward(y, sizes, axes=dims), sizes, axes=dims)
    for dim in dims:
        start, stop = _kept(mode, x.shape[dim], y.shape[dim])
        full = lax.slice_in_dim(full, start, stop, axis=dim)
    return full.astype(jnp.result_type(x, y))


def _check_matrices(name: str, in1: ArrayLike, in2: ArrayLike, boundary: str, fillvalue: float) -> None:
    if boundary != "fill" or fillvalue != 0:
        raise NotImplementedError(f"{name}: only boundary='fill' with fillvalue=0 is supported")
    if jnp.ndim(in1) != 2 or jnp.ndim(in2) != 2:
        raise ValueError(f"{name}: needs two matrices, not arrays of rank {jnp.ndim(in1)} and {jnp.ndim(in2)}")


def _same_rank(name: str, in1: ArrayLike, in2: ArrayLike, mode: str) -> tuple[Any, Any]:
    """Return both arrays as floats or complex numbers of one dtype, after a check of their ranks and of the mode."""
    if mode not in MODES:
        raise ValueError(f"{name}: mode must be 'full', 'same' or 'valid', not {mode!r}")
    x, y = as_inexact(in1, name), as_inexact(in2, name)
    if x.ndim != y.ndim:
        raise ValueError(f"{name}: both arrays must have the same rank, not {x.ndim} and {y.ndim}")
    dtype = jnp.result_type(x, y)
    return x.astype(dtype), y.astype(dtype)


def _larger_first(name: str, x: Array, y: Array, mode: str, dims: Sequence[int]) -> tuple[Any, Any]:
    """Return the arrays so that, with the mode "valid", the first one contains the second."""
    if mode != "valid" or all(x.shape[dim] >= y.shape[dim] for dim in dims):
        return x, y
    if all(x.shape[dim] <= y.shape[dim] for dim in dims):
        return y, x
    raise ValueError(
        f"{name}: with mode 'valid', one array must be at least as large as the other along every axis, but the shapes "
        f"are {x.shape} and {y.shape}"
    )


def _kept(mode: str, size: int, kernel_size: int, from_end: bool = False) -> tuple[int, int]:
    """Return the range of the full convolution that `mode` keeps.

    The center of a kernel of even size is the element before its middle, or the one after it with `from_end`.
    """
    if mode == "full":
        return 0, size + kernel_size - 1
    if mode == "same":
        start = kernel_size // 2 if from_end else (kernel_size - 1) // 2
        return start, start + size
    return kernel_size - 1, size


def _direct(
    name: str, in1: ArrayLike, in2: ArrayLike, mode: str, precision: PrecisionLike, from_end: bool = False
) -> Any:
    """Convolve by one convolution op whose batch and channels have one element."""
    x, y = _same_rank(name, in1, in2, mode)
    x, y = _larger_first(name, x, y, mode, range(x.ndim))
    if not x.ndim:
        return x * y
    if not x.size or not y.size:
        raise ValueError(f"{name}: arrays must have elements, not the shapes {x.shape} and {y.shape}")
    padding = []
    for size, kernel_size in zip(x.shape, y.shape, strict=True):
        start, stop = _kept(mode, size, kernel_size, from_end)
        padding.append((kernel_size - 1 - start, stop - size))
    result = lax.conv_general_dilated(
        x[None, None], jnp.flip(y)[None, None], (1,) * x.ndim, padding, precision=precision
    )
    return result[0, 0]
