"""Window functions of `M` samples (bartlett, blackman, hamming, hanning, kaiser) and the Bessel function `i0`."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays.arithmetic import absolute, divide, multiply
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, as_operand, astype_weak, compiled_function, type_of
from shardwise.compiler.arrays.promotion import default_dtype
from shardwise.compiler.ops.elementwise.arithmetic import Mul
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.special.approximations import BesselI0e
from shardwise.numpy.families import ARRAYS
from shardwise.typing import ArrayLike

_WINDOW = Family(
    {
        "M": Parameter(
            "the number of samples. It must be static; the result is empty if it is not positive.",
            "TypeError: if {} is not a static integer.",
        )
    },
    returns="The samples, at most 1.",
)


def _constant_window(name: str, M: int, samples: Callable[[int], Any]) -> Any:
    """Compute a window on the host with numpy: `samples(M)`, in the default float dtype."""
    try:
        size = operator.index(M)
    except TypeError:
        raise TypeError(f"{name}: the number of samples M must be a static integer, not {M!r}") from None
    return as_operand(np.asarray(samples(max(size, 0)), default_dtype("float*")))


@documented(_WINDOW)
def bartlett(M: int) -> Array:
    """Return the Bartlett window: a triangle that is 0 at both ends.

    Example:
        >>> jnp.bartlett(5)
        Array([0. , 0.5, 1. , 0.5, 0. ], dtype=float32)
    """
    return _constant_window("bartlett", M, np.bartlett)


@documented(_WINDOW)
def blackman(M: int) -> Array:
    """Return the Blackman window: a sum of three cosine terms that is nearly 0 at both ends.

    Example:
        >>> jnp.blackman(3).round(3)
        Array([-0.,  1., -0.], dtype=float32)
    """
    return _constant_window("blackman", M, np.blackman)


@documented(_WINDOW)
def hamming(M: int) -> Array:
    """Return the Hamming window: a raised cosine that is 0.08 at both ends.

    Example:
        >>> jnp.hamming(3)
        Array([0.08, 1.  , 0.08], dtype=float32)
    """
    return _constant_window("hamming", M, np.hamming)


@documented(_WINDOW)
def hanning(M: int) -> Array:
    """Return the Hann window: a raised cosine that is 0 at both ends.

    Example:
        >>> jnp.hanning(5)
        Array([0. , 0.5, 1. , 0.5, 0. ], dtype=float32)
    """
    return _constant_window("hanning", M, np.hanning)


@documented(_WINDOW)
def kaiser(M: int, beta: ArrayLike) -> Array:
    """Return the Kaiser window: a bell shape made from the Bessel function `i0`.

    Args:
        beta: the shape parameter. The larger it is, the narrower is the window. It may be traced.

    Raises:
        TypeError: if `M` is not a static integer, or `beta` is not a number.
        ValueError: if `beta` is complex.

    Example:
        >>> jnp.kaiser(3, 2.0).round(3)
        Array([0.439, 1.   , 0.439], dtype=float32)
    """
    if type_of(beta, "kaiser").dtype.kind == "c":
        raise ValueError(f"kaiser: beta must be a real number, not {type_of(beta)}")
    semicircle = _constant_window("kaiser", M, lambda size: np.sqrt(np.maximum(1 - np.linspace(-1, 1, size) ** 2, 0)))
    if semicircle.type.size == 1:
        return _constant_window("kaiser", 1, np.ones)
    return _kaiser(semicircle, beta)


@compiled_function
def _kaiser(semicircle: ArrayLike, beta: ArrayLike) -> Any:
    x = as_operand(semicircle)
    beta = astype_weak(as_inexact(beta, "kaiser"), x.type.dtype, False)
    return divide(_bessel_i0(multiply(x, beta)), _bessel_i0(beta))


def _bessel_i0(x: Array) -> Any:
    return Mul()(Exp()(absolute(x)), BesselI0e()(x))


@compiled_function
@documented(ARRAYS, returns="The function of each element.", raises=["ValueError: if `x` is complex."])
def i0(x: ArrayLike) -> Array:
    """Compute the modified Bessel function of the first kind of order 0.

    Args:
        x: real numbers.

    Example:
        >>> round(float(jnp.i0(1.0)), 4)
        1.2661
    """
    x = as_inexact(x, "i0")
    if x.type.dtype.kind == "c":
        raise ValueError(f"i0: needs real numbers, not {type_of(x)}")
    return _bessel_i0(x)
