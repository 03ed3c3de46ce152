"""scipy.fft: discrete cosine transforms of type 2, and their inverses.

The transform of n elements is computed from one n-point Fourier transform of the elements with even positions, followed
by those with odd positions in reverse order.
"""

import math
import operator
from collections.abc import Sequence
from typing import Any

import shardwise.numpy as jnp
from shardwise.base.docstrings import Family, documented
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, astype_weak, canonical_axes, compiled_function, type_of
from shardwise.compiler.dtypes import DType, numpy_carrier
from shardwise.lax.elementwise import complex as complex_from_parts
from shardwise.typing import ArrayLike

_TRANSFORM = Family(
    {
        "x": "the array. Of complex numbers, real and imaginary parts are transformed.",
        "type": "the type of the transform, which must be 2.",
        "n": "the size to truncate or zero-pad `axis` to; that of `x` if None.",
        "axis": "the axis to transform.",
        "norm": 'None or "backward" for no normalization, "ortho" for an orthogonal transform.',
        "s": "the sizes to truncate or zero-pad the axes to; those of `x` if None.",
        "axes": "the axes to transform; all if None, or the last ones if `s` is given.",
    },
    raises=[
        "NotImplementedError: if `type` is not 2.",
        "ValueError: if `norm` is unknown, `axis` is out of bounds or has no elements, or `n` is less\nthan 1.",
    ],
)


@documented(_TRANSFORM, returns="The transform, of the shape of `x` apart from `n`.")
def dct(x: ArrayLike, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Compute the discrete cosine transform of type 2 along an axis.

    Element k of the result is `2 * sum(x[i] * cos(pi * k * (2 * i + 1) / (2 * n)) for i in range(n))`.

    Example:
        >>> jax.scipy.fft.dct(jnp.array([1.0, 1.0, 1.0, 1.0]))
        Array([8., 0., 0., 0.], dtype=float32)
    """
    return _transform("dct", x, type, None if n is None else (n,), (axis,), norm)


@documented(_TRANSFORM, returns="The inverse transform, of the shape of `x` apart from `n`.")
def idct(x: ArrayLike, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Compute the inverse of `dct` along an axis.

    Args:
        type: the type of the transform that is inverted, which must be 2.
        norm: the normalization of `dct`: None or "backward", or "ortho".

    Example:
        >>> jax.scipy.fft.idct(jnp.array([8.0, 0.0, 0.0, 0.0]))
        Array([1., 1., 1., 1.], dtype=float32)
    """
    return _transform("idct", x, type, None if n is None else (n,), (axis,), norm)


@documented(_TRANSFORM, returns="The transform, of the shape of `x` apart from `s`.")
def dctn(
    x: ArrayLike,
    type: int = 2,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Compute the discrete cosine transform of type 2 along several axes.

    Args:
        x: the array.

    Raises:
        ValueError: if `norm` is unknown, `s` and `axes` differ in length, or an axis is repeated, out of bounds or
            without elements.

    Example:
        >>> jax.scipy.fft.dctn(jnp.ones((2, 2)))
        Array([[16.,  0.],
               [ 0.,  0.]], dtype=float32)
    """
    return _transform("dctn", x, type, s, axes, norm)


@documented(_TRANSFORM, returns="The inverse transform, of the shape of `x` apart from `s`.")
def idctn(
    x: ArrayLike,
    type: int = 2,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Compute the inverse of `dctn` along several axes.

    Args:
        x: the array.
        type: the type of the transform that is inverted, which must be 2.
        norm: the normalization of `dctn`: None or "backward", or "ortho".

    Raises:
        ValueError: if `norm` is unknown, `s` and `axes` differ in length, or an axis is repeated, out of bounds or
            without elements.

    Example:
        >>> jax.scipy.fft.idctn(jnp.array([[16.0, 0.0], [0.0, 0.0]]))
        Array([[1., 1.],
               [1., 1.]], dtype=float32)
    """
    return _transform("idctn", x, type, s, axes, norm)


def _transform(
    name: str, x: ArrayLike, kind: int, sizes: Sequence[int] | None, axes: Sequence[int] | None, norm: str | None
) -> Array:
    if kind != 2:
        raise NotImplementedError(f"{name}: only the transform of type 2 is supported, not type {kind}")
    if norm not in (None, "backward", "ortho"):
        raise ValueError(f"{name}: norm must be None, 'backward' or 'ortho', not {norm!r}")
    x_type = type_of(x, name)
    shape = x_type.shape
    if axes is None:
        count = len(shape) if sizes is None else len(sizes)
        axes = range(len(shape) - count, len(shape))
    dims = canonical_axes(name, tuple(axes), x_type)
    lengths = tuple(shape[dim] for dim in dims) if sizes is None else tuple(map(operator.index, sizes))
    if len(lengths) != len(dims):
        raise ValueError(f"{name}: s has {len(lengths)} sizes for {len(dims)} axes")
    if any(length < 1 for length in lengths):
        raise ValueError(f"{name}: the transformed axes need one element or more, not {lengths}")
    return _along_axes(x, dims=dims, lengths=lengths, inverse=name.startswith("i"), ortho=norm == "ortho")


@compiled_function
def _along_axes(x: ArrayLike, *, dims: tuple[int, ...], lengths: tuple[int, ...], inverse: bool, ortho: bool) -> Any:
    x = as_inexact(x, "dct")
    x = astype_weak(x, numpy_carrier(x.type.dtype), False)
    for dim, length in zip(dims, lengths, strict=True):
        last = _with_length(jnp.moveaxis(x, dim, -1), length)
        transform = _inverse_cosine_transform if inverse else _cosine_transform
        if x.dtype.kind == "c":
            last = complex_from_parts(transform(last.real, ortho), transform(last.imag, ortho))
        else:
            last = transform(last, ortho)
        x = jnp.moveaxis(last, -1, dim)
    return x


def _with_length(x: Array, length: int) -> Any:
    """Truncate or zero-pad the last axis."""
    size = x.shape[-1]
    return x[..., :length] if size >= length else jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, length - size)])


def _cosine_transform(x: Array, ortho: bool) -> Any:
    n = x.shape[-1]
    spectrum = jnp.fft.fft(jnp.concatenate([x[..., ::2], jnp.flip(x[..., 1::2], -1)], axis=-1))
    result = 2 * (spectrum * _phases(n, -1, x.dtype)).real
    return result * _orthogonal_scale(n, x.dtype) if ortho else result


def _inverse_cosine_transform(x: Array, ortho: bool) -> Any:
    n = x.shape[-1]
    x = x / _orthogonal_scale(n, x.dtype) if ortho else x
    opposite = jnp.concatenate([jnp.zeros_like(x[..., :1]), jnp.flip(x[..., 1:], -1)], axis=-1)
    spectrum = complex_from_parts(x, -opposite)
    signal = jnp.fft.ifft(spectrum * _phases(n, 1, x.dtype) / 2).real
    even, odd = signal[..., : (n + 1) // 2], jnp.flip(signal[..., (n + 1) // 2 :], -1)
    pairs = jnp.stack([even, _with_length(odd, even.shape[-1])], axis=-1)
    return pairs.reshape((*x.shape[:-1], 2 * even.shape[-1]))[..., :n]


def _phases(n: int, sign: int, dtype: DType) -> Any:
    angles = jnp.arange(n, dtype=dtype) * (sign * math.pi / (2 * n))
    return complex_from_parts(jnp.cos(angles), jnp.sin(angles))


def _orthogonal_scale(n: int, dtype: DType) -> Any:
    """Return the factors that make the transform orthogonal."""
    return jnp.where(jnp.arange(n) == 0, 0.5, math.sqrt(0.5)).astype(dtype) / math.sqrt(n)


publish(__name__)
