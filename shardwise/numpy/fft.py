"""numpy.fft: discrete Fourier transforms, with JAX's dtypes (complex64 for float32).

`norm` chooses where the factor 1/n of n-point transforms is applied: "backward" (the default) to inverse transforms,
"forward" to forward transforms, "ortho" 1/sqrt(n) to both.
"""

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.api.meshes.placement import create_on_device, device_put
from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.arithmetic import conjugate, divide
from shardwise.compiler.arrays.fft import fft_along, promote_for_fft
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import PYTHON_SCALARS, as_operand, canonical_axes, compiled_function, type_of
from shardwise.compiler.arrays.promotion import default_dtype, requested_dtype
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr, where
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.slicing import Pad, slice_along
from shardwise.numpy.families import ARRAYS
from shardwise.numpy.repeating import roll
from shardwise.typing import ArrayLike, DTypeLike, Placement

_NORM = {"norm": 'the normalization: "backward" (also None), "ortho" or "forward".'}
_ONE_AXIS = ARRAYS.extended(
    {
        "n": "the size to truncate or zero-pad `axis` to; that of `a` if None.",
        "axis": "the axis to transform.",
        **_NORM,
    },
    "A complex array.",
    ["ValueError: if `n` is less than 1, `axis` is a sequence or out of bounds, or `norm` is unknown."],
)
_TWO_AXES = ARRAYS.extended(
    {
        "s": "the two sizes to truncate or zero-pad the axes to; those of `a` if None.",
        "axes": "the two axes to transform.",
        **_NORM,
    },
    "A complex array.",
    [
        "ValueError: if there are not exactly two axes, they repeat or are out of bounds, the number of sizes\n"
        "differs, a size is less than 1, or `norm` is unknown."
    ],
)
_AXES = ARRAYS.extended(
    {
        "s": "the sizes to truncate or zero-pad the axes to; those of `a` if None.",
        "axes": "the axes to transform. If None, all axes, or the last `len(s)` ones if `s` is given.",
        **_NORM,
    },
    "A complex array.",
    [
        "ValueError: if axes repeat or are out of bounds, their number differs from that of `s`, a size is less\n"
        "than 1, or `norm` is unknown."
    ],
)
_REAL = {"a": Parameter("the real array.", "ValueError: if {} is complex.")}
_REAL_ONE_AXIS, _REAL_TWO_AXES, _REAL_AXES = (each.extended(_REAL) for each in (_ONE_AXIS, _TWO_AXES, _AXES))
_FREQUENCIES = Family(
    {
        "n": "the number of samples.",
        "d": "the distance between samples.",
        "dtype": "the dtype of the result; the default float dtype if None.",
        "device": "the device or sharding on which the result is created.",
    },
    raises=["ValueError: if `n` is less than 1, or if `n` or `d` is a sequence."],
)
_SHIFT = ARRAYS.extended(
    {"axes": "the axis or axes to shift; all if None."},
    "An array of the shape and dtype of `x`.",
    ["ValueError: if an axis is out of bounds or repeats."],
)


@documented(_ONE_AXIS)
def fft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Compute the 1-D discrete Fourier transform.

    Example:
        >>> jnp.fft.fft(jnp.array([1.0, 2.0, 1.0, 2.0]))
        Array([ 6.+0.j,  0.+0.j, -2.+0.j,  0.+0.j], dtype=complex64)
    """
    return _transform_one("fft", "FFT", a, n, axis, norm)


@documented(_ONE_AXIS)
def ifft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Compute the inverse 1-D discrete Fourier transform.

    Example:
        >>> jnp.fft.ifft(jnp.array([6.0, 0.0, -2.0, 0.0]))
        Array([1.+0.j, 2.+0.j, 1.+0.j, 2.+0.j], dtype=complex64)
    """
    return _transform_one("ifft", "IFFT", a, n, axis, norm)


@documented(_REAL_ONE_AXIS, returns="A complex array with `n // 2 + 1` elements along `axis`.")
def rfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Compute the 1-D discrete Fourier transform of a real array.

    The spectrum of a real signal is Hermitian, so only the coefficients of the non-negative frequencies are returned.

    Example:
        >>> jnp.fft.rfft(jnp.array([1.0, 2.0, 1.0, 2.0]))
        Array([ 6.+0.j,  0.+0.j, -2.+0.j], dtype=complex64)
    """
    return _transform_one("rfft", "RFFT", a, n, axis, norm)


@documented(_ONE_AXIS, returns="A real array.")
def irfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Compute the inverse of `rfft`.

    Args:
        a: the coefficients of the non-negative frequencies.
        n: the size of the result along `axis`; `2 * (m - 1)` for m coefficients if None.

    Example:
        >>> jnp.fft.irfft(jnp.array([6.0, 0.0, -2.0]))
        Array([1., 2., 1., 2.], dtype=float32)
    """
    return _transform_one("irfft", "IRFFT", a, n, axis, norm)


@documented(_ONE_AXIS, returns="A real array.")
def hfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Compute the 1-D discrete Fourier transform of a Hermitian signal, given its first half.

    Args:
        a: the first half of the signal; the second half is its mirrored complex conjugate.
        n: the size of the result along `axis`; `2 * (m - 1)` for m elements if None.

    Example:
        >>> jnp.fft.hfft(jnp.array([1.0, 2.0, 3.0]))
        Array([ 8., -2.,  0., -2.], dtype=float32)
    """
    return _transform_one("hfft", "IRFFT", conjugate(a), n, axis, _inverse_norm("hfft", norm))


@documented(_REAL_ONE_AXIS, returns="The first `n // 2 + 1` elements of the Hermitian signal along `axis`.")
def ihfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Compute the inverse of `hfft`.

    Args:
        a: the real spectrum.

    Example:
        >>> jnp.fft.ihfft(jnp.array([8.0, -2.0, 0.0, -2.0]))
        Array([1.-0.j, 2.-0.j, 3.-0.j], dtype=complex64)
    """
    return conjugate(_transform_one("ihfft", "RFFT", a, n, axis, _inverse_norm("ihfft", norm)))


@documented(_TWO_AXES)
def fft2(
    a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> Array:
    """Compute the 2-D discrete Fourier transform.

    Example:
        >>> jnp.fft.fft2(jnp.eye(2))
        Array([[2.+0.j, 0.+0.j],
               [0.+0.j, 2.+0.j]], dtype=complex64)
    """
    return _transform_two("fft2", "FFT", a, s, axes, norm)


@documented(_TWO_AXES)
def ifft2(
    a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> Array:
    """Compute the inverse 2-D discrete Fourier transform.

    Example:
        >>> jnp.fft.ifft2(2 * jnp.eye(2))
        Array([[1.+0.j, 0.+0.j],
               [0.+0.j, 1.+0.j]], dtype=complex64)
    """
    return _transform_two("ifft2", "IFFT", a, s, axes, norm)


@documented(_REAL_TWO_AXES)
def rfft2(
    a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> Array:
    """Compute the 2-D discrete Fourier transform of a real array.

    Returns:
        A complex array with `n // 2 + 1` elements along the last of the axes, which has the size n.

    Example:
        >>> jnp.fft.rfft2(jnp.ones((2, 4))).shape
        (2, 3)
    """
    return _transform_two("rfft2", "RFFT", a, s, axes, norm)


@documented(_TWO_AXES, returns="A real array.")
def irfft2(
    a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> Array:
    """Compute the inverse of `rfft2`.

    Args:
        a: the coefficients of the non-negative frequencies.
        s: the two sizes of the result along the axes; the last is `2 * (m - 1)` for a size m of `a` if None.
        axes: the two axes to transform; the last one holds the half spectrum.

    Example:
        >>> jnp.fft.irfft2(jnp.fft.rfft2(jnp.ones((1, 2))))
        Array([[1., 1.]], dtype=float32)
    """
    return _transform_two("irfft2", "IRFFT", a, s, axes, norm)


@documented(_AXES)
def fftn(
    a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str | None = None
) -> Array:
    """Compute the N-D discrete Fourier transform.

    The axes are transformed one after the other. So an array that is sharded along one of them is never gathered: it is
    resharded along another axis while that one is transformed.

    Example:
        >>> jnp.fft.fftn(jnp.ones((1, 2, 1)))
        Array([[[2.+0.j],
                [0.+0.j]]], dtype=complex64)
    """
    return _transform("fftn", "FFT", a, s, axes, norm)


@documented(_AXES)
def ifftn(
    a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str | None = None
) -> Array:
    """Compute the inverse N-D discrete Fourier transform.

    Example:
        >>> jnp.fft.ifftn(jnp.array([[2.0, 0.0]]))
        Array([[1.+0.j, 1.+0.j]], dtype=complex64)
    """
    return _transform("ifftn", "IFFT", a, s, axes, norm)


@documented(_REAL_AXES)
def rfftn(
    a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str | None = None
) -> Array:
    """Compute the N-D discrete Fourier transform of a real array.

    Returns:
        A complex array with `n // 2 + 1` elements along the last of the axes, which has the size n.

    Example:
        >>> jnp.fft.rfftn(jnp.ones((3, 2, 4))).shape
        (3, 2, 3)
    """
    return _transform("rfftn", "RFFT", a, s, axes, norm)


@documented(_AXES, returns="A real array.")
def irfftn(
    a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str | None = None
) -> Array:
    """Compute the inverse of `rfftn`.

    Args:
        a: the coefficients of the non-negative frequencies.
        s: the sizes of the result along the axes; the last is `2 * (m - 1)` for a size m of `a` if None.
        axes: the axes to transform; the last one holds the half spectrum. If None, all axes, or the last `len(s)` ones
            if `s` is given.

    Example:
        >>> jnp.fft.irfftn(jnp.fft.rfftn(jnp.ones((1, 3))), (1, 3))
        Array([[1., 1., 1.]], dtype=float32)
    """
    return _transform("irfftn", "IRFFT", a, s, axes, norm)


def _transform_one(name: str, fft_type: str, a: ArrayLike, n: int | None, axis: int, norm: str | None) -> Any:
    if isinstance(axis, (tuple, list)):
        raise ValueError(f"jnp.fft.{name}: `axis` must be one axis, not {axis!r}; use the N-D functions for several")
    return _transform(name, fft_type, a, None if n is None else (n,), (axis,), norm)


def _transform_two(
    name: str, fft_type: str, a: ArrayLike, s: Sequence[int] | None, axes: Sequence[int], norm: str | None
) -> Any:
    if len(axes) != 2:
        raise ValueError(f"jnp.fft.{name}: `axes` must be two axes, not {tuple(axes)}")
    return _transform(name, fft_type, a, s, axes, norm)


def _transform(
    name: str, fft_type: str, a: ArrayLike, s: Sequence[int] | None, axes: Sequence[int] | None, norm: str | None
) -> Any:
    name = f"jnp.fft.{name}"
    sizes = None if s is None else tuple(operator.index(size) for size in s)
    _inverse_norm(name, norm)  # raises for an unknown norm
    if sizes is not None and axes is not None and len(sizes) != len(axes):
        raise ValueError(f"{name}: `s` has {len(sizes)} sizes for {len(axes)} axes: {sizes} and {tuple(axes)}")
    return _fft(a, name=name, fft_type=fft_type, sizes=sizes, axes=None if axes is None else tuple(axes), norm=norm)


@compiled_function
def _fft(
    a: ArrayLike,
    *,
    name: str,
    fft_type: str,
    sizes: tuple[int, ...] | None,
    axes: tuple[int, ...] | None,
    norm: str | None,
) -> Any:
    a_type = type_of(a, name)
    if axes is None:
        count = a_type.ndim if sizes is None else len(sizes)
        axes = tuple(range(-count, 0))
    dims = canonical_axes(name, axes, a_type)
    x = promote_for_fft(a, fft_type, name)
    lengths = [x.type.shape[dim] for dim in dims]
    if fft_type == "IRFFT" and lengths:
        lengths[-1] = 2 * (lengths[-1] - 1)
    if sizes is not None:
        lengths = list(sizes)
    if any(length < 1 for length in lengths):
        raise ValueError(f"{name}: the transform lengths must be at least 1, not {tuple(lengths)}, of {a_type}")
    for dim, length in zip(dims, lengths, strict=True):
        x = _truncate_or_pad(x, dim, length // 2 + 1 if fft_type == "IRFFT" and dim == dims[-1] else length)
    result = fft_along(x, fft_type, dims, lengths)
    total = float(math.prod(lengths))
    is_inverse = fft_type in ("IFFT", "IRFFT")
    scale = {"ortho": math.sqrt(total), "forward": total}.get(norm or "", 1.0)
    return result if scale == 1 else result * (scale if is_inverse else 1 / scale)


def _inverse_norm(name: str, norm: str | None) -> str:
    """Return the `norm` that means the same for the transform in the other direction."""
    inverse = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}
    if norm not in inverse:
        raise ValueError(f"{name}: norm must be 'backward', 'ortho' or 'forward', not {norm!r}")
    return inverse[norm]


def _truncate_or_pad(x: Array, dim: int, size: int) -> Any:
    """Truncate `x` along `dim` to `size` elements, or pad it with zeros."""
    old_size = x.type.shape[dim]
    if size <= old_size:
        return slice_along(x, dim, 0, size)
    zeros = [0] * x.type.ndim
    high = [size - old_size if d == dim else 0 for d in range(x.type.ndim)]
    return Pad(tuple(zeros), tuple(high), tuple(zeros))(x, full((), 0, x.type.dtype))


@documented(_FREQUENCIES)
def fftfreq(n: int, d: ArrayLike = 1.0, *, dtype: DTypeLike | None = None, device: Placement = None) -> Array:
    """Return the sample frequencies of `fft`.

    Returns:
        The frequencies in the order of `fft`: the non-negative ones ascending, then the negative ones ascending.

    Example:
        >>> jnp.fft.fftfreq(4, 0.5)
        Array([ 0. ,  0.5, -1. , -0.5], dtype=float32)
    """
    return _frequencies("fftfreq", n, d, dtype, device, False)


@documented(_FREQUENCIES, returns="The `n // 2 + 1` non-negative frequencies, ascending.")
def rfftfreq(n: int, d: ArrayLike = 1.0, *, dtype: DTypeLike | None = None, device: Placement = None) -> Array:
    """Return the sample frequencies of `rfft`.

    Example:
        >>> jnp.fft.rfftfreq(4, 0.5)
        Array([0. , 0.5, 1. ], dtype=float32)
    """
    return _frequencies("rfftfreq", n, d, dtype, device, True)


def _frequencies(
    name: str, n: int, d: ArrayLike, dtype: DTypeLike | None, device: Placement, non_negative: bool
) -> Any:
    if isinstance(n, (tuple, list)) or isinstance(d, (tuple, list)):
        raise ValueError(f"jnp.fft.{name}: n and d must be scalars, not {n!r} and {d!r}")
    count = operator.index(n)
    if count < 1:
        raise ValueError(f"jnp.fft.{name}: n must be 1 or more, not {count}")
    out_dtype = default_dtype("float*") if dtype is None else requested_dtype(name, dtype)
    if isinstance(d, PYTHON_SCALARS):
        return create_on_device(_create_frequencies, (count, d, out_dtype, non_negative), device, name)
    unscaled = _create_frequencies(count, 1.0, out_dtype, non_negative)
    result = divide(unscaled, as_operand(d, name).astype(out_dtype))
    return result if device is None else device_put(result, device)


def _create_frequencies(count: int, d: ArrayLike, dtype: np.dtype[Any], non_negative: bool) -> Any:
    index = Expr(Iota((count // 2 + 1 if non_negative else count,), 0, np.dtype(np.int32))())
    if not non_negative:
        index = where(index < (count + 1) // 2, index, index - count)
    numerator = Convert(dtype)(index.array)
    return divide(numerator, full_like(numerator, d * count))


@documented(_SHIFT)
def fftshift(x: ArrayLike, axes: int | Sequence[int] | None = None) -> Array:
    """Shift the zero frequency to the centre of the spectrum.

    Example:
        >>> jnp.fft.fftshift(jnp.fft.fftfreq(4))
        Array([-0.5 , -0.25,  0.  ,  0.25], dtype=float32)
    """
    return _shift("fftshift", x, axes, 1)


@documented(_SHIFT)
def ifftshift(x: ArrayLike, axes: int | Sequence[int] | None = None) -> Array:
    """Undo `fftshift`.

    Example:
        >>> jnp.fft.ifftshift(jnp.array([-2, -1, 0, 1]))
        Array([ 0,  1, -2, -1], dtype=int32)
    """
    return _shift("ifftshift", x, axes, -1)


def _shift(name: str, x: ArrayLike, axes: int | Sequence[int] | None, sign: int) -> Any:
    x_type = type_of(x, name)
    axis_list = range(x_type.ndim) if axes is None else (axes,) if isinstance(axes, int) else axes
    dims = canonical_axes(f"jnp.fft.{name}", axis_list, x_type)
    return roll(x, tuple(sign * (x_type.shape[dim] // 2) for dim in dims), dims)


publish(__name__)
