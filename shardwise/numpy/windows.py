"""Windows: how much each of `M` samples counts, from 0 or little at the ends to 1 in the middle."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.compiler.ops.elementwise import Mul
from shardwise.compiler.ops.fitted import BesselI0e
from shardwise.compiler.ops.numeric import absolute, divide, multiply
from shardwise.compiler.ops.operands import as_inexact, as_operand, astype_weak, composed, type_of
from shardwise.compiler.ops.promote import default_dtype
from shardwise.compiler.ops.transcendental import Exp


def _window(name: str, M: int, made: Callable[[int], Any]) -> Any:
    """The row that numpy makes."""
    try:
        size = operator.index(M)
    except TypeError:
        raise TypeError(f"{name}: M is the number of samples, an integer that is known now, not {M!r}") from None
    return as_operand(np.asarray(made(max(size, 0)), default_dtype("float*")))


def bartlett(M: int) -> Any:
    """A triangle that is 0 at both ends.

    >>> jnp.bartlett(5)
    Array([0. , 0.5, 1. , 0.5, 0. ], dtype=float32)
    """
    return _window("bartlett", M, np.bartlett)


def blackman(M: int) -> Any:
    """A sum of three cosines that is nearly 0 at both ends.

    >>> jnp.blackman(3).round(3)
    Array([-0.,  1., -0.], dtype=float32)
    """
    return _window("blackman", M, np.blackman)


def hamming(M: int) -> Any:
    """A raised cosine that does not reach 0.

    >>> jnp.hamming(3)
    Array([0.08, 1.  , 0.08], dtype=float32)
    """
    return _window("hamming", M, np.hamming)


def hanning(M: int) -> Any:
    """A raised cosine that is 0 at both ends.

    >>> jnp.hanning(5)
    Array([0. , 0.5, 1. , 0.5, 0. ], dtype=float32)
    """
    return _window("hanning", M, np.hanning)


def kaiser(M: int, beta: Any) -> Any:
    """A bell made of a Bessel function; the larger `beta`, the narrower.

    >>> jnp.kaiser(3, 2.0).round(3)
    Array([0.439, 1.   , 0.439], dtype=float32)
    """
    heights = _window("kaiser", M, lambda size: np.sqrt(np.maximum(1 - np.linspace(-1, 1, size) ** 2, 0)))
    if heights.type.size == 1:
        return _window("kaiser", 1, np.ones)
    return _bell(heights, beta)


@composed
def _bell(heights: Any, beta: Any) -> Any:
    x = as_operand(heights)
    wide = astype_weak(as_inexact(beta, "kaiser"), x.type.dtype, False)
    return divide(_i0(multiply(x, wide)), _i0(wide))


def _i0(x: Any) -> Any:
    return Mul()(Exp()(absolute(x)), BesselI0e()(x))


def i0(x: Any) -> Any:
    """The modified Bessel function of the first kind and order 0.

    >>> round(float(jnp.i0(1.0)), 4)
    1.2661
    """
    return _bessel(x)


@composed
def _bessel(x: Any) -> Any:
    x = as_inexact(x, "i0")
    if x.type.dtype.kind == "c":
        raise ValueError(f"i0: needs real numbers, not {type_of(x)}")
    return _i0(x)
