"""Special functions computed by Chebyshev approximations.

These are Bessel functions, Dawson's integral, the scaled error function, the normal quantile, the exponential, sine,
cosine and Fresnel integrals, and the dilogarithm.

The domain is split into intervals on which the function, possibly divided by a simple factor, is smooth. On each
interval a Chebyshev series is fitted to scipy's values once, when the first program needs it. Operands outside an
interval are clamped to it, so that no branch overflows or produces NaN where it is not selected.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, final

import numpy as np

from shardwise.base.lazy import lazy_module
from shardwise.compiler.ir.op import NumpyArray
from shardwise.compiler.ir.record import record
from shardwise.compiler.ops.elementwise.complex_parts import absolute, sign
from shardwise.compiler.ops.elementwise.expr import Expr, apply, unary_function, where
from shardwise.compiler.ops.elementwise.formula import maximum, minimum
from shardwise.compiler.ops.elementwise.powers import sqrt
from shardwise.compiler.ops.elementwise.rounding import floor
from shardwise.compiler.ops.elementwise.transcendental import cos, exp, log, log1p, sin
from shardwise.compiler.special.gamma_erf import CompositeFunction, ErfInv, SpecialFunction

scipy = lazy_module("scipy")  # see `gamma_erf`

erf_inv = unary_function(ErfInv)

Curve = Callable[[NumpyArray], NumpyArray]


@lru_cache(maxsize=256)
def _fit(curve: Curve, low: float, high: float, degree: int) -> NumpyArray:
    """Return the Chebyshev coefficients of `curve` on [low, high], by interpolation at the Chebyshev nodes."""
    count = degree + 1
    # The angles are integer multiples of pi / (2 * count). Reduce them modulo 2 pi first, to keep full precision.
    multiples = np.outer(np.arange(count), 2 * np.arange(count) + 1) % (4 * count)
    cosines = np.cos(multiples * (np.pi / (2 * count)))
    values = curve(low + (cosines[1] + 1) * ((high - low) / 2))
    coefficients = np.array([math.fsum(row) for row in cosines * values]) * (2 / count)
    coefficients[0] /= 2
    return coefficients


def _chebyshev(x: Expr, curve: Curve, low: float, high: float, degree: int) -> Expr:
    """Approximate `curve` at `x` in [low, high] by Clenshaw's recurrence. Negligible coefficients are dropped."""
    coefficients = _fit(curve, low, high, degree)
    significant = np.abs(coefficients) > np.abs(coefficients).max() * np.finfo(x.dtype).eps / 8
    last = int(np.flatnonzero(significant)[-1])
    twice = (x - low) * (4 / (high - low)) - 2
    b1, b2 = x.full_like(0), x.full_like(0)
    for coefficient in coefficients[last:0:-1]:
        b1, b2 = twice * b1 - b2 + float(coefficient), b1
    return twice * b1 / 2 - b2 + float(coefficients[0])


def _at_most(x: Expr, number: float) -> Expr:
    return minimum(x, x.full_like(number))


def _at_least(x: Expr, number: float) -> Expr:
    return maximum(x, x.full_like(number))


def _odd(x: Expr, at_magnitude: Expr) -> Expr:
    """Return the value of an odd function at `x`, given its value at `|x|`."""
    return where(x < 0, -at_magnitude, at_magnitude)


def _propagate_nan(x: Expr, value: Expr) -> Expr:
    """Return `value`, and NaN where `x` is NaN, because clamping and selection lose NaN."""
    return where(x != x, x, value)


@final
@record
class BesselI0e(CompositeFunction):
    """The exponentially scaled modified Bessel function of order 0."""

    name = "bessel_i0e"

    def formula(self, *operands: Expr) -> Expr:
        (x,) = operands
        y = absolute(x)
        near = _chebyshev(_at_most(y, 8), scipy.special.i0e, 0, 8, 30)
        inverse = 1 / _at_least(y, 8)
        far = _chebyshev(inverse, _i0e_far, 0, 1 / 8, 24) * sqrt(inverse)
        return _propagate_nan(x, where(y <= 8, near, far))

    def numpy_function(self, x: NumpyArray) -> Any:
        return scipy.special.i0e(x)

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * (apply(BesselI1e(), x) - sign(x) * y)


def _i0e_far(u: NumpyArray) -> NumpyArray:
    return np.asarray(scipy.special.i0e(1 / u) / np.sqrt(u))


@final
@record
class BesselI1e(SpecialFunction):
    """The exponentially scaled modified Bessel function of order 1."""

    name = hlo_name = "bessel_i1e"

    def numpy_function(self, x: NumpyArray) -> Any:
        return scipy.special.i1e(x)

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        is_zero = x == 0
        per_x = where(is_zero, 0.5, y / where(is_zero, 1, x))
        return dx * (apply(BesselI0e(), x) - sign(x) * y - per_x)


@final
@record
class Dawsn(CompositeFunction):
    """Dawson's integral: exp(-x²) times the integral of exp(t²) from 0 to x."""

    name = "dawsn"

    def formula(self, *operands: Expr) -> Expr:
        (x,) = operands
        y = absolute(x)
        small = _at_most(y, 5)
        near = _chebyshev(small * small, _dawsn_near, 0, 25, 40) * small
        inverse = 1 / _at_least(y, 5)
        far = _chebyshev(inverse * inverse, _dawsn_far, 0, 1 / 25, 20) * inverse
        return _propagate_nan(x, _odd(x, where(y <= 5, near, far)))

    def numpy_function(self, x: NumpyArray) -> Any:
        return scipy.special.dawsn(x)

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * (1 - 2 * (x * y))


def _dawsn_near(u: NumpyArray) -> NumpyArray:
    return np.asarray(scipy.special.dawsn(np.sqrt(u)) / np.sqrt(u))


def _dawsn_far(u: NumpyArray) -> NumpyArray:
    return np.asarray(scipy.special.dawsn(1 / np.sqrt(u)) / np.sqrt(u))


@final
@record
class Erfcx(CompositeFunction):
    """The scaled complementary error function, exp(x²) erfc(x)."""

    name = "erfcx"

    def formula(self, *operands: Expr) -> Expr:
        (x,) = operands
        y = absolute(x)
        mapped = 4 / (4 + y)  # from 1 at 0 to 0 at infinity
        above = _chebyshev(mapped, _erfcx_curve, 0, 1, 34) / (1 + 2 * y)
        # Negative x by reflection. Split exp(x²) into two factors, because the rounding error of x² is too large.
        high = _at_most(y, 30.0)
        coarse = _round_to_sixteenth(high)
        square = exp(coarse * coarse) * exp((high - coarse) * (high + coarse))
        return _propagate_nan(x, where(x >= 0, above, 2 * square - above))

    def numpy_function(self, x: NumpyArray) -> Any:
        return scipy.special.erfcx(x)

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * (2 * x * y - 2 / math.sqrt(math.pi))


def _round_to_sixteenth(x: Expr) -> Expr:
    """Round down to a multiple of 1/16, whose square is exact."""
    return floor(x * 16) / 16


def _erfcx_curve(t: NumpyArray) -> NumpyArray:
    x = 4 / t - 4
    return np.asarray(scipy.special.erfcx(x) * (1 + 2 * x))


@final
@record
class Ndtri(CompositeFunction):
    """The quantile function of the standard normal distribution."""

    name = "ndtri"

    def formula(self, *operands: Expr) -> Expr:
        (p,) = operands
        middle = math.sqrt(2) * erf_inv(2 * p - 1)
        tail_probability = minimum(p, 1 - p)
        is_inside = tail_probability > 0
        depth = sqrt(-2 * log(where(is_inside, _at_most(tail_probability, 0.1), p.full_like(0.1))))
        near, far = _at_most(depth, 6), _at_least(depth, 6)
        tail = where(
            depth <= 6,
            near - _chebyshev(near, _ndtri_tail, 2, 6, 30),
            far - _chebyshev(1 / far, _ndtri_far, 1 / 39, 1 / 6, 26),
        )
        tail = where(p < 0.5, -tail, tail)
        return _propagate_nan(p, where((tail_probability >= 0.1) | ~is_inside, middle, tail))

    def numpy_function(self, p: NumpyArray) -> Any:
        return scipy.special.ndtri(p)

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * (math.sqrt(2 * math.pi) * exp(y * y * 0.5))


def _ndtri_tail(depth: NumpyArray) -> NumpyArray:
    return np.asarray(depth + scipy.special.ndtri_exp(-depth * depth / 2))


def _ndtri_far(inverse: NumpyArray) -> NumpyArray:
    return _ndtri_tail(1 / inverse)


@final
@record
class Expi(CompositeFunction):
    """The exponential integral Ei: the principal value of the integral of exp(t) / t from minus infinity to x."""

    name = "expi"

    def formula(self, *operands: Expr) -> Expr:
        (x,) = operands
        return _propagate_nan(x, where(x < 0, -_exp1(_at_least(-x, 0)), _expi_above(_at_least(x, 0))))

    def numpy_function(self, x: NumpyArray) -> Any:
        return scipy.special.expi(x)

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * exp(x) / x


@final
@record
class Exp1(CompositeFunction):
    """The exponential integral E1: the integral of exp(-t) / t from x to infinity; NaN for negative x."""

    name = "exp1"

    def formula(self, *operands: Expr) -> Expr:
        (x,) = operands
        return where(x >= 0, _exp1(_at_least(x, 0)), x.full_like(math.nan))

    def numpy_function(self, x: NumpyArray) -> Any:
        return np.where(x >= 0, scipy.special.exp1(np.where(x >= 0, x, 1)), np.nan)

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * exp(-x) / -x


def _exp1(x: Expr) -> Expr:
    near, far = _at_most(x, 2), _at_least(x, 2)
    small = _chebyshev(near, _exp1_near, 0, 2, 22) - log(near)
    return where(x <= 2, small, exp(-far) / far * _chebyshev(1 / far, _exp1_far, 0, 0.5, 44))


def _exp1_near(x: NumpyArray) -> NumpyArray:
    return np.asarray(scipy.special.exp1(x) + np.log(x))


def _exp1_far(u: NumpyArray) -> NumpyArray:
    x = 1 / u
    # Asymptotic series in 1/x where exp overflows.
    series = 1 - u * (1 - 2 * u * (1 - 3 * u * (1 - 4 * u * (1 - 5 * u))))
    near = np.minimum(x, 500)
    return np.asarray(np.where(x < 500, scipy.special.exp1(near) * np.exp(near) * x, series))


def _expi_above(x: Expr) -> Expr:
    near, middle = _at_most(x, 6), minimum(_at_least(x, 6), x.full_like(24))
    far = _at_most(_at_least(x, 24), 1000)  # where exp is infinite
    small = _chebyshev(near, _expi_near, 0, 6, 30) + log(near)
    between = exp(middle) / middle * _chebyshev(1 / middle, _expi_far, 1 / 24, 1 / 6, 34)
    return where(x <= 6, small, where(x <= 24, between, exp(far) / far * _chebyshev(1 / far, _expi_far, 0, 1 / 24, 24)))


def _expi_near(x: NumpyArray) -> NumpyArray:
    return np.asarray(scipy.special.expi(x) - np.log(x))


def _expi_far(u: NumpyArray) -> NumpyArray:
    x = 1 / u
    series = 1 + u * (1 + 2 * u * (1 + 3 * u * (1 + 4 * u * (1 + 5 * u))))
    near = np.minimum(x, 500)
    return np.asarray(np.where(x < 500, scipy.special.expi(near) * np.exp(-near) * x, series))


@final
@record
class SineIntegral(CompositeFunction):
    """The sine integral: the integral of sin(t) / t from 0 to x."""

    name = "sine_integral"

    def formula(self, *operands: Expr) -> Expr:
        (x,) = operands
        y = absolute(x)
        small, f, g = _auxiliary_functions(y)
        near = small * _chebyshev(small * small, _si_near, 0, 36, 30)
        far = math.pi / 2 - f * cos(y) - g * sin(y)
        far = where(y == math.inf, y.full_like(math.pi / 2), far)
        return _propagate_nan(x, _odd(x, where(y <= 6, near, far)))

    def numpy_function(self, x: NumpyArray) -> Any:
        return scipy.special.sici(x)[0]

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        is_zero = x == 0
        at = where(is_zero, 1, x)
        return dx * where(is_zero, at, sin(at) / at)


@final
@record
class CosineIntegral(CompositeFunction):
    """The cosine integral: Euler's constant + log |x| + the integral of (cos(t) - 1) / t from 0 to |x|.

    At -∞, it is NaN, as in SciPy and JAX.
    """

    name = "cosine_integral"

    def formula(self, *operands: Expr) -> Expr:
        (x,) = operands
        y = absolute(x)
        small, f, g = _auxiliary_functions(y)
        near = log(small) + _chebyshev(small * small, _ci_near, 0, 36, 30)
        far = where(y == math.inf, y.full_like(0), f * sin(y) - g * cos(y))
        return _propagate_nan(x, where(x == -math.inf, x.full_like(math.nan), where(y <= 6, near, far)))

    def numpy_function(self, x: NumpyArray) -> Any:
        return scipy.special.sici(x)[1]

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * (cos(x) / x)


def _auxiliary_functions(y: Expr) -> tuple[Expr, Expr, Expr]:
    """Return `y` clamped to 6, and the auxiliary functions f and g (DLMF 6.2.17) of `y` clamped from below."""
    inverse = 1 / _at_least(y, 6)
    square = inverse * inverse
    return (
        _at_most(y, 6),
        _chebyshev(square, _f_far, 0, 1 / 36, 30) * inverse,
        _chebyshev(square, _g_far, 0, 1 / 36, 30) * square,
    )


def _si_near(u: NumpyArray) -> NumpyArray:
    x = np.sqrt(u)
    return np.asarray(scipy.special.sici(x)[0] / x)


def _ci_near(u: NumpyArray) -> NumpyArray:
    x = np.sqrt(u)
    return np.asarray(scipy.special.sici(x)[1] - np.log(x))


def _f_far(u: NumpyArray) -> NumpyArray:
    x = np.minimum(1 / np.sqrt(u), 60)
    sine, cosine = scipy.special.sici(x)
    return np.where(u > 1 / 3600, x * (cosine * np.sin(x) + (np.pi / 2 - sine) * np.cos(x)), _alternating(u, 0))


def _g_far(u: NumpyArray) -> NumpyArray:
    x = np.minimum(1 / np.sqrt(u), 60)
    sine, cosine = scipy.special.sici(x)
    return np.where(u > 1 / 3600, x * x * ((np.pi / 2 - sine) * np.sin(x) - cosine * np.cos(x)), _alternating(u, 1))


def _alternating(u: NumpyArray, first: int) -> NumpyArray:
    """Return the asymptotic series, the sum of (2k + first)! (-u)^k, for small `u`."""
    return np.asarray(sum(math.factorial(2 * k + first) * (-np.minimum(u, 1 / 3600)) ** k for k in range(11)))


@final
@record
class Fresnel(CompositeFunction):
    """The Fresnel integral of sin(πt²/2) from 0 to x; with `cosine`, of cos(πt²/2)."""

    name = "fresnel"
    cosine: bool

    def formula(self, *operands: Expr) -> Expr:
        (x,) = operands
        y = absolute(x)
        small = _at_most(y, _FRESNEL)
        near = small * _chebyshev(
            small * small * small * small, _c_near if self.cosine else _s_near, 0, _FRESNEL**4, 34
        )
        if not self.cosine:
            near = near * small * small
        large = _at_most(_at_least(y, _FRESNEL), 1e18)
        inverse = 1 / (large * large)
        f, g = (_chebyshev(inverse * inverse, curve, 0, _FRESNEL**-4, 26) for curve in (_fresnel_f, _fresnel_g))
        f, g = f / (math.pi * large), g * inverse / (math.pi**2 * large)
        # x² modulo 4, the period: the integer part's square is exact, the rest is much smaller.
        integer = floor(large)
        odd = integer - 2 * floor(integer / 2)
        square = odd * odd + (large - integer) * (large + integer)
        angle = (square - 4 * floor(square / 4)) * (math.pi / 2)
        wave = f * sin(angle) - g * cos(angle) if self.cosine else -f * cos(angle) - g * sin(angle)
        return _propagate_nan(x, _odd(x, where(y <= _FRESNEL, near, wave + 0.5)))

    def numpy_function(self, x: NumpyArray) -> Any:
        return scipy.special.fresnel(x)[int(self.cosine)]

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        angle = x * x * (math.pi / 2)
        return dx * (cos(angle) if self.cosine else sin(angle))


_FRESNEL = 2.0  # above this, the auxiliary functions are used


def _c_near(u: NumpyArray) -> NumpyArray:
    x = u**0.25
    return np.asarray(scipy.special.fresnel(x)[1] / x)


def _s_near(u: NumpyArray) -> NumpyArray:
    x = u**0.25
    return np.where(x < 1e-3, np.pi / 6, scipy.special.fresnel(np.maximum(x, 1e-3))[0] / np.maximum(x, 1e-3) ** 3)


def _fresnel_parts(u: NumpyArray) -> tuple[NumpyArray, NumpyArray, NumpyArray, NumpyArray, NumpyArray]:
    x = np.minimum(u**-0.25, 20)
    angle = np.pi * x * x / 2
    sine, cosine = scipy.special.fresnel(x)
    return x, np.sin(angle), np.cos(angle), cosine - 0.5, 0.5 - sine


def _fresnel_f(u: NumpyArray) -> NumpyArray:
    x, sine, cosine, c, s = _fresnel_parts(u)
    v = np.minimum(u, 20.0**-4) / np.pi**2
    series = 1 - 3 * v * (1 - 35 * v * (1 - 99 * v * (1 - 195 * v)))
    return np.where(u > 20.0**-4, np.pi * x * (c * sine + s * cosine), series)


def _fresnel_g(u: NumpyArray) -> NumpyArray:
    x, sine, cosine, c, s = _fresnel_parts(u)
    v = np.minimum(u, 20.0**-4) / np.pi**2
    series = 1 - 15 * v * (1 - 63 * v * (1 - 143 * v * (1 - 255 * v)))
    return np.where(u > 20.0**-4, np.pi**2 * x**3 * (s * sine - c * cosine), series)


@final
@record
class Spence(CompositeFunction):
    """Spence's function, the dilogarithm of 1 - x: the integral of log(t) / (1 - t) from 1 to x; NaN below 0."""

    name = "spence"

    def formula(self, *operands: Expr) -> Expr:
        (x,) = operands
        is_large = x > 1.5
        y = where(is_large, 1 / _at_least(x, 1.5), x)
        is_small = y < 0.5
        z = maximum(where(is_small, 1 - y, y), x.full_like(0.5))
        middle = _chebyshev(z, scipy.special.spence, 0.5, 1.5, 40)
        below = minimum(y, y.full_like(0.5))
        # log(y) log(1 - y) tends to 0 as y does.
        product = where(below > 0, log(_at_least(below, _TINY)) * log1p(-below), y.full_like(0))
        value = where(is_small, math.pi**2 / 6 - product - middle, middle)
        log_x = log(_at_least(x, 1.5))
        value = where(is_large, -log_x * log_x / 2 - value, value)
        return where(x >= 0, value, x.full_like(math.nan))

    def numpy_function(self, x: NumpyArray) -> Any:
        return np.where(x == np.inf, -np.inf, scipy.special.spence(x))

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        away = x - 1
        is_one = away == 0
        at = where(is_one, 1, away)
        return dx * where(is_one, -1, -(log1p(at) / at))


_TINY = 1e-37
