"""Fourier transforms: numpy.fft, with JAX's dtypes (complex64 of float32).

`norm` says where the sums are shared by their number n: "backward" (as None) by the way back alone, "forward" by the
way forth alone, "ortho" by the root of n either way.
"""

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.api.placement import created, device_put
from shardwise.compiler.ops.elementwise import Compare, Convert, Mul, Select, Sub, like
from shardwise.compiler.ops.fft import as_transformable, transformed
from shardwise.compiler.ops.numeric import conjugate, divide
from shardwise.compiler.ops.operands import PYTHON_SCALARS, as_operand, composed, dims_of, type_of
from shardwise.compiler.ops.promote import canonical_dtype, default_dtype
from shardwise.compiler.ops.shape import Iota, full
from shardwise.compiler.ops.slicing import Pad, along
from shardwise.errors import not_here
from shardwise.numpy.repeating import roll

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]


def fft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The Fourier transform along `axis`, cut off or filled with zeros to `n` numbers.

    >>> jnp.fft.fft(jnp.array([1.0, 2.0, 1.0, 2.0]))
    Array([ 6.+0.j,  0.+0.j, -2.+0.j,  0.+0.j], dtype=complex64)
    """
    return _along_one("fft", "FFT", a, n, axis, norm)


def ifft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse Fourier transform along `axis`, cut off or filled with zeros to `n` numbers.

    >>> jnp.fft.ifft(jnp.array([6.0, 0.0, -2.0, 0.0]))
    Array([1.+0.j, 2.+0.j, 1.+0.j, 2.+0.j], dtype=complex64)
    """
    return _along_one("ifft", "IFFT", a, n, axis, norm)


def rfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The first n // 2 + 1 sums of the Fourier transform of real numbers along `axis`: the others are their conjugates.

    >>> jnp.fft.rfft(jnp.array([1.0, 2.0, 1.0, 2.0]))
    Array([ 6.+0.j,  0.+0.j, -2.+0.j], dtype=complex64)
    """
    return _along_one("rfft", "RFFT", a, n, axis, norm)


def irfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The `n` real numbers along `axis` whose `rfft` is `a`; without `n`, the even number 2 (m - 1) for m sums.

    >>> jnp.fft.irfft(jnp.array([6.0, 0.0, -2.0]))
    Array([1., 2., 1., 2.], dtype=float32)
    """
    return _along_one("irfft", "IRFFT", a, n, axis, norm)


def hfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The Fourier transform, which is real, of `n` numbers along `axis` of which the second half are the conjugates of
    the first, as `a` has it; without `n`, of 2 (m - 1) for m numbers.

    >>> jnp.fft.hfft(jnp.array([1.0, 2.0, 3.0]))
    Array([ 8., -2.,  0., -2.], dtype=float32)
    """
    return _along_one("hfft", "IRFFT", conjugate(a), n, axis, _turned("hfft", norm))


def ihfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The first n // 2 + 1 numbers along `axis` whose `hfft` is `a`, which is real.

    >>> jnp.fft.ihfft(jnp.array([8.0, -2.0, 0.0, -2.0]))
    Array([1.-0.j, 2.-0.j, 3.-0.j], dtype=complex64)
    """
    return conjugate(_along_one("ihfft", "RFFT", a, n, axis, _turned("ihfft", norm)))


def fft2(a: Any, s: Any = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Any:
    """The Fourier transform along two axes.

    >>> jnp.fft.fft2(jnp.eye(2))
    Array([[2.+0.j, 0.+0.j],
           [0.+0.j, 2.+0.j]], dtype=complex64)
    """
    return _along_two("fft2", "FFT", a, s, axes, norm)


def ifft2(a: Any, s: Any = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Any:
    """The inverse Fourier transform along two axes.

    >>> jnp.fft.ifft2(2 * jnp.eye(2))
    Array([[1.+0.j, 0.+0.j],
           [0.+0.j, 1.+0.j]], dtype=complex64)
    """
    return _along_two("ifft2", "IFFT", a, s, axes, norm)


def rfft2(a: Any, s: Any = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Any:
    """The Fourier transform of real numbers along two axes, of which the last keeps n // 2 + 1 sums.

    >>> jnp.fft.rfft2(jnp.ones((2, 4))).shape
    (2, 3)
    """
    return _along_two("rfft2", "RFFT", a, s, axes, norm)


def irfft2(a: Any, s: Any = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Any:
    """The real numbers whose `rfft2` is `a`.

    >>> jnp.fft.irfft2(jnp.fft.rfft2(jnp.ones((1, 2))))
    Array([[1., 1.]], dtype=float32)
    """
    return _along_two("irfft2", "IRFFT", a, s, axes, norm)


def fftn(a: Any, s: Any = None, axes: Sequence[int] | None = None, norm: str | None = None) -> Any:
    """The Fourier transform along `axes` (all where none are given; the last ones where `s` says how many).

    Each axis is transformed on its own, so that an array that is cut along one of them is never gathered: while that
    one is transformed another is cut.

    >>> jnp.fft.fftn(jnp.ones((1, 2, 1)))
    Array([[[2.+0.j],
            [0.+0.j]]], dtype=complex64)
    """
    return _along("fftn", "FFT", a, s, axes, norm)


def ifftn(a: Any, s: Any = None, axes: Sequence[int] | None = None, norm: str | None = None) -> Any:
    """The inverse Fourier transform along `axes`; see `fftn`.

    >>> jnp.fft.ifftn(jnp.array([[2.0, 0.0]]))
    Array([[1.+0.j, 1.+0.j]], dtype=complex64)
    """
    return _along("ifftn", "IFFT", a, s, axes, norm)


def rfftn(a: Any, s: Any = None, axes: Sequence[int] | None = None, norm: str | None = None) -> Any:
    """The Fourier transform of real numbers along `axes`, of which the last keeps n // 2 + 1 sums; see `fftn`.

    >>> jnp.fft.rfftn(jnp.ones((3, 2, 4))).shape
    (3, 2, 3)
    """
    return _along("rfftn", "RFFT", a, s, axes, norm)


def irfftn(a: Any, s: Any = None, axes: Sequence[int] | None = None, norm: str | None = None) -> Any:
    """The real numbers whose `rfftn` is `a`; `s` are their sizes along `axes`.

    >>> jnp.fft.irfftn(jnp.fft.rfftn(jnp.ones((1, 3))), (1, 3))
    Array([[1., 1., 1.]], dtype=float32)
    """
    return _along("irfftn", "IRFFT", a, s, axes, norm)


def _along_one(name: str, kind: str, a: Any, n: int | None, axis: int, norm: str | None) -> Any:
    if isinstance(axis, (tuple, list)):
        raise ValueError(f"jnp.fft.{name}: `axis` is one axis, not {axis!r}; use fftn or its kin for several")
    return _along(name, kind, a, None if n is None else (n,), (axis,), norm)


def _along_two(name: str, kind: str, a: Any, s: Any, axes: Sequence[int], norm: str | None) -> Any:
    if len(axes) != 2:
        raise ValueError(f"jnp.fft.{name}: `axes` are two axes, not {tuple(axes)}")
    return _along(name, kind, a, s, axes, norm)


def _along(name: str, kind: str, a: Any, s: Any, axes: Sequence[int] | None, norm: str | None) -> Any:
    name = f"jnp.fft.{name}"
    sizes = None if s is None else tuple(operator.index(size) for size in s)
    _turned(name, norm)  # an unknown one is an error
    if sizes is not None and axes is not None and len(sizes) != len(axes):
        raise ValueError(f"{name}: `s` has {len(sizes)} sizes for {len(axes)} axes: {sizes} and {tuple(axes)}")
    return _transformed(a, name=name, kind=kind, sizes=sizes, axes=None if axes is None else tuple(axes), norm=norm)


@composed
def _transformed(
    a: Any, *, name: str, kind: str, sizes: tuple[int, ...] | None, axes: tuple[int, ...] | None, norm: str | None
) -> Any:
    given = type_of(a, name)
    if axes is None:
        count = given.ndim if sizes is None else len(sizes)
        axes = tuple(range(-count, 0))
    dims = dims_of(name, axes, given)
    x = as_transformable(a, kind, name)
    lengths = [x.type.shape[dim] for dim in dims]
    if kind == "IRFFT" and lengths:
        lengths[-1] = 2 * (lengths[-1] - 1)
    if sizes is not None:
        lengths = list(sizes)
    if any(length < 1 for length in lengths):
        raise ValueError(f"{name}: needs at least one number along each axis, not {tuple(lengths)} of {given}")
    for dim, length in zip(dims, lengths, strict=True):
        x = _sized(x, dim, length // 2 + 1 if kind == "IRFFT" and dim == dims[-1] else length)
    found = transformed(x, kind, dims, lengths)
    total = float(math.prod(lengths))
    is_back = kind in ("IFFT", "IRFFT")
    scale = {"ortho": math.sqrt(total), "forward": total}.get(norm or "", 1.0)
    return found if scale == 1 else Mul()(found, like(found, scale if is_back else 1 / scale))


def _turned(name: str, norm: str | None) -> str:
    """The `norm` of the transform in the other direction."""
    turned = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}
    if norm not in turned:
        raise ValueError(f"{name}: norm {norm!r} is none of 'backward', 'ortho', 'forward'")
    return turned[norm]


def _sized(x: Any, dim: int, size: int) -> Any:
    """`x` cut off at `size` along `dim`, or longer by zeros."""
    have = x.type.shape[dim]
    if size <= have:
        return along(x, dim, 0, size)
    zeros = [0] * x.type.ndim
    high = [size - have if d == dim else 0 for d in range(x.type.ndim)]
    return Pad(tuple(zeros), tuple(high), tuple(zeros))(x, full((), 0, x.type.dtype))


def fftfreq(n: int, d: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies of the sums that `fft` of `n` numbers at distances `d` gives: from 0 up, then the negative ones.

    >>> jnp.fft.fftfreq(4, 0.5)
    Array([ 0. ,  0.5, -1. , -0.5], dtype=float32)
    """
    return _frequencies("fftfreq", n, d, dtype, device, False)


def rfftfreq(n: int, d: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies of the sums that `rfft` of `n` numbers at distances `d` gives.

    >>> jnp.fft.rfftfreq(4, 0.5)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    return _frequencies("rfftfreq", n, d, dtype, device, True)


def _frequencies(name: str, n: int, d: Any, dtype: Any, device: Any, half: bool) -> Any:
    if isinstance(n, (tuple, list)) or isinstance(d, (tuple, list)):
        raise ValueError(f"jnp.fft.{name}: n and d are one number each, not {n!r} and {d!r}")
    count = operator.index(n)
    if count < 1:
        raise ValueError(f"jnp.fft.{name}: n must be 1 or more, not {count}")
    wanted = default_dtype("float*") if dtype is None else canonical_dtype(dtype)
    if isinstance(d, PYTHON_SCALARS):
        return created(_counted, (count, d, wanted, half), device, name)
    found = divide(_counted(count, 1.0, wanted, half), as_operand(d, name).astype(wanted))
    return found if device is None else device_put(found, device)


def _counted(count: int, d: Any, dtype: Any, half: bool) -> Any:
    place = Iota((count // 2 + 1 if half else count,), 0, np.dtype(np.int32))()
    if not half:
        place = Select()(Compare("LT")(place, like(place, (count + 1) // 2)), place, Sub()(place, like(place, count)))
    wide = Convert(dtype)(place)
    return divide(wide, like(wide, d * count))


def fftshift(x: Any, axes: int | Sequence[int] | None = None) -> Any:
    """The elements along `axes` (all where none are given) turned so that frequency 0 comes to the middle.

    >>> jnp.fft.fftshift(jnp.fft.fftfreq(4))
    Array([-0.5 , -0.25,  0.  ,  0.25], dtype=float32)
    """
    return _shifted("fftshift", x, axes, 1)


def ifftshift(x: Any, axes: int | Sequence[int] | None = None) -> Any:
    """The elements along `axes` turned back from `fftshift`.

    >>> jnp.fft.ifftshift(jnp.array([-2, -1, 0, 1]))
    Array([ 0,  1, -2, -1], dtype=int32)
    """
    return _shifted("ifftshift", x, axes, -1)


def _shifted(name: str, x: Any, axes: int | Sequence[int] | None, sign: int) -> Any:
    kind = type_of(x, name)
    listed = range(kind.ndim) if axes is None else (axes,) if isinstance(axes, int) else axes
    dims = dims_of(f"jnp.fft.{name}", listed, kind)
    return roll(x, tuple(sign * (kind.shape[dim] // 2) for dim in dims), dims)


def __getattr__(name: str) -> Any:
    raise not_here("shardwise.numpy.fft", name, __all__)
