"""Special functions that follow from their neighbours: Bessel functions and spherical harmonics by their order, the
logarithm of the gamma function by steps of 1.

Each element is on its own, so that an array that is cut stays where it is; loops have one length for all.
"""

import math
import operator
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.api.control import fori_loop
from shardwise.compiler.ir.types import is_integer
from shardwise.compiler.ops import special
from shardwise.compiler.ops.operands import as_inexact, composed, type_of
from shardwise.errors import ConcretizationTypeError

_HUGE = 1e15  # from here on the backward recurrence is scaled down
_STEPS = 8  # by which a complex number is moved to where Stirling's series has all digits
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


def bessel_jn(z: Any, *, v: int, n_iter: int = 50) -> Any:
    """The Bessel functions of the first kind of orders 0 to `v`, along a new first dim.

    Found backwards from order `n_iter` (from one above `v` at least), which must be above |z| by some.

    >>> [f"{y:.4f}" for y in jax.scipy.special.bessel_jn(1.0, v=2)]
    ['0.7652', '0.4401', '0.1149']
    """
    order, start = operator.index(v), operator.index(n_iter)
    if order < 0:
        raise ValueError(f"bessel_jn: the order v must be 0 or more, not {order}")
    return _bessel_jn(z, order=order, start=max(start, order + 20))


@composed
def _bessel_jn(z: Any, *, order: int, start: int) -> Any:
    """Miller's algorithm: any start grows backwards into multiples of J, whose sum J₀ + 2 J₂ + 2 J₄ + … is 1."""
    z = as_inexact(z, "bessel_jn")
    is_zero = z == 0
    x = jnp.where(is_zero, 1, z)
    rows = jnp.arange(order + 1).reshape(-1, *(1,) * z.ndim)

    def step(turn: Any, state: Any) -> Any:
        above, here, total, found = state
        number = start - turn  # `here` is of this order, `above` of the next
        below = 2 * number.astype(here.real.dtype) / x * here - above
        is_even = (number - 1) % 2 == 0
        total = total + jnp.where(is_even, jnp.where(number == 1, 1, 2) * below, 0)
        found = jnp.where(rows == number - 1, below[None], found)
        scale = jnp.where(jnp.abs(below) > _HUGE, 1 / _HUGE, 1).astype(here.dtype)
        return here * scale, below * scale, total * scale, found * scale

    none = jnp.zeros_like(x)
    first = (none, none + 1e-16, none, jnp.zeros((order + 1, *z.shape), z.dtype))
    _, _, total, found = fori_loop(0, start, step, first)
    return jnp.where(is_zero, jnp.where(rows == 0, 1, 0).astype(z.dtype), found / total)


@composed
def loggamma(x: Any) -> Any:
    """The logarithm of the gamma function: of complex numbers continued from the positive ones, with a cut along the
    negative ones; of negative real ones NaN.

    >>> f"{jax.scipy.special.loggamma(5.0):.4f}"
    '3.1781'
    """
    z = as_inexact(x, "loggamma")
    if z.dtype.kind != "c":
        return jnp.where(z < 0, np.nan, special.Lgamma()(z))
    # Below the real axis it is the conjugate of what it is above; left of 1/2 the reflection of what it is right.
    is_under = jnp.signbit(z.imag)
    upper = jnp.where(is_under, z.conj(), z)
    is_left = upper.real < 0.5
    right = _right_loggamma(jnp.where(is_left, 1 - upper, upper))
    turned = upper - jnp.round(upper.real)
    log_sine = -math.log(2) + 1j * math.pi * (0.5 - upper) + jnp.log1p(-jnp.exp(2j * math.pi * turned))
    found = jnp.where(is_left, math.log(math.pi) - log_sine - right, right)
    return jnp.where(is_under, found.conj(), found)


def _right_loggamma(z: Any) -> Any:
    """Right of 1/2: by Stirling's series, some steps further right."""
    passed = jnp.zeros_like(z)
    for number in range(_STEPS):
        passed = passed + jnp.log(z + number)
    far = z + _STEPS
    series = jnp.zeros_like(z)
    for coefficient in reversed(_STIRLING):
        series = series / (far * far) + coefficient
    return (far - 0.5) * jnp.log(far) - far + 0.5 * math.log(2 * math.pi) + series / far - passed


def sph_harm_y(n: Any, m: Any, theta: Any, phi: Any, diff_n: int | None = None, n_max: int | None = None) -> Any:
    """The spherical harmonics of degrees `n` and orders `m`, at the angles `theta` from the pole and `phi` around it.

    `n_max`: the largest degree, which must be known: of traced degrees, give it; larger ones count as it. There is no
    `diff_n`: it must be None. Where |m| is above n, they are 0.

    >>> jax.scipy.special.sph_harm_y(jnp.array([0]), jnp.array([0]), jnp.array([0.5]), jnp.array([0.0])).real.round(3)
    Array([0.282], dtype=float32)
    """
    if diff_n is not None:
        raise NotImplementedError("sph_harm_y: use `jax.grad` along theta and phi, and leave out diff_n")
    for name, part in (("n", n), ("m", m)):
        if not is_integer(type_of(part, "sph_harm_y").dtype):
            raise ValueError(f"sph_harm_y: {name} must be integers, not {type_of(part)}")
    if n_max is None:
        try:
            n_max = int(np.max(np.asarray(n), initial=0))
        except ConcretizationTypeError:
            raise ConcretizationTypeError(
                "sph_harm_y: n is traced, so nobody knows how many degrees there are: give the largest as n_max"
            ) from None
    return _harmonics(n, m, theta, phi, highest=max(0, operator.index(n_max)))


@composed
def _harmonics(n: Any, m: Any, theta: Any, phi: Any, *, highest: int) -> Any:
    """By Legendre's functions, normalized at every step: from order to order along the diagonal, then by degree."""
    n, m, theta, phi = jnp.broadcast_arrays(n, m, theta, phi)
    theta, phi = (as_inexact(angle, "sph_harm_y") for angle in (theta, phi))
    degree, order = jnp.minimum(n, highest), jnp.abs(m)
    cosine, sine = jnp.cos(theta), jnp.sin(theta)
    size = cosine.dtype

    def along_diagonal(number: Any, found: Any) -> Any:
        k = (number + 1).astype(size)
        return jnp.where(number < order, -found * sine * jnp.sqrt((2 * k + 1) / (2 * k)), found)

    start = fori_loop(0, highest, along_diagonal, jnp.full_like(cosine, math.sqrt(0.25 / math.pi)))

    def by_degree(number: Any, pair: Any) -> Any:
        before, here = pair
        goes_on = (number >= order) & (number < degree)
        up, across = (number + 1).astype(size), jnp.where(goes_on, order, 0).astype(size)
        ahead = jnp.sqrt((4 * up * up - 1) / (up * up - across * across))
        last = jnp.maximum(up - 1, 1)
        behind = jnp.sqrt(jnp.maximum((last * last - across * across) / (4 * last * last - 1), 0))
        new = ahead * (cosine * here - behind * before)
        return jnp.where(goes_on, here, before), jnp.where(goes_on, new, here)

    _, found = fori_loop(0, highest, by_degree, (jnp.zeros_like(start), start))
    sign = jnp.where((m < 0) & (order % 2 == 1), -1, 1)
    angle = m.astype(phi.dtype) * phi
    value = jnp.where(order > degree, 0, sign * found)
    return value * (jnp.cos(angle) + 1j * jnp.sin(angle))
