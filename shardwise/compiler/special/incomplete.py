"""The regularized incomplete gamma and beta functions and the exponential integral expn.

Each is a prefactor, written to avoid cancellation for large operands, times a series or a continued fraction that is
evaluated until every element of one device's shard has converged. If both operands of the gamma functions are large and
close to each other, these converge slowly, and Temme's uniform expansion is used instead (DLMF 8.12).
"""

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, final

import numpy as np

from shardwise.base.lazy import lazy_module
from shardwise.compiler.ir.op import NumpyArray
from shardwise.compiler.ir.record import record
from shardwise.compiler.ops.elementwise.complex_parts import absolute
from shardwise.compiler.ops.elementwise.expr import Expr, apply, unary_function, where
from shardwise.compiler.ops.elementwise.formula import maximum, minimum, polynomial
from shardwise.compiler.ops.elementwise.powers import sqrt
from shardwise.compiler.ops.elementwise.rounding import floor
from shardwise.compiler.ops.elementwise.transcendental import exp, log, log1p
from shardwise.compiler.special.gamma_erf import CompositeFunction, Digamma, Erfc, Lgamma, MultiOperandFunction
from shardwise.compiler.special.while_any import while_any

scipy = lazy_module("scipy")  # see `gamma_erf`

lgamma, digamma, erfc = unary_function(Lgamma), unary_function(Digamma), unary_function(Erfc)

_LARGE = 10.0  # above this, Stirling's series has full precision
_UNIFORM = 100.0  # above this, Temme's expansion has full precision, if the relative difference is below `_CLOSE`
_CLOSE = 0.3
_FAR = 1e30  # above this, the upper function is zero
_MAX_ITERATIONS = 1000  # more than any convergent element needs


class IncompleteGamma(CompositeFunction, MultiOperandFunction):
    """A function of a shape parameter `a` and a bound `x`."""

    def derivative_along_x(self, a: Expr, x: Expr) -> Expr:
        """Return the density of the gamma distribution."""
        return exp((a - 1) * log(x) - x - lgamma(a))


@final
@record
class Igamma(IncompleteGamma):
    """The regularized lower incomplete gamma function P(a, x)."""

    name = "igamma"

    def partial_derivative(self, number: int, *operands: Expr) -> Expr:
        return self.derivative_along_x(*operands) if number else apply(IgammaGradA(), *operands)

    def formula(self, *operands: Expr) -> Expr:
        return _regularized_gamma(*operands)[0]

    def numpy_function(self, a: NumpyArray, x: NumpyArray) -> Any:
        return np.minimum(scipy.special.gammainc(a, x), 1)


@final
@record
class Igammac(IncompleteGamma):
    """The regularized upper incomplete gamma function Q(a, x)."""

    name = "igammac"

    def partial_derivative(self, number: int, *operands: Expr) -> Expr:
        return -(self.derivative_along_x(*operands) if number else apply(IgammaGradA(), *operands))

    def formula(self, *operands: Expr) -> Expr:
        return _regularized_gamma(*operands)[1]

    def numpy_function(self, a: NumpyArray, x: NumpyArray) -> Any:
        return scipy.special.gammaincc(a, x)


@final
@record
class IgammaGradA(IncompleteGamma):
    """The derivative of `igamma` along `a`."""

    name = "igamma_grad_a"
    nondifferentiable = (0, 1)
    nondifferentiable_reason = "igamma can be differentiated along a only once"

    def formula(self, *operands: Expr) -> Expr:
        a, x = operands
        by_power, power = _igamma_derivative(a, x)
        derivative = where(x == 0, 0, power * by_power)
        return where((x < 0) | ~(a > 0) | (x != x), math.nan, where((x == math.inf) | (a == math.inf), 0, derivative))

    def numpy_function(self, a: NumpyArray, x: NumpyArray) -> Any:
        """Differentiate the series term by term. The absolute error is small; relative errors in the tails are not."""
        wide_a, wide_x = (np.asarray(y, np.longdouble) for y in np.broadcast_arrays(a, x))
        inside = (wide_a > 0) & (wide_x > 0) & (wide_x < 1e4) & (wide_a < 1e4)
        b, y = np.where(inside, wide_a, 1), np.where(inside, wide_x, 1)
        term = np.exp(b * np.log(y) - y - scipy.special.gammaln(np.asarray(b + 1, np.float64)))
        rate = np.log(y) - scipy.special.digamma(np.asarray(b + 1, np.float64))
        total = term * rate
        for n in range(1, 20_000):
            term, rate = term * y / (b + n), rate - 1 / (b + n)
            total = total + term * rate
            if np.all(np.abs(term * rate) < 1e-22) and np.all(b + n > y):
                break
        is_nan = (wide_x < 0) | ~(wide_a > 0) | np.isnan(wide_x)
        return np.where(is_nan, np.nan, np.where(inside, total, 0)).astype(np.float64)


@final
@record
class RandomGammaGrad(IncompleteGamma):
    """The implicit reparameterization gradient dx/da of a gamma sample `x` at constant P(a, x)."""

    name = "random_gamma_grad"
    nondifferentiable = (0, 1)
    nondifferentiable_reason = "a gamma sample can be differentiated only once"

    def formula(self, *operands: Expr) -> Expr:
        a, x = operands
        by_power, _ = _igamma_derivative(a, x)
        derivative = where(x == 0, 0, -by_power * x / a)
        return where((x < 0) | ~(a > 0) | (x != x), math.nan, derivative)

    def numpy_function(self, a: NumpyArray, x: NumpyArray) -> Any:
        density = np.exp((a - 1) * np.log(x) - x - scipy.special.gammaln(a))
        return np.where(x == 0, 0, -IgammaGradA().numpy_function(a, x) / density)


@final
@record
class Betainc(CompositeFunction, MultiOperandFunction):
    """The regularized incomplete beta function I_x(a, b)."""

    name = "betainc"
    arity = 3
    nondifferentiable = (0, 1)
    nondifferentiable_reason = (
        "not differentiable with respect to a and b; differentiate along x, or use stop_gradient on a and b"
    )

    def partial_derivative(self, number: int, *operands: Expr) -> Expr:
        a, b, x = operands
        return exp((a - 1) * log(x) + (b - 1) * log1p(-x) - log_beta(a, b))

    def formula(self, *operands: Expr) -> Expr:
        a, b, x = operands
        inside = (a > 0) & (b > 0) & (x > 0) & (x < 1) & (a < math.inf) & (b < math.inf)
        a0, b0, x0 = where(inside, a, 1), where(inside, b, 1), where(inside, x, 0.5)
        # The continued fraction converges below the mean; above it, use 1 - I_(1-x)(b, a).
        below = x0 < (a0 + 1) / (a0 + b0 + 2)
        y0 = 1 - x0
        p, q, low, high = (where(below, first, second) for first, second in ((a0, b0), (b0, a0), (x0, y0), (y0, x0)))
        result = _beta_prefactor(p, q, low, high) / _beta_fraction(p, q, low)
        result = where(below, result, 1 - result)
        # The limits at x = 0 and x = 1, and where a parameter is 0 or infinite, so that all mass is at one end.
        at_zero = (a == 0) | (b == math.inf)
        at_one = (b == 0) | (a == math.inf)
        result = where(at_zero & (x > 0), 1, result)
        result = where((at_one & (x < 1)) | (x == 0), 0, result)
        result = where(x == 1, 1, result)
        is_nan = (a < 0) | (b < 0) | (x < 0) | (x > 1) | (a != a) | (b != b) | (x != x) | (at_zero & at_one)
        return where(is_nan, math.nan, result)

    def numpy_function(self, a: NumpyArray, b: NumpyArray, x: NumpyArray) -> Any:
        return scipy.special.betainc(a, b, x)


@final
@record
class Expn(CompositeFunction, MultiOperandFunction):
    """The exponential integral E_n(x), for a nonnegative integer order: the integral of exp(-xt) / t^n from t = 1."""

    name = "expn"
    nondifferentiable = (0,)
    nondifferentiable_reason = (
        "not differentiable with respect to the order n; differentiate along x, or use stop_gradient(n)"
    )

    def partial_derivative(self, number: int, *operands: Expr) -> Expr:
        """Return minus the integral of order n - 1; for order 0, minus the integral of t exp(-xt)."""
        n, x = operands
        before = apply(self, maximum(n - 1, 0), x)
        return where(n == 0, -exp(-x) * (1 + x) / (x * x), -before)

    def formula(self, *operands: Expr) -> Expr:
        n, x = operands
        is_order = (n >= 0) & (n == floor(n)) & (n < math.inf)
        inside = is_order & (n > 0) & (x > 0) & (x < math.inf)
        order, y = where(inside, n, 1), where(inside, x, 1)
        large = y > 1
        low = _expn_series(where(large, 1, order), where(large, 0.5, y))
        far = minimum(where(large, y, 2), 1e30)
        # E_n(x) = x^(n-1) Γ(1-n, x).
        fraction, _ = _gamma_fraction(where(large, 1 - order, 0), far, False)
        value = where(large, exp(-far) * fraction, low)
        value = where(n == 0, exp(-x) / x, value)
        value = where((x == 0) & (n > 1), 1 / (n - 1), where((x == 0) & (n <= 1), math.inf, value))
        value = where(x == math.inf, 0, value)
        return where(is_order & (x >= 0), value, math.nan)

    def numpy_function(self, n: NumpyArray, x: NumpyArray) -> Any:
        is_order = (n >= 0) & (n == np.floor(n)) & np.isfinite(n)
        return np.where(is_order, scipy.special.expn(np.where(is_order, n, 1), x), np.nan)


def _expn_series(n: Expr, x: Expr) -> Expr:
    """For small `x`: (-x)^(n-1)/(n-1)! (ψ(n) - log x) minus the sum of (-x)^m/m!(m-n+1) over all other m."""
    epsilon = _epsilon(x)

    def condition(m: Expr, power: Expr, total: Expr, change: Expr, edge: Expr, n: Expr, x: Expr) -> Expr:
        return ((absolute(change) > epsilon * absolute(total)) | (m < n)) & (m < _MAX_ITERATIONS)

    def body(m: Expr, power: Expr, total: Expr, change: Expr, edge: Expr, n: Expr, x: Expr) -> list[Expr]:
        m = m + 1
        power = -power * x / m
        at_edge = m == n - 1
        change = where(at_edge, 0, power / where(at_edge, 1, m - n + 1))
        return [m, power, total - change, change, where(at_edge, power, edge), n, x]

    one, zero = x.full_like(1), x.full_like(0)
    first = where(n == 1, 0, -1 / where(n == 1, 1, 1 - n))
    start = [zero, one, first, one, where(n == 1, 1, zero), n, x]
    _, _, total, _, edge, _, _ = while_any("series", start, condition, body)
    return total + edge * (digamma(n) - log(x))


def log_beta(a: Expr, b: Expr) -> Expr:
    """Return the logarithm of the beta function of positive numbers, without cancellation for large numbers."""
    # Select by comparison, because min and max split the derivative at a tie.
    less, more = where(a < b, a, b), where(a < b, b, a)
    large = where(more < _LARGE, _LARGE, more)
    ratio = (large - 0.5) * log1p(less / large) + less * (log(less + large) - 1)
    with_series = lgamma(less) - ratio + _stirling(large) - _stirling(less + large)
    return where(more < _LARGE, lgamma(less) + lgamma(more) - lgamma(less + more), with_series)


def _epsilon(x: Expr) -> float:
    return float(np.finfo(x.dtype).eps)


# B(2k) / 2k(2k - 1), with Bernoulli numbers B.
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


def _stirling(a: Expr) -> Expr:
    """Return log Γ(a) - ((a - 1/2) log a - a + log √2π) for large `a`, by Stirling's series."""
    return polynomial(1 / (a * a), _STIRLING) / a


def _log1p_curvature(u: Expr) -> Expr:
    """Return 2 (u - log(1 + u)) / u² for small `u`; 1 at 0."""
    w = 1 / (2 + u)
    s = u * w
    return 2 * w - 4 * s * w * w * polynomial(s * s, [1 / (2 * n + 3) for n in range(12)])


def _minus_log1p(u: Expr) -> Expr:
    """Return u - log(1 + u), accurate for small `u`."""
    is_small = absolute(u) < _CLOSE
    near = where(is_small, u, 0)
    return where(is_small, near * near * _log1p_curvature(near) / 2, u - log1p(u))


def _gamma_prefactor(a: Expr, x: Expr) -> Expr:
    """Return x^a exp(-x) / Γ(a + 1)."""
    large = maximum(a, a.full_like(_LARGE))
    deviation = exp(-large * _minus_log1p((x - large) / large) - _stirling(large)) / sqrt(large * (2 * math.pi))
    small = minimum(a, a.full_like(_LARGE))
    return where(a < _LARGE, exp(small * log(x) - x - lgamma(small + 1)), deviation)


def _cases(a: Expr, x: Expr) -> tuple[Expr, Expr, Expr, Expr, Expr]:
    """Return operands inside the domain, and masks of Temme's expansion, of the fraction and of the domain."""
    inside = (a > 0) & (x > 0) & (a < math.inf) & (x < math.inf)
    b, y = where(inside, a, 1), where(inside, x, 1)
    uniform = (b >= _UNIFORM) & (absolute(y - b) < _CLOSE * b)
    above = (y > 1) & (y > b) & ~uniform
    return b, y, uniform, above, inside


def _regularized_gamma(a: Expr, x: Expr) -> tuple[Expr, Expr]:
    """Return P(a, x) and Q(a, x)."""
    b, y, uniform, above, inside = _cases(a, x)
    power = _gamma_prefactor(b, y)
    below = ~uniform & ~above
    sums, _ = _gamma_series(where(below, b, 1), where(below, y, 0.5), False)
    fraction, _ = _gamma_fraction(where(above, b, 1), minimum(where(above, y, 2), _FAR), False)
    low, high = power * sums, power * b * fraction
    eta, spread, curve, _, _ = _expansion(where(uniform, b, _UNIFORM), where(uniform, y, _UNIFORM))
    scaled_eta = eta * sqrt(spread / 2)
    rest = curve * exp(-spread * eta * eta / 2) / sqrt(spread * (2 * math.pi))
    low = where(uniform, erfc(-scaled_eta) / 2 - rest, where(above, 1 - high, low))
    high = where(uniform, erfc(scaled_eta) / 2 + rest, where(above, high, 1 - low))
    is_nan = (a < 0) | (x < 0) | (a != a) | (x != x) | ((a == 0) & (x == 0)) | ((a == math.inf) & (x == math.inf))
    none = (x == 0) | (a == math.inf)
    for_low = where(inside, low, where(none, 0, low.full_like(1)))
    for_high = where(inside, high, where(none, 1, low.full_like(0)))
    return where(is_nan, math.nan, for_low), where(is_nan, math.nan, for_high)


def _igamma_derivative(a: Expr, x: Expr) -> tuple[Expr, Expr]:
    """Return the derivative of P(a, x) along `a` divided by x^a exp(-x) / Γ(a + 1), and that prefactor."""
    b, y, uniform, above, _ = _cases(a, x)
    below = ~uniform & ~above
    low_a, low_x = where(below, b, 1), where(below, y, 0.5)
    sums, sums_slope = _gamma_series(low_a, low_x, True)
    low = sums * (log(low_x) - digamma(low_a + 1)) + sums_slope
    high_a, high_x = where(above, b, 1), minimum(where(above, y, 2), _FAR)
    fraction, fraction_slope = _gamma_fraction(high_a, high_x, True)
    high = -high_a * fraction * (log(high_x) - digamma(high_a) + fraction_slope)
    eta, spread, curve, by_eta, by_spread = _expansion(where(uniform, b, _UNIFORM), where(uniform, y, _UNIFORM))
    away = (where(uniform, y, _UNIFORM) - spread) / spread
    per_eta = 1 / sqrt(_log1p_curvature(away))  # away / eta, which is 1 where both are 0
    bracket = per_eta - eta / 2 + curve * (away - eta * eta / 2 - 0.5 / spread) - by_eta * per_eta / spread + by_spread
    uniform_value = -bracket * exp(_stirling(spread))
    return where(uniform, uniform_value, where(above, high, low)), _gamma_prefactor(b, y)


def _gamma_series(a: Expr, x: Expr, with_slope: bool) -> tuple[Expr, Expr]:
    """Sum 1 + x/(a+1) + x²/(a+1)(a+2) + ..., and with `with_slope` its derivative along `a`."""
    epsilon = _epsilon(x)

    def condition(n: Expr, term: Expr, total: Expr, moved: Expr, slope: Expr, a: Expr, x: Expr) -> Expr:
        left = absolute(term) > epsilon * absolute(total)
        if with_slope:
            left = left | (absolute(moved) > epsilon * absolute(slope))
        return left & (n < _MAX_ITERATIONS)

    def body(n: Expr, term: Expr, total: Expr, moved: Expr, slope: Expr, a: Expr, x: Expr) -> list[Expr]:
        n = n + 1
        term = term * x / (a + n)
        if with_slope:
            moved = moved * x / (a + n) - term / (a + n)
            slope = slope + moved
        return [n, term, total + term, moved, slope, a, x]

    one, zero = x.full_like(1), x.full_like(0)
    _, _, total, _, slope, _, _ = while_any("series", [zero, one, one, zero, zero, a, x], condition, body)
    return total, slope


def _gamma_fraction(a: Expr, x: Expr, with_slope: bool) -> tuple[Expr, Expr]:
    """Evaluate 1/(x+1-a - 1(1-a)/(x+3-a - 2(2-a)/(x+5-a - ...))) by Lentz's method.

    With `with_slope`, also return the derivative of its logarithm along `a`.
    """
    tolerance = 4 * _epsilon(x)

    def condition(n: Expr, up: Expr, down: Expr, total: Expr, change: Expr, *moves: Expr) -> Expr:
        left = absolute(change - 1) > tolerance
        if with_slope:
            _, _, slope, moved, *_ = moves
            left = left | (absolute(moved) > tolerance * absolute(slope))
        return left & (n < _MAX_ITERATIONS)

    def body(n: Expr, up: Expr, down: Expr, total: Expr, change: Expr, *moves: Expr) -> list[Expr]:
        up_moves, down_moves, slope, moved, a, x = moves
        n = n + 1
        above, beside = n * (a - n), x + 2 * n + 1 - a
        new_down = 1 / (beside + above * down)
        new_up = beside + above / up
        change = new_up * new_down
        if with_slope:
            down_moves = new_down * new_down * (1 - n * down - above * down_moves)
            up_moves = n / up - 1 - above * up_moves / (up * up)
            moved = up_moves / new_up + down_moves / new_down
            slope = slope + moved
        return [n, new_up, new_down, total * change, change, up_moves, down_moves, slope, moved, a, x]

    first, zero = x + 1 - a, x.full_like(0)
    slope = -1 / first
    start = [zero, first, zero, first, x.full_like(2), x.full_like(-1), zero, slope, slope, a, x]
    _, _, _, total, _, _, _, slope, *_ = while_any("fraction", start, condition, body)
    return 1 / total, -slope


def _expansion(a: Expr, x: Expr) -> tuple[Expr, Expr, Expr, Expr, Expr]:
    """Evaluate Temme's expansion for large `a`.

    η²/2 = x/a - 1 - log(x/a), and η has the sign of x - a. Return η, `a`, the sum of c(k, n) η^n / a^k, and its
    derivatives along η and `a`.
    """
    away = (x - a) / a
    eta = away * sqrt(_log1p_curvature(away))
    inverse = 1 / a
    rows = _temme()
    curves = [polynomial(eta, row) for row in rows]
    slopes = [polynomial(eta, [n * c for n, c in enumerate(row)][1:]) for row in rows]
    total, by_eta, by_inverse = curves[-1], slopes[-1], a.full_like(0)
    for curve, slope in zip(reversed(curves[:-1]), reversed(slopes[:-1]), strict=True):
        by_inverse = by_inverse * inverse + total
        total, by_eta = total * inverse + curve, by_eta * inverse + slope
    return eta, a, total, by_eta, -by_inverse * inverse * inverse


@lru_cache(maxsize=1)
def _temme() -> list[list[float]]:
    """Return the coefficients c(k, n) that matter if `a` is at least `_UNIFORM` and x differs by at most `_CLOSE`.

    With x/a - 1 = α(1) η + α(2) η² + … , and η over that = r(0) + r(1) η + …, c(0, n) is r(n + 1), and
    c(k, n) is (n + 2) c(k - 1, n + 2) - c(k - 1, 1) r(n + 1) (DLMF 8.12.10, 8.12.11).
    """
    orders, powers = 7, 20
    count = powers + 2 * orders + 2
    alpha = [Fraction(0), Fraction(1)]
    for n in range(2, count + 1):
        products = sum((alpha[i] * alpha[n + 1 - i] for i in range(2, n)), Fraction(0))
        alpha.append(alpha[n - 1] / (n + 1) - products / 2)
    r = [Fraction(1)]
    for n in range(1, count):
        r.append(-sum((alpha[i + 1] * r[n - i] for i in range(1, n + 1)), Fraction(0)))
    row = r[1:]
    rows = []
    for order in range(orders):
        kept = [float(c) for c in row[:powers]]
        while len(kept) > 2 and abs(kept[-1]) * 0.34 ** (len(kept) - 1) / _UNIFORM**order < 1e-18:
            kept.pop()
        rows.append(kept)
        row = [(n + 2) * row[n + 2] - row[1] * r[n + 1] for n in range(len(row) - 2)]
    return rows


def _beta_prefactor(a: Expr, b: Expr, x: Expr, y: Expr) -> Expr:
    """Return x^a y^b / (a B(a, b)), where x + y = 1."""
    is_large = (a >= _LARGE) & (b >= _LARGE)
    p, q = where(is_large, a, _LARGE), where(is_large, b, _LARGE)
    ahead = x * q - y * p
    spread = p * _minus_log1p(ahead / p) + q * _minus_log1p(-ahead / q)
    series = _stirling(p + q) - _stirling(p) - _stirling(q)
    with_series = exp(series - spread) * sqrt(q / (p * (p + q) * (2 * math.pi)))
    # a B(a, b) = (a + b) B(a + 1, b), which stays bounded as a tends to 0.
    log_scale = log_beta(a + 1, b) + log(a + b)
    log_x = where(x < y, log(x), log1p(-y))
    log_y = where(x < y, log1p(-x), log(y))
    return where(is_large, with_series, exp(a * log_x + b * log_y - log_scale))


def _beta_fraction(a: Expr, b: Expr, x: Expr) -> Expr:
    """Evaluate 1 + d(1)/(1 + d(2)/(1 + ...)) by Lentz's method, with d from DLMF 8.17.23."""
    epsilon = _epsilon(x)
    tiny = float(np.finfo(x.dtype).tiny) * 1e6

    def nonzero(x: Expr) -> Expr:
        """Replace numbers close to zero, so that they can be divided by."""
        return where(absolute(x) < tiny, tiny, x)

    def condition(n: Expr, up: Expr, down: Expr, total: Expr, change: Expr, a: Expr, b: Expr, x: Expr) -> Expr:
        return (absolute(change - 1) > 4 * epsilon) & (n < _MAX_ITERATIONS)

    def body(n: Expr, up: Expr, down: Expr, total: Expr, change: Expr, a: Expr, b: Expr, x: Expr) -> list[Expr]:
        twice = a + 2 * n
        odd = -((a + n) / twice) * ((a + b + n) / (twice + 1)) * x
        m = n + 1
        even = (m / (twice + 1)) * ((b - m) / (twice + 2)) * x
        change = x.full_like(1)
        for d in (odd, even):
            down = 1 / nonzero(1 + d * down)
            up = nonzero(1 + d / up)
            change = change * up * down
        return [m, up, down, total * change, change, a, b, x]

    one, zero = x.full_like(1), x.full_like(0)
    start = [zero, one, zero, one, x.full_like(2), a, b, x]
    return while_any("fraction", start, condition, body)[3]
