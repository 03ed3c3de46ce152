"""Special functions computed by recurrences: Bessel functions, spherical harmonics, the complex log-gamma function.

They are elementwise and their loops have a static length, so sharded operands keep their sharding.
"""

import math
import operator
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.api.control import fori_loop
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, as_strong, compiled_function, type_of
from shardwise.compiler.dtypes import is_integer
from shardwise.compiler.special import gamma_erf
from shardwise.errors import ConcretizationTypeError
from shardwise.typing import ArrayLike

_RESCALE_ABOVE = 1e15  # the backward recurrence is scaled down where it exceeds this
_STIRLING_SHIFT = 8  # Stirling's series is evaluated at z + 8, where it is accurate to working precision
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


def bessel_jn(z: ArrayLike, *, v: int, n_iter: int = 50) -> Array:
    """Compute the Bessel functions of the first kind of the orders 0 to v.

    It uses Miller's backward recurrence, which starts at the order `n_iter`, but at least 20 above `v`. The starting
    order must exceed |z| by some margin.

    Args:
        z: real or complex numbers.
        v: the highest order.
        n_iter: the order at which the recurrence starts.

    Returns:
        An array of shape `(v + 1, *z.shape)`, with J₀ to Jᵥ along the first axis.

    Raises:
        ValueError: if `v` is negative.
        TypeError: if `z` is not an array or a number, or if `v` or `n_iter` is not an integer.

    Example:
        >>> [f"{y:.4f}" for y in jax.scipy.special.bessel_jn(1.0, v=2)]
        ['0.7652', '0.4401', '0.1149']
    """
    order, start = operator.index(v), operator.index(n_iter)
    if order < 0:
        raise ValueError(f"bessel_jn: the order v must be 0 or more, not {order}")
    return _bessel_jn(z, order=order, start=max(start, order + 20))


@compiled_function
def _bessel_jn(z: ArrayLike, *, order: int, start: int) -> Any:
    """Miller's algorithm: recur backward from arbitrary values, then normalize by J₀ + 2 J₂ + 2 J₄ + … = 1."""
    z = as_inexact(z, "bessel_jn")
    is_zero = z == 0
    x = jnp.where(is_zero, 1, z)
    orders = jnp.arange(order + 1).reshape(-1, *(1,) * z.ndim)

    def step(iteration: Array, state: Any) -> Any:
        above, current, total, values = state
        number = start - iteration  # the order of `current`; that of `above` is one higher
        below = 2 * number.astype(current.real.dtype) / x * current - above
        is_even = (number - 1) % 2 == 0
        total = total + jnp.where(is_even, jnp.where(number == 1, 1, 2) * below, 0)
        values = jnp.where(orders == number - 1, below[None], values)
        scale = jnp.where(jnp.abs(below) > _RESCALE_ABOVE, 1 / _RESCALE_ABOVE, 1).astype(current.dtype)
        return current * scale, below * scale, total * scale, values * scale

    zeros = jnp.zeros_like(x)
    init = (zeros, zeros + 1e-16, zeros, jnp.zeros((order + 1, *z.shape), z.dtype))
    _, _, total, values = fori_loop(0, start, step, init)
    return jnp.where(is_zero, jnp.where(orders == 0, 1, 0).astype(z.dtype), values / total)


@compiled_function
def loggamma(x: ArrayLike) -> Array:
    """Compute the principal branch of the logarithm of the gamma function.

    For complex numbers it is the analytic continuation from the positive numbers, with a branch cut along the negative
    real axis.

    Args:
        x: real or complex numbers.

    Returns:
        log(Γ(x)); NaN for negative real `x`.

    Raises:
        TypeError: if `x` is not an array or a number.

    Example:
        >>> f"{jax.scipy.special.loggamma(5.0):.4f}"
        '3.1781'
    """
    z = as_inexact(x, "loggamma")
    if z.dtype.kind != "c":
        return jnp.where(z < 0, np.nan, gamma_erf.Lgamma()(z))
    z = as_strong(z)
    # loggamma(conj(z)) = conj(loggamma(z)) reduces to the upper half plane, Euler's reflection formula to Re z >= 1/2.
    is_lower = jnp.signbit(z.imag)
    upper = jnp.where(is_lower, z.conj(), z)
    is_left = upper.real < 0.5
    right = _stirling_loggamma(jnp.where(is_left, 1 - upper, upper))
    fraction = upper - jnp.round(upper.real)
    log_sine = -math.log(2) + 1j * math.pi * (0.5 - upper) + jnp.log1p(-jnp.exp(2j * math.pi * fraction))
    value = jnp.where(is_left, math.log(math.pi) - log_sine - right, right)
    return jnp.where(is_lower, value.conj(), value)


def _stirling_loggamma(z: Array) -> Any:
    """Compute loggamma for Re z >= 1/2 by Stirling's series at z + _STIRLING_SHIFT and Γ(z + 1) = z Γ(z)."""
    log_product = jnp.zeros_like(z)
    for index in range(_STIRLING_SHIFT):
        log_product = log_product + jnp.log(z + index)
    shifted = z + _STIRLING_SHIFT
    series = jnp.zeros_like(z)
    for coefficient in reversed(_STIRLING):
        series = series / (shifted * shifted) + coefficient
    leading = (shifted - 0.5) * jnp.log(shifted) - shifted + 0.5 * math.log(2 * math.pi)
    return leading + series / shifted - log_product


def sph_harm_y(
    n: ArrayLike, m: ArrayLike, theta: ArrayLike, phi: ArrayLike, diff_n: int | None = None, n_max: int | None = None
) -> Array:
    """Compute the spherical harmonics Yₙᵐ.

    Args:
        n: the degrees, non-negative integers.
        m: the orders, integers.
        theta: the polar angles, from 0 to π.
        phi: the azimuthal angles, from 0 to 2π.
        diff_n: not supported; must be None.
        n_max: the largest degree, a Python integer. Larger degrees are clipped to it. It is required if `n` is traced.

    Returns:
        The complex values; 0 where |m| exceeds n.

    Raises:
        NotImplementedError: if `diff_n` is passed.
        ValueError: if `n` or `m` are not integers, or if the shapes do not broadcast.
        ConcretizationTypeError: if `n` is traced and `n_max` is not passed.
        TypeError: if an argument is not an array or a number.

    Example:
        >>> zero = jnp.array([0])
        >>> jax.scipy.special.sph_harm_y(zero, zero, jnp.array([0.5]), jnp.array([0.0])).real.round(3)
        Array([0.282], dtype=float32)
    """
    if diff_n is not None:
        raise NotImplementedError("sph_harm_y: diff_n is not supported; differentiate with `jax.grad` instead")
    for name, index in (("n", n), ("m", m)):
        if not is_integer(type_of(index, "sph_harm_y").dtype):
            raise ValueError(f"sph_harm_y: {name} must be integers, not {type_of(index)}")
    if n_max is None:
        try:
            n_max = int(np.max(np.asarray(n), initial=0))
        except ConcretizationTypeError:
            raise ConcretizationTypeError(
                "sph_harm_y: n is traced, so the largest degree is unknown; pass it as n_max"
            ) from None
    return _sph_harm_y(n, m, theta, phi, n_max=max(0, operator.index(n_max)))


@compiled_function
def _sph_harm_y(n: ArrayLike, m: ArrayLike, theta: ArrayLike, phi: ArrayLike, *, n_max: int) -> Any:
    """Recur over normalized associated Legendre functions: first from Pₖᵏ to the next k, then in the degree."""
    n, m, theta, phi = jnp.broadcast_arrays(n, m, theta, phi)
    theta, phi = (as_inexact(angle, "sph_harm_y") for angle in (theta, phi))
    degree, order = jnp.minimum(n, n_max), jnp.abs(m)
    cosine, sine = jnp.cos(theta), jnp.sin(theta)
    dtype = cosine.dtype

    def along_diagonal(number: Array, value: Array) -> Any:
        k = (number + 1).astype(dtype)
        return jnp.where(number < order, -value * sine * jnp.sqrt((2 * k + 1) / (2 * k)), value)

    diagonal = fori_loop(0, n_max, along_diagonal, jnp.full_like(cosine, math.sqrt(0.25 / math.pi)))

    def by_degree(number: Array, pair: Any) -> Any:
        previous, current = pair
        is_active = (number >= order) & (number < degree)
        k, active_order = (number + 1).astype(dtype), jnp.where(is_active, order, 0).astype(dtype)
        current_factor = jnp.sqrt((4 * k * k - 1) / (k * k - active_order * active_order))
        last = jnp.maximum(k - 1, 1)
        previous_factor = jnp.sqrt(jnp.maximum((last * last - active_order * active_order) / (4 * last * last - 1), 0))
        following = current_factor * (cosine * current - previous_factor * previous)
        return jnp.where(is_active, current, previous), jnp.where(is_active, following, current)

    _, legendre = fori_loop(0, n_max, by_degree, (jnp.zeros_like(diagonal), diagonal))
    sign = jnp.where((m < 0) & (order % 2 == 1), -1, 1)
    angle = m.astype(phi.dtype) * phi
    value = jnp.where(order > degree, 0, sign * legendre)
    return value * (jnp.cos(angle) + 1j * jnp.sin(angle))
