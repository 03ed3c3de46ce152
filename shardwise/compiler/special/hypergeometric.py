"""Kummer's and Gauss's hypergeometric functions, hyp1f1 and hyp2f1.

Both are transformed to a nonnegative argument, where terms do not cancel. Then the series is summed until every element
of one device's shard has converged. For a large argument, Kummer's function has an asymptotic expansion (DLMF 13.7).
Gauss's function is summed up to 1/2. From there to the singularity at 1 it is continued by Taylor series, each around
the end of the previous one, so that large terms of opposite sign are never added, whatever the parameters are.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias, final

import numpy as np

from shardwise.base.caches import registered_cache
from shardwise.base.lazy import lazy_module
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.complex_parts import absolute
from shardwise.compiler.ops.elementwise.expr import Expr, apply, unary_function, where
from shardwise.compiler.ops.elementwise.formula import maximum, minimum
from shardwise.compiler.ops.elementwise.rounding import floor
from shardwise.compiler.ops.elementwise.transcendental import exp, log, log1p
from shardwise.compiler.special.gamma_erf import CompositeFunction, Lgamma, MultiOperandFunction
from shardwise.compiler.special.while_any import while_any
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.jvp import jvp_program

scipy = lazy_module("scipy")  # see `gamma_erf`

lgamma = unary_function(Lgamma)

_FAR = 50.0  # above this, the asymptotic expansion of Kummer's function may be used
_MAX_ITERATIONS = 20000  # more than any convergent element needs
_Parameters: TypeAlias = Sequence[tuple[NumpyArray, NumpyArray | int]]
_SCALE_BITS = 64  # a large sum is scaled down by this power of two
_LOG_TWO = (0.693359375, -2.121944400546905827679e-4)  # log 2 in two parts; multiples of the first are exact


class _Hypergeometric(CompositeFunction, MultiOperandFunction):
    """A function of parameters and an argument `x`, the last operand."""


class _ParameterDerivative(_Hypergeometric):
    """The derivative along the parameter with index `along`, by forward-mode differentiation of `formula`."""

    along: int

    def lower_wide(self, hlo: Hlo, *operands: HloValue) -> Any:
        program = _derivative(self, tuple(x.type for x in operands))
        _, derivative = hlo.program(program, (*operands, hlo.constant(1, operands[self.along].type)))
        return derivative


@registered_cache(maxsize=4096)
def _derivative(op: _ParameterDerivative, types: tuple[ArrayType, ...]) -> Program:
    """Return a program that maps the operands and a tangent of one of them to the result and its tangent."""
    program = rewrite(op.name, types, lambda *operands: [op.formula(*map(Expr, operands)).array])
    jvp, _ = jvp_program(program, tuple(index == op.along for index in range(len(types))))
    return inline(jvp)


@final
@record
class Hyp1f1(_Hypergeometric):
    """Kummer's function: the sum of (a)ₖ xᵏ / (b)ₖ k! over all k, where (a)ₖ is a (a + 1) … (a + k - 1)."""

    name = "hyp1f1"
    arity = 3

    def partial_derivative(self, number: int, *operands: Expr) -> Expr:
        a, b, x = operands
        if number == 2:
            return a / b * apply(self, a + 1, b + 1, x)
        return apply(Hyp1f1GradParameter(number), a, b, x)

    def formula(self, *operands: Expr) -> Expr:
        return _kummer(*operands, with_slopes=False)

    def numpy_function(self, a: NumpyArray, b: NumpyArray, x: NumpyArray) -> Any:
        """Correct scipy, which returns infinity if a is 0 and b is a pole, although the series then has one term."""
        return np.where(a == 0, np.where(np.isnan(b) | np.isnan(x), np.nan, 1), scipy.special.hyp1f1(a, b, x))


@final
@record
class Hyp1f1GradParameter(_ParameterDerivative):
    """The derivative of `hyp1f1` along a (0) or b (1)."""

    name = "hyp1f1_grad_parameter"
    arity = 3
    nondifferentiable = (0, 1, 2)
    nondifferentiable_reason = "hyp1f1 can be differentiated along a and b only once"
    along: int

    def formula(self, *operands: Expr) -> Expr:
        return _kummer(*operands, with_slopes=True)

    def numpy_function(self, a: NumpyArray, b: NumpyArray, x: NumpyArray) -> Any:
        """Differentiate the series term by term; negative arguments via exp(x) hyp1f1(b - a, b, -x)."""
        b, reflected, y = b.astype(np.float64), x < 0, np.abs(x).astype(np.float64)
        p = np.where(reflected, b - a, a)
        by_p = np.where(reflected, -1 if self.along == 0 else 1, 1 - self.along)
        slope = _series_derivative([(p, by_p)], [(b, self.along), (np.ones_like(b), 0)], y)
        return np.where(reflected, np.exp(-y), 1) * slope


@final
@record
class Hyp2f1(_Hypergeometric):
    """Gauss's function: the sum of (a)ₖ (b)ₖ xᵏ / (c)ₖ k! over all k, continued to all x below 1."""

    name = "hyp2f1"
    arity = 4

    def partial_derivative(self, number: int, *operands: Expr) -> Expr:
        a, b, c, x = operands
        if number == 3:
            return a * b / c * apply(self, a + 1, b + 1, c + 1, x)
        return apply(Hyp2f1GradParameter(number), a, b, c, x)

    def formula(self, *operands: Expr) -> Expr:
        return _gauss(*operands, with_slopes=False)

    def numpy_function(self, a: NumpyArray, b: NumpyArray, c: NumpyArray, x: NumpyArray) -> Any:
        """Extend scipy: above 1 the value is infinite if the series does not terminate."""
        ends = ((a <= 0) & (a == np.floor(a))) | ((b <= 0) & (b == np.floor(b)))
        return np.where((x > 1) & ~ends & ~np.isnan(a + b + c), np.inf, scipy.special.hyp2f1(a, b, c, x))


@final
@record
class Hyp2f1GradParameter(_ParameterDerivative):
    """The derivative of `hyp2f1` along a (0), b (1) or c (2)."""

    name = "hyp2f1_grad_parameter"
    arity = 4
    nondifferentiable = (0, 1, 2, 3)
    nondifferentiable_reason = "hyp2f1 can be differentiated along a, b and c only once"
    along: int

    def formula(self, *operands: Expr) -> Expr:
        return _gauss(*operands, with_slopes=True)

    def numpy_function(self, a: NumpyArray, b: NumpyArray, c: NumpyArray, x: NumpyArray) -> Any:
        """Differentiate the series term by term; negative arguments via (1 - x)^-a hyp2f1(a, c - b, c, x/(x-1))."""
        a, b, c = (y.astype(np.float64) for y in (a, b, c))
        reflected, y = x < 0, np.where(x < 0, x / (x - 1), np.where(x < 1, x, np.nan)).astype(np.float64)
        q, by_q = np.where(reflected, c - b, b), np.where(reflected, (0, -1, 1)[self.along], self.along == 1)
        above: _Parameters = [(a, int(self.along == 0)), (q, by_q)]
        below: _Parameters = [(c, int(self.along == 2)), (np.ones_like(c), 0)]
        slope = _series_derivative(above, below, y)
        if self.along == 0:
            value = scipy.special.hyp2f1(*(np.asarray(z, float) for z in (a, q, c, y)))
            slope = slope - np.where(reflected, np.log1p(-x), 0) * value
        return np.where(reflected, (1 - np.minimum(x, 0)) ** -a, 1) * slope


def _series_derivative(above: _Parameters, below: _Parameters, y: NumpyArray) -> NumpyArray:
    """Differentiate the sum of products of (p)ₖ over products of (q)ₖ times yᵏ.

    `above` and `below` hold each `p` and `q` with its derivative.
    """
    term, moved, total = np.ones_like(y), np.zeros_like(y), np.zeros_like(y)
    for k in range(_MAX_ITERATIONS):
        ratio, rate = y, np.zeros_like(y)
        for p, slope in above:
            ratio, rate = ratio * (p + k), rate * (p + k) + ratio * slope
        for q, slope in below:
            ratio, rate = ratio / (q + k), rate / (q + k) - ratio * slope / (q + k) ** 2
        moved, term = moved * ratio + term * rate, term * ratio
        total = total + moved
        if k > 20 and not np.any(np.abs(moved) > 1e-17 * np.abs(total)):  # NaN counts as converged
            break
    return total


def _tolerance(x: Expr) -> float:
    """Return the truncation tolerance, below epsilon because the terms of derivatives are larger."""
    return float(np.finfo(x.dtype).eps) / 64


def _is_pole(x: Expr) -> Expr:
    """Return whether `x` is a pole of the gamma function: 0, -1, -2, … A series with such a parameter terminates."""
    return (x <= 0) & (x == floor(x))


def _sign_of_gamma(x: Expr) -> Expr:
    lower = floor(x)
    return where((x < 0) & (lower != 2 * floor(lower / 2)), x.full_like(-1), 1)


def _times_power_of_two(log_factor: Expr, doublings: Expr) -> Expr:
    """Return exp(log_factor) * 2 ** doublings. Each factor may overflow or underflow where the product does not."""
    first, rest = (doublings * part for part in _LOG_TWO)
    return exp(log_factor + first + rest)


def _kummer(a: Expr, b: Expr, x: Expr, *, with_slopes: bool) -> Expr:
    pole = _is_pole(b)
    ends = _is_pole(a) & (~pole | (a >= b))  # the series terminates before it divides by zero
    inside = (absolute(x) < math.inf) & (absolute(a) < math.inf) & (absolute(b) < math.inf)
    inside = inside & (~pole if with_slopes else ~pole | ends)
    a0, b0, x0 = where(inside, a, 1), where(inside, b, 1), where(inside, x, 0)
    reflected = (x0 < 0) & ~_is_pole(b0)
    p = where(reflected, b0 - a0, a0)
    y = where(reflected, -x0, x0)
    far = (y > _FAR) & (y > 2 * (absolute(p) + 1) * (absolute(b0 - p) + 1)) & ~_is_pole(p) & ~_is_pole(b0)
    # Both are multiplied by exp(-y) if the argument was negative.
    total, doublings = _kummer_series(p, b0, where(far, 1, y), with_slopes)
    near = total * _times_power_of_two(where(reflected, -y, 0), doublings)
    p1, b1, y1 = where(far, p, 1.5), where(far, b0, 1), where(far, y, _FAR)
    power = lgamma(b1) - lgamma(p1) + (p1 - b1) * log(y1)
    outer = _sign_of_gamma(b1) * _sign_of_gamma(p1) * exp(where(reflected, power, power + y1))
    value = where(far, outer * _kummer_expansion(p1, b1, y1, with_slopes), near)
    if with_slopes:
        return value * where(inside, x0.full_like(1), math.nan)
    known = (a == a) & (b == b) & (x == x)
    value = where(inside, value, where(known & pole & ~ends, math.inf, x0.full_like(math.nan)))
    # At the infinities it behaves like exp(x), or like a power of -x.
    at_end = known & ~pole & ~_is_pole(a) & (absolute(a) < math.inf) & (absolute(b) < math.inf)
    upper = _sign_of_gamma(a) * _sign_of_gamma(b) * math.inf
    value = where(at_end & (x == math.inf), upper, value)
    return where(at_end & (x == -math.inf) & (a > 0), 0, value)


def _kummer_series(p: Expr, b: Expr, y: Expr, with_slopes: bool) -> tuple[Expr, Expr]:
    """Return the sum of the series, and the power of two by which it was scaled down.

    The series has converged when terms are small relative to the sum; with slopes, when the bound of the derivative's
    terms is small relative to its maximum.
    """
    least = _tolerance(y)
    large, small = 2.0**_SCALE_BITS, 2.0**-_SCALE_BITS

    def condition(k: Expr, term: Expr, size: Expr, reach: Expr, *rest: Expr) -> Expr:
        _, _, p, b, _ = rest
        # No element has converged before its parameters are positive.
        return ((size > least * reach) | (k < 1 - b) | (k < 1 - p)) & (k < _MAX_ITERATIONS)

    def body(k: Expr, term: Expr, size: Expr, reach: Expr, *rest: Expr) -> list[Expr]:
        total, doublings, p, b, y = rest
        over = (b + k) * (k + 1)
        by = where(over == 0, 0, y / where(over == 0, 1, over))
        term = term * (p + k) * by
        total = total + term
        if with_slopes:
            size = size * maximum(absolute(p + k), 1) * absolute(by)
            reach = maximum(reach, size)
        else:
            size, reach = absolute(term), absolute(total)
        grown = reach > large
        scale = where(grown, small, y.full_like(1))
        doublings = where(grown, doublings + _SCALE_BITS, doublings)
        return [k + 1, term * scale, size * scale, reach * scale, total * scale, doublings, p, b, y]

    one, zero = y.full_like(1), y.full_like(0)
    _, _, size, reach, total, doublings, *_ = while_any(
        "series", [zero, one, one, one, one, zero, p, b, y], condition, body
    )
    return where(size > least * reach, math.nan, total), doublings


def _kummer_expansion(p: Expr, b: Expr, y: Expr, with_slopes: bool) -> Expr:
    """Sum 1 + (1-p)(b-p)/y + (1-p)(2-p)(b-p)(b-p+1)/2y² + ... while the terms decrease."""
    least = _tolerance(y)

    def condition(k: Expr, term: Expr, size: Expr, total: Expr, p: Expr, b: Expr, y: Expr) -> Expr:
        return size > least * absolute(total)

    def body(k: Expr, term: Expr, size: Expr, total: Expr, p: Expr, b: Expr, y: Expr) -> list[Expr]:
        first, second, below = k + 1 - p, k + b - p, (k + 1) * y
        bound = maximum(absolute(first), 1) * maximum(absolute(second), 1) / below
        kept = bound < 1
        term = where(kept, term * first * second / below, 0)
        size = where(kept, size * bound, 0) if with_slopes else absolute(term)
        return [k + 1, term, size, total + term, p, b, y]

    one, zero = y.full_like(1), y.full_like(0)
    return while_any("expansion", [zero, one, one, one, p, b, y], condition, body)[3]


def _gauss(a: Expr, b: Expr, c: Expr, x: Expr, *, with_slopes: bool) -> Expr:
    pole = _is_pole(c)
    less, more = where(a < b, a, b), where(a < b, b, a)
    # A terminating series is summed directly, for any x. The series of derivatives do not terminate.
    last = where(_is_pole(more), more, less)
    ends = x != x if with_slopes else _is_pole(last) & (~pole | (last >= c))
    limited = (absolute(a) < math.inf) & (absolute(b) < math.inf) & (absolute(c) < math.inf) & (absolute(x) < math.inf)
    inside = limited & (ends | (~pole & (x < 1)))
    p, q, r, y = (where(inside, parameter, default) for parameter, default in ((less, 1), (more, 1), (c, 2.5), (x, 0)))
    ends = ends & inside
    # Negative x: (1-x)^-a times the function of a, c-b, c and x/(x-1), whose distance from 1 is 1/(1-x).
    reflected = (y < 0) & ~ends
    short = where(ends, 0, y)
    log_away = log1p(-short)
    log_away = where(reflected, -log_away, log_away)
    away = where(reflected, 1 / (1 - short), 1 - short)
    z = where(reflected, short / (short - 1), short)
    power = where(reflected, p, 0)
    q = where(reflected, r - q, q)
    # If the transformed series terminates: (1-z)^(c-a-b) times the function of c-a, c-b, c and z. Without this, if
    # c-a-b is positive, the value near 1 would suffer from cancellation.
    excess = r - p - q
    mirrored = (_is_pole(r - p) | _is_pole(r - q)) & (excess > 0) & ~ends
    power = where(mirrored, power + excess, power)
    p, q = where(mirrored, r - p, p), where(mirrored, r - q, q)
    total, slope = _gauss_series(p, q, r, where(ends, y, minimum(z, 0.5)), with_slopes)
    onwards = (z > 0.5) & ~ends
    further, doublings = _gauss_steps(p, q, r, where(onwards, away, 0.5), total, slope, with_slopes)
    value = where(onwards, further, total) * _times_power_of_two(power * log_away, where(onwards, doublings, 0))
    at_one = limited & ~pole & ~ends & (x == 1)
    value = where(at_one, _gauss_at_one(a, b, c), value)
    if with_slopes:
        return value * where(inside | at_one, y.full_like(1), math.nan)
    known = (a == a) & (b == b) & (c == c) & (x == x)
    value = where(inside | at_one, value, where(known, math.inf, y.full_like(math.nan)))
    return where(limited & (x == 0), 1, value)


def _gauss_at_one(a: Expr, b: Expr, c: Expr) -> Expr:
    """Return Γ(c) Γ(c-a-b) / (Γ(c-a) Γ(c-b)), Gauss's theorem; infinity if c-a-b is not positive."""
    gap = c - a - b
    converges = gap > 0
    is_zero = _is_pole(c - a) | _is_pole(c - b)
    regular = converges & ~is_zero
    total, rest, first, second = (where(regular, x, 1) for x in (c, gap, c - a, c - b))
    sign = _sign_of_gamma(total) * _sign_of_gamma(first) * _sign_of_gamma(second)
    value = sign * exp(lgamma(total) + lgamma(rest) - lgamma(first) - lgamma(second))
    grown = _sign_of_gamma(c) * _sign_of_gamma(a) * _sign_of_gamma(b) * math.inf
    return where(converges, where(is_zero, 0, value), grown)


def _gauss_series(a: Expr, b: Expr, c: Expr, x: Expr, with_slopes: bool) -> tuple[Expr, Expr]:
    """Return the sum of the series and its derivative along `x`. Convergence is as in `_kummer_series`."""
    least = _tolerance(x)

    def condition(k: Expr, term: Expr, size: Expr, reach: Expr, *rest: Expr) -> Expr:
        _, _, a, b, c, _ = rest
        # No element has converged before its parameters are positive.
        early = (k < 1 - a) | (k < 1 - b) | (k < 1 - c)
        return (((k + 1) * size > least * reach) | early) & (k < _MAX_ITERATIONS)

    def body(k: Expr, term: Expr, size: Expr, reach: Expr, *rest: Expr) -> list[Expr]:
        total, slope, a, b, c, x = rest
        over = (c + k) * (k + 1)
        by = where(over == 0, 0, 1 / where(over == 0, 1, over))
        coefficient = term * (a + k) * (b + k) * by
        term = coefficient * x
        total = total + term
        if with_slopes:
            size = size * maximum(absolute(a + k), 1) * maximum(absolute(b + k), 1) * absolute(by * x)
            reach = maximum(reach, size)
        else:
            size, reach = absolute(term), absolute(total)
        return [k + 1, term, size, reach, total, slope + (k + 1) * coefficient, a, b, c, x]

    one, zero = x.full_like(1), x.full_like(0)
    start = [zero, one, one, one, one, zero, a, b, c, x]
    _, _, size, reach, total, slope, *_ = while_any("series", start, condition, body)
    return where(size > least * reach, math.nan, total), slope


def _gauss_steps(
    a: Expr, b: Expr, c: Expr, away: Expr, value: Expr, slope: Expr, with_slopes: bool
) -> tuple[Expr, Expr]:
    """Continue the function from its value and slope at 1/2 to the distance `away` from 1.

    Return the value, and the power of two by which it was scaled down. A Taylor series around a point at distance
    `left` from 1 is used for a step of half that distance. Its terms, multiplied by powers of the step, follow from the
    two previous terms by the differential equation of the function.
    """
    least = _tolerance(away)
    fewest = 1 - math.log2(least) if with_slopes else 0.0  # terms of a power series at half its radius of convergence
    large, small = 2.0**_SCALE_BITS, 2.0**-_SCALE_BITS

    def condition(*state: Expr) -> Expr:
        left, total, away, iterations = state[1], state[5], state[-2], state[-1]
        return (left > away) & (absolute(total) < math.inf) & (iterations < _MAX_ITERATIONS)

    def body(*state: Expr) -> list[Expr]:
        n, left, h, before, here, total, moved, size, doublings, a, b, c, away, iterations = state
        share, center = h / left, 1 - left
        bend = (1 - 2 * center) * n + c - (a + b + 1) * center
        ahead = (n + a) * (n + b) * share * h * before - bend * (n + 1) * share * here
        ahead = ahead / (center * (n + 2) * (n + 1))
        n = n + 1
        total, moved = total + ahead, moved + (n + 1) * ahead
        size = maximum(size, absolute(total))
        converged = ((n + 1) * (absolute(ahead) + absolute(here)) <= least * size) & (n >= fewest)
        # The next step covers half of the remaining distance, or all of it.
        arrives = converged & (h >= left - away)
        new_left = where(arrives, away, where(converged, left - h, left))
        new_h = where(converged, minimum(new_left / 2, new_left - away), h)
        grown = converged & (size > large)
        scale = where(grown, small, size.full_like(1))
        doublings = where(grown, doublings + _SCALE_BITS, doublings)
        value = total * scale
        first = moved * scale / where(h == 0, 1, h) * new_h
        before, here, moved = (where(converged, y, z) for y, z in ((value, here), (first, ahead), (first, moved)))
        size = where(converged, absolute(value) + absolute(first), size)
        total = where(converged & ~arrives, value + first, value)
        n = where(converged, 0, n)
        return [n, new_left, new_h, before, here, total, moved, size, doublings, a, b, c, away, iterations + 1]

    half, zero = away.full_like(0.5), away.full_like(0)
    h = minimum(half / 2, half - away)
    first = slope * h
    size = absolute(value) + absolute(first)
    start = [zero, half, h, value, first, value + first, first, size, zero, a, b, c, away, zero]
    _, left, _, _, _, total, _, _, doublings, *_ = while_any("steps", start, condition, body)
    return where((left > away) & (absolute(total) < math.inf), math.nan, total), doublings
