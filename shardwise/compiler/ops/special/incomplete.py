"""The incomplete gamma and beta functions: integrals of a density up to a bound, as shares of the whole.

Each is a power of its operands, written so that large ones do not cancel, times a series or a continued fraction that
is followed until every element of one device's piece has settled. Where both operands of the gamma functions are large
and alike, that would take ever more turns: there Temme's uniform expansion takes over (DLMF 8.12).
"""

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.op import NumpyArray
from shardwise.compiler.ir.record import record
from shardwise.compiler.ops.elementwise.formula import (
    Expr,
    absolute,
    exp,
    floor,
    log,
    log1p,
    maximum,
    minimum,
    polynomial,
    sqrt,
    unary_function,
    where,
    while_any,
)
from shardwise.compiler.ops.special.gamma_erf import CompositeFunction, Digamma, Erfc, Lgamma, MultiOperandFunction
from shardwise.lazy import lazy_module

scipy = lazy_module("scipy")

lgamma, digamma, erfc = unary_function(Lgamma()), unary_function(Digamma()), unary_function(Erfc())

_LARGE = 10.0  # from here on Stirling's series has all digits
_UNIFORM = 100.0  # from here on Temme's expansion has all digits, where the operands differ by less than a third
_ALIKE = 0.3
_FAR = 1e30  # above this bound nothing is left
_TURNS = 1000  # more than any element takes that settles at all


class IncompleteGamma(CompositeFunction, MultiOperandFunction):
    """Of a shape parameter `a` and a bound `x`."""

    def slope_along_x(self, a: Expr, x: Expr) -> Expr:
        """The density of the gamma distribution."""
        return exp((a - 1) * log(x) - x - lgamma(a))


@final
@record
class Igamma(IncompleteGamma):
    """The share of the gamma function's integral, of exponent `a`, that lies below `x`."""

    name = "igamma"

    def partial_derivative(self, number: int, *operands: Expr) -> Expr:
        return self.slope_along_x(*operands) if number else Expr(IgammaGradA()(*(x.array for x in operands)))

    def formula(self, *operands: Expr) -> Expr:
        return _gamma_shares(*operands)[0]

    def numpy_function(self, a: NumpyArray, x: NumpyArray) -> Any:
        return np.minimum(scipy.special.gammainc(a, x), 1)


@final
@record
class Igammac(IncompleteGamma):
    """The share of the gamma function's integral, of exponent `a`, that lies above `x`."""

    name = "igammac"

    def partial_derivative(self, number: int, *operands: Expr) -> Expr:
        return -(self.slope_along_x(*operands) if number else Expr(IgammaGradA()(*(x.array for x in operands))))

    def formula(self, *operands: Expr) -> Expr:
        return _gamma_shares(*operands)[1]

    def numpy_function(self, a: NumpyArray, x: NumpyArray) -> Any:
        return scipy.special.gammaincc(a, x)


@final
@record
class IgammaGradA(IncompleteGamma):
    """The derivative of `igamma` along `a`."""

    name = "igamma_grad_a"
    nondifferentiable = (0, 1)
    nondifferentiable_reason = "has no derivative of its own: igamma can be differentiated along a once"

    def formula(self, *operands: Expr) -> Expr:
        a, x = operands
        by_power, power = _slope_of_share(a, x)
        found = where(x == 0, 0, power * by_power)
        return where((x < 0) | ~(a > 0) | (x != x), math.nan, where((x == math.inf) | (a == math.inf), 0, found))

    def numpy_function(self, a: NumpyArray, x: NumpyArray) -> Any:
        """By the terms of the series, each differentiated: exact in its places after the point, if not in the tails."""
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
    """By how much a draw `x` from the gamma distribution moves with its parameter `a`, its share below staying."""

    name = "random_gamma_grad"
    nondifferentiable = (0, 1)
    nondifferentiable_reason = "has no derivative of its own: a gamma draw can be differentiated once"

    def formula(self, *operands: Expr) -> Expr:
        a, x = operands
        by_power, _ = _slope_of_share(a, x)
        found = where(x == 0, 0, -by_power * x / a)
        return where((x < 0) | ~(a > 0) | (x != x), math.nan, found)

    def numpy_function(self, a: NumpyArray, x: NumpyArray) -> Any:
        density = np.exp((a - 1) * np.log(x) - x - scipy.special.gammaln(a))
        return np.where(x == 0, 0, -IgammaGradA().numpy_function(a, x) / density)


@final
@record
class Betainc(CompositeFunction, MultiOperandFunction):
    """The share of the beta function's integral, of exponents `a` and `b`, that lies below `x`."""

    name = "betainc"
    arity = 3
    nondifferentiable = (0, 1)
    nondifferentiable_reason = (
        "has no derivatives along a and b; differentiate along x, or stop_gradient(a), stop_gradient(b)"
    )

    def partial_derivative(self, number: int, *operands: Expr) -> Expr:
        a, b, x = operands
        return exp((a - 1) * log(x) + (b - 1) * log1p(-x) - log_beta(a, b))

    def formula(self, *operands: Expr) -> Expr:
        a, b, x = operands
        inside = (a > 0) & (b > 0) & (x > 0) & (x < 1) & (a < math.inf) & (b < math.inf)
        a0, b0, x0 = where(inside, a, 1), where(inside, b, 1), where(inside, x, 0.5)
        # The fraction settles on the side of the mean: of the other side, one minus what lies above.
        below = x0 < (a0 + 1) / (a0 + b0 + 2)
        y0 = 1 - x0
        p, q, low, high = (where(below, first, second) for first, second in ((a0, b0), (b0, a0), (x0, y0), (y0, x0)))
        share = _beta_power(p, q, low, high) / _beta_fraction(p, q, low)
        share = where(below, share, 1 - share)
        # At the ends, and where one exponent is so small or so large that all lies at one end.
        at_zero = (a == 0) | (b == math.inf)
        at_one = (b == 0) | (a == math.inf)
        share = where(at_zero & (x > 0), 1, share)
        share = where((at_one & (x < 1)) | (x == 0), 0, share)
        share = where(x == 1, 1, share)
        is_nan = (a < 0) | (b < 0) | (x < 0) | (x > 1) | (a != a) | (b != b) | (x != x) | (at_zero & at_one)
        return where(is_nan, math.nan, share)

    def numpy_function(self, a: NumpyArray, b: NumpyArray, x: NumpyArray) -> Any:
        return scipy.special.betainc(a, b, x)


@final
@record
class Expn(CompositeFunction, MultiOperandFunction):
    """The exponential integral of order `n`, which is whole and not negative: of exp(-xt) / t^n over all t from 1."""

    name = "expn"
    nondifferentiable = (0,)
    nondifferentiable_reason = "has no derivative along the order n; differentiate along x, or stop_gradient(n)"

    def partial_derivative(self, number: int, *operands: Expr) -> Expr:
        """The integral of the order before it; of order 0 that of t exp(-xt)."""
        n, x = operands
        before = Expr(self(maximum(n - 1, 0).array, x.array))
        return where(n == 0, -exp(-x) * (1 + x) / (x * x), -before)

    def formula(self, *operands: Expr) -> Expr:
        n, x = operands
        is_order = (n >= 0) & (n == floor(n)) & (n < math.inf)
        inside = is_order & (n > 0) & (x > 0) & (x < math.inf)
        order, y = where(inside, n, 1), where(inside, x, 1)
        large = y > 1
        low = _expn_series(where(large, 1, order), where(large, 0.5, y))
        far = minimum(where(large, y, 2), 1e30)
        # The integral of order n is x^(n-1) times the share above x of exponent 1 - n.
        fraction, _ = _gamma_fraction(where(large, 1 - order, 0), far, False)
        found = where(large, exp(-far) * fraction, low)
        found = where(n == 0, exp(-x) / x, found)
        found = where((x == 0) & (n > 1), 1 / (n - 1), where((x == 0) & (n <= 1), math.inf, found))
        found = where(x == math.inf, 0, found)
        return where(is_order & (x >= 0), found, math.nan)

    def numpy_function(self, n: NumpyArray, x: NumpyArray) -> Any:
        is_order = (n >= 0) & (n == np.floor(n)) & np.isfinite(n)
        return np.where(is_order, scipy.special.expn(np.where(is_order, n, 1), x), np.nan)


def _expn_series(n: Expr, x: Expr) -> Expr:
    """For small `x`: (-x)^(n-1)/(n-1)! (ψ(n) - log x) less the sum of (-x)^m/m!(m-n+1) over all other m."""
    epsilon = _epsilon(x)

    def goes_on(m: Expr, power: Expr, total: Expr, change: Expr, edge: Expr, n: Expr, x: Expr) -> Expr:
        return ((absolute(change) > epsilon * absolute(total)) | (m < n)) & (m < _TURNS)

    def step(m: Expr, power: Expr, total: Expr, change: Expr, edge: Expr, n: Expr, x: Expr) -> list[Expr]:
        m = m + 1
        power = -power * x / m
        at_edge = m == n - 1
        change = where(at_edge, 0, power / where(at_edge, 1, m - n + 1))
        return [m, power, total - change, change, where(at_edge, power, edge), n, x]

    one, zero = x.full_like(1), x.full_like(0)
    first = where(n == 1, 0, -1 / where(n == 1, 1, 1 - n))
    start = [zero, one, first, one, where(n == 1, 1, zero), n, x]
    _, _, total, _, edge, _, _ = while_any("series", start, goes_on, step)
    return total + edge * (digamma(n) - log(x))


def log_beta(a: Expr, b: Expr) -> Expr:
    """The logarithm of the beta function of positive numbers; of large ones without a difference of larger ones."""
    # Chosen by comparisons, not as extremes: those share their slope where both are equal.
    less, more = where(a < b, a, b), where(a < b, b, a)
    large = where(more < _LARGE, _LARGE, more)
    ratio = (large - 0.5) * log1p(less / large) + less * (log(less + large) - 1)
    with_series = lgamma(less) - ratio + _stirling(large) - _stirling(less + large)
    return where(more < _LARGE, lgamma(less) + lgamma(more) - lgamma(less + more), with_series)


def _epsilon(x: Expr) -> float:
    return float(np.finfo(x.dtype).eps)


# Of Bernoulli's numbers: B(2k) / 2k(2k - 1).
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


def _stirling(a: Expr) -> Expr:
    """What is left of log Γ(a), for large `a`, beside (a - 1/2) log a - a + log √2π."""
    return polynomial(1 / (a * a), _STIRLING) / a


def _bend(u: Expr) -> Expr:
    """2 (u - log(1 + u)) / u² for small `u`: 1 at 0."""
    w = 1 / (2 + u)
    s = u * w
    return 2 * w - 4 * s * w * w * polynomial(s * s, [1 / (2 * n + 3) for n in range(12)])


def _excess(u: Expr) -> Expr:
    """u - log(1 + u), exact for small `u`."""
    is_small = absolute(u) < _ALIKE
    near = where(is_small, u, 0)
    return where(is_small, near * near * _bend(near) / 2, u - log1p(u))


def _power(a: Expr, x: Expr) -> Expr:
    """x^a exp(-x) / Γ(a + 1)."""
    large = maximum(a, a.full_like(_LARGE))
    deviation = exp(-large * _excess((x - large) / large) - _stirling(large)) / sqrt(large * (2 * math.pi))
    small = minimum(a, a.full_like(_LARGE))
    return where(a < _LARGE, exp(small * log(x) - x - lgamma(small + 1)), deviation)


def _cases(a: Expr, x: Expr) -> tuple[Expr, Expr, Expr, Expr, Expr]:
    """Operands inside the domain (others are replaced), and whether each is for the expansion, or for the fraction."""
    inside = (a > 0) & (x > 0) & (a < math.inf) & (x < math.inf)
    b, y = where(inside, a, 1), where(inside, x, 1)
    uniform = (b >= _UNIFORM) & (absolute(y - b) < _ALIKE * b)
    above = (y > 1) & (y > b) & ~uniform
    return b, y, uniform, above, inside


def _gamma_shares(a: Expr, x: Expr) -> tuple[Expr, Expr]:
    """The shares below and above."""
    b, y, uniform, above, inside = _cases(a, x)
    power = _power(b, y)
    below = ~uniform & ~above
    sums, _ = _gamma_series(where(below, b, 1), where(below, y, 0.5), False)
    fraction, _ = _gamma_fraction(where(above, b, 1), minimum(where(above, y, 2), _FAR), False)
    low, high = power * sums, power * b * fraction
    eta, spread, curve, _, _ = _expansion(where(uniform, b, _UNIFORM), where(uniform, y, _UNIFORM))
    turn = eta * sqrt(spread / 2)
    rest = curve * exp(-spread * eta * eta / 2) / sqrt(spread * (2 * math.pi))
    low = where(uniform, erfc(-turn) / 2 - rest, where(above, 1 - high, low))
    high = where(uniform, erfc(turn) / 2 + rest, where(above, high, 1 - low))
    is_nan = (a < 0) | (x < 0) | (a != a) | (x != x) | ((a == 0) & (x == 0)) | ((a == math.inf) & (x == math.inf))
    none = (x == 0) | (a == math.inf)
    for_low = where(inside, low, where(none, 0, low.full_like(1)))
    for_high = where(inside, high, where(none, 1, low.full_like(0)))
    return where(is_nan, math.nan, for_low), where(is_nan, math.nan, for_high)


def _slope_of_share(a: Expr, x: Expr) -> tuple[Expr, Expr]:
    """What the share below gains with `a`, as a multiple of x^a exp(-x) / Γ(a + 1), and that power."""
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
    per_eta = 1 / sqrt(_bend(away))  # away / eta, which is 1 where both are 0
    bracket = per_eta - eta / 2 + curve * (away - eta * eta / 2 - 0.5 / spread) - by_eta * per_eta / spread + by_spread
    alike = -bracket * exp(_stirling(spread))
    return where(uniform, alike, where(above, high, low)), _power(b, y)


def _gamma_series(a: Expr, x: Expr, with_slope: bool) -> tuple[Expr, Expr]:
    """1 + x/(a+1) + x²/(a+1)(a+2) + …, and its derivative along `a` where that is asked for."""
    epsilon = _epsilon(x)

    def goes_on(n: Expr, term: Expr, total: Expr, moved: Expr, slope: Expr, a: Expr, x: Expr) -> Expr:
        left = absolute(term) > epsilon * absolute(total)
        if with_slope:
            left = left | (absolute(moved) > epsilon * absolute(slope))
        return left & (n < _TURNS)

    def step(n: Expr, term: Expr, total: Expr, moved: Expr, slope: Expr, a: Expr, x: Expr) -> list[Expr]:
        n = n + 1
        term = term * x / (a + n)
        if with_slope:
            moved = moved * x / (a + n) - term / (a + n)
            slope = slope + moved
        return [n, term, total + term, moved, slope, a, x]

    one, zero = x.full_like(1), x.full_like(0)
    _, _, total, _, slope, _, _ = while_any("series", [zero, one, one, zero, zero, a, x], goes_on, step)
    return total, slope


def _gamma_fraction(a: Expr, x: Expr, with_slope: bool) -> tuple[Expr, Expr]:
    """1/(x+1-a - 1(1-a)/(x+3-a - 2(2-a)/(x+5-a - …))) by Lentz's method, and the derivative of its logarithm along
    `a` where that is asked for.
    """
    settled = 4 * _epsilon(x)

    def goes_on(n: Expr, up: Expr, down: Expr, total: Expr, change: Expr, *moves: Expr) -> Expr:
        left = absolute(change - 1) > settled
        if with_slope:
            _, _, slope, moved, *_ = moves
            left = left | (absolute(moved) > settled * absolute(slope))
        return left & (n < _TURNS)

    def step(n: Expr, up: Expr, down: Expr, total: Expr, change: Expr, *moves: Expr) -> list[Expr]:
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
    _, _, _, total, _, _, _, slope, *_ = while_any("fraction", start, goes_on, step)
    return 1 / total, -slope


def _expansion(a: Expr, x: Expr) -> tuple[Expr, Expr, Expr, Expr, Expr]:
    """Of Temme's expansion in `a`, which is large, and η, where η²/2 is x/a - 1 - log(x/a) and η has the sign of
    x - a: η, `a` itself, the sum of c(k, n) η^n / a^k, and its derivatives along both.
    """
    away = (x - a) / a
    eta = away * sqrt(_bend(away))
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
    """The coefficients c(k, n), as far as they count where a is at least `_UNIFORM` and x differs by `_ALIKE`.

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


def _beta_power(a: Expr, b: Expr, x: Expr, y: Expr) -> Expr:
    """x^a y^b / a B(a, b), where x + y is 1."""
    is_large = (a >= _LARGE) & (b >= _LARGE)
    p, q = where(is_large, a, _LARGE), where(is_large, b, _LARGE)
    ahead = x * q - y * p
    spread = p * _excess(ahead / p) + q * _excess(-ahead / q)
    series = _stirling(p + q) - _stirling(p) - _stirling(q)
    with_series = exp(series - spread) * sqrt(q / (p * (p + q) * (2 * math.pi)))
    # a B(a, b) is (a + b) B(a + 1, b), which does not grow as a vanishes.
    log_whole = log_beta(a + 1, b) + log(a + b)
    log_x = where(x < y, log(x), log1p(-y))
    log_y = where(x < y, log1p(-x), log(y))
    return where(is_large, with_series, exp(a * log_x + b * log_y - log_whole))


def _beta_fraction(a: Expr, b: Expr, x: Expr) -> Expr:
    """1 + d(1)/(1 + d(2)/(1 + …)) by Lentz's method, with the d of DLMF 8.17.23."""
    epsilon = _epsilon(x)
    tiny = float(np.finfo(x.dtype).tiny) * 1e6

    def kept(x: Expr) -> Expr:
        """A number that can be divided by."""
        return where(absolute(x) < tiny, tiny, x)

    def goes_on(n: Expr, up: Expr, down: Expr, total: Expr, change: Expr, a: Expr, b: Expr, x: Expr) -> Expr:
        return (absolute(change - 1) > 4 * epsilon) & (n < _TURNS)

    def step(n: Expr, up: Expr, down: Expr, total: Expr, change: Expr, a: Expr, b: Expr, x: Expr) -> list[Expr]:
        twice = a + 2 * n
        odd = -((a + n) / twice) * ((a + b + n) / (twice + 1)) * x
        m = n + 1
        even = (m / (twice + 1)) * ((b - m) / (twice + 2)) * x
        change = x.full_like(1)
        for d in (odd, even):
            down = 1 / kept(1 + d * down)
            up = kept(1 + d / up)
            change = change * up * down
        return [m, up, down, total * change, change, a, b, x]

    one, zero = x.full_like(1), x.full_like(0)
    start = [zero, one, zero, one, x.full_like(2), a, b, x]
    return while_any("fraction", start, goes_on, step)[3]
