"""The hypergeometric functions of Kummer and of Gauss: sums in which each term is a multiple of the one before it.

Both are brought to an argument that is not negative, where terms do not cancel; then the sum is followed until every
element of one device's piece has settled. Of a large argument Kummer's function has an expansion of its own (DLMF
13.7). That of Gauss is summed up to 1/2, and from there on to its singularity at 1 by Taylor series, each around the
end of the one before: no two terms of opposite sign and any size meet, whatever the parameters are.
"""

import math
from typing import Any, final

import numpy as np

from shardwise.caches import registered_cache
from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.op import Hlo, NumpyArray
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.formula import (
    Expr,
    absolute,
    exp,
    floor,
    log,
    log1p,
    maximum,
    minimum,
    unary_function,
    where,
    while_any,
)
from shardwise.compiler.ops.special.gamma_erf import CompositeFunction, Lgamma, MultiOperandFunction
from shardwise.lazy import lazy_module

scipy = lazy_module("scipy")

lgamma = unary_function(Lgamma())

_FAR = 50.0  # from here on Kummer's function may be found from infinity
_FARTHEST = 1e30
_TURNS = 20000  # more than any element takes that settles at all
_DIGITS = 64  # binary places by which a sum that has grown is scaled down
_LOG_TWO = (0.693359375, -2.121944400546905827679e-4)  # log 2: multiples of the first part are exact


class _Parameters(CompositeFunction, MultiOperandFunction):
    """Of parameters, and of an argument `x`, which is the last operand."""


class _Slope(_Parameters):
    """A derivative along the parameter with number `along`. `found` is what is differentiated, in forward mode."""

    along: int

    def lower_wide(self, hlo: Hlo, *operands: Any) -> Any:
        program = _derivative(self, tuple(x.type for x in operands))
        _, slope = hlo.program(program, (*operands, hlo.constant(1, operands[self.along].type)))
        return slope


@registered_cache(maxsize=4096)
def _derivative(op: _Slope, types: tuple[ArrayType, ...]) -> Program:
    """Operands and a tangent of one of them → what is found, and its tangent."""
    transforms = installed.transforms
    program = transforms.rewrite(op.name, types, lambda *operands: [op.formula(*map(Expr, operands)).array])
    moving, _ = transforms.jvp(program, tuple(number == op.along for number in range(len(types))))
    return transforms.inline(moving)


@final
@record
class Hyp1f1(_Parameters):
    """Kummer's function: the sum of (a)ₖ xᵏ / (b)ₖ k! over all k, where (a)ₖ is a (a + 1) … (a + k - 1)."""

    name = "hyp1f1"
    arity = 3

    def partial_derivative(self, number: int, *operands: Expr) -> Expr:
        a, b, x = operands
        if number == 2:
            return a / b * Expr(self((a + 1).array, (b + 1).array, x.array))
        return Expr(Hyp1f1Slope(number)(a.array, b.array, x.array))

    def formula(self, *operands: Expr) -> Expr:
        return _kummer(*operands, with_slopes=False)

    def numpy_function(self, a: NumpyArray, b: NumpyArray, x: NumpyArray) -> Any:
        """As scipy's, which is infinite where a is 0 and b a pole: there the sum has one term."""
        return np.where(a == 0, np.where(np.isnan(b) | np.isnan(x), np.nan, 1), scipy.special.hyp1f1(a, b, x))


@final
@record
class Hyp1f1Slope(_Slope):
    """The derivative of `hyp1f1` along a (0) or b (1)."""

    name = "hyp1f1_slope"
    arity = 3
    nondifferentiable = (0, 1, 2)
    nondifferentiable_reason = "has no derivative of its own: hyp1f1 can be differentiated along a and b once"
    along: int

    def formula(self, *operands: Expr) -> Expr:
        return _kummer(*operands, with_slopes=True)

    def numpy_function(self, a: NumpyArray, b: NumpyArray, x: NumpyArray) -> Any:
        """Term by term, of arguments that are not negative: of others along exp(x) hyp1f1(b - a, b, -x)."""
        b, turned, y = b.astype(np.float64), x < 0, np.abs(x).astype(np.float64)
        p = np.where(turned, b - a, a)
        by_p = np.where(turned, -1 if self.along == 0 else 1, 1 - self.along)
        slope = _sum_of_slopes([(p, by_p)], [(b, self.along), (np.ones_like(b), 0)], y)
        return np.where(turned, np.exp(-y), 1) * slope


@final
@record
class Hyp2f1(_Parameters):
    """Gauss's function: the sum of (a)ₖ (b)ₖ xᵏ / (c)ₖ k! over all k, continued to all x below 1."""

    name = "hyp2f1"
    arity = 4

    def partial_derivative(self, number: int, *operands: Expr) -> Expr:
        a, b, c, x = operands
        if number == 3:
            return a * b / c * Expr(self((a + 1).array, (b + 1).array, (c + 1).array, x.array))
        return Expr(Hyp2f1Slope(number)(a.array, b.array, c.array, x.array))

    def formula(self, *operands: Expr) -> Expr:
        return _gauss(*operands, with_slopes=False)

    def numpy_function(self, a: NumpyArray, b: NumpyArray, c: NumpyArray, x: NumpyArray) -> Any:
        """As scipy's; but from 1 on, where it has no value, it is infinite if its sum does not end."""
        ends = ((a <= 0) & (a == np.floor(a))) | ((b <= 0) & (b == np.floor(b)))
        return np.where((x > 1) & ~ends & ~np.isnan(a + b + c), np.inf, scipy.special.hyp2f1(a, b, c, x))


@final
@record
class Hyp2f1Slope(_Slope):
    """The derivative of `hyp2f1` along a (0), b (1) or c (2)."""

    name = "hyp2f1_slope"
    arity = 4
    nondifferentiable = (0, 1, 2, 3)
    nondifferentiable_reason = "has no derivative of its own: hyp2f1 can be differentiated along a, b and c once"
    along: int

    def formula(self, *operands: Expr) -> Expr:
        return _gauss(*operands, with_slopes=True)

    def numpy_function(self, a: NumpyArray, b: NumpyArray, c: NumpyArray, x: NumpyArray) -> Any:
        """Term by term, of arguments that are not negative: of others along (1 - x)^-a hyp2f1(a, c - b, c, x/(x-1))."""
        a, b, c = (y.astype(np.float64) for y in (a, b, c))
        turned, y = x < 0, np.where(x < 0, x / (x - 1), np.where(x < 1, x, np.nan)).astype(np.float64)
        q, by_q = np.where(turned, c - b, b), np.where(turned, (0, -1, 1)[self.along], self.along == 1)
        above, below = [(a, int(self.along == 0)), (q, by_q)], [(c, int(self.along == 2)), (np.ones_like(c), 0)]
        slope = _sum_of_slopes(above, below, y)
        if self.along == 0:
            whole = scipy.special.hyp2f1(*(np.asarray(z, float) for z in (a, q, c, y)))
            slope = slope - np.where(turned, np.log1p(-x), 0) * whole
        return np.where(turned, (1 - np.minimum(x, 0)) ** -a, 1) * slope


def _sum_of_slopes(above: Any, below: Any, y: NumpyArray) -> NumpyArray:
    """The slope of the sum of products of (p)ₖ over products of (q)ₖ times yᵏ, by the slopes of each `p` and `q`."""
    term, moved, total = np.ones_like(y), np.zeros_like(y), np.zeros_like(y)
    for k in range(_TURNS):
        ratio, rate = y, np.zeros_like(y)
        for p, slope in above:
            ratio, rate = ratio * (p + k), rate * (p + k) + ratio * slope
        for q, slope in below:
            ratio, rate = ratio / (q + k), rate / (q + k) - ratio * slope / (q + k) ** 2
        moved, term = moved * ratio + term * rate, term * ratio
        total = total + moved
        if k > 20 and not np.any(np.abs(moved) > 1e-17 * np.abs(total)):  # what is no number has settled, too
            break
    return total


def _precision(x: Expr) -> float:
    """What is left out: less than the last digit of derivatives, whose terms are some times as large."""
    return float(np.finfo(x.dtype).eps) / 64


def _is_whole(x: Expr) -> Expr:
    """0, -1, -2 and so on: where a sum ends, and where the gamma function has its poles."""
    return (x <= 0) & (x == floor(x))


def _sign_of_gamma(x: Expr) -> Expr:
    down = floor(x)
    return where((x < 0) & (down != 2 * floor(down / 2)), x.full_like(-1), 1)


def _scaled_back(log_factor: Expr, doublings: Expr) -> Expr:
    """A factor times a power of two: either may be out of range where their product is not."""
    first, rest = (doublings * part for part in _LOG_TWO)
    return exp(log_factor + first + rest)


def _kummer(a: Expr, b: Expr, x: Expr, *, with_slopes: bool) -> Expr:
    pole = _is_whole(b)
    ends = _is_whole(a) & (~pole | (a >= b))  # before it divides by zero
    inside = (absolute(x) < math.inf) & (absolute(a) < math.inf) & (absolute(b) < math.inf)
    inside = inside & (~pole if with_slopes else ~pole | ends)
    a0, b0, x0 = where(inside, a, 1), where(inside, b, 1), where(inside, x, 0)
    turned = (x0 < 0) & ~_is_whole(b0)
    p = where(turned, b0 - a0, a0)
    y = where(turned, -x0, x0)
    far = (y > _FAR) & (y > 2 * (absolute(p) + 1) * (absolute(b0 - p) + 1)) & ~_is_whole(p) & ~_is_whole(b0)
    # Either times exp(-y) where the argument was negative.
    total, doublings = _kummer_series(p, b0, where(far, 1, y), with_slopes)
    near = total * _scaled_back(where(turned, -y, 0), doublings)
    p1, b1, y1 = where(far, p, 1.5), where(far, b0, 1), where(far, y, _FAR)
    power = lgamma(b1) - lgamma(p1) + (p1 - b1) * log(y1)
    outer = _sign_of_gamma(b1) * _sign_of_gamma(p1) * exp(where(turned, power, power + y1))
    found = where(far, outer * _kummer_expansion(p1, b1, y1, with_slopes), near)
    if with_slopes:
        return found * where(inside, x0.full_like(1), math.nan)
    known = (a == a) & (b == b) & (x == x)
    found = where(inside, found, where(known & pole & ~ends, math.inf, x0.full_like(math.nan)))
    # At the ends: it grows like exp(x), or like a power of -x.
    at_end = known & ~pole & ~_is_whole(a) & (absolute(a) < math.inf) & (absolute(b) < math.inf)
    upper = _sign_of_gamma(a) * _sign_of_gamma(b) * math.inf
    found = where(at_end & (x == math.inf), upper, found)
    return where(at_end & (x == -math.inf) & (a > 0), 0, found)


def _kummer_series(p: Expr, b: Expr, y: Expr, with_slopes: bool) -> tuple[Expr, Expr]:
    """The sum, and by how many powers of two it has been scaled down.

    It has settled when terms are small beside it; with slopes when what bounds these is small beside its largest.
    """
    least = _precision(y)
    large, small = 2.0**_DIGITS, 2.0**-_DIGITS

    def goes_on(k: Expr, term: Expr, size: Expr, reach: Expr, *rest: Expr) -> Expr:
        _, _, p, b, _ = rest
        # No element has settled before its parameters are positive.
        return ((size > least * reach) | (k < 1 - b) | (k < 1 - p)) & (k < _TURNS)

    def step(k: Expr, term: Expr, size: Expr, reach: Expr, *rest: Expr) -> list[Expr]:
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
        doublings = where(grown, doublings + _DIGITS, doublings)
        return [k + 1, term * scale, size * scale, reach * scale, total * scale, doublings, p, b, y]

    one, zero = y.full_like(1), y.full_like(0)
    _, _, size, reach, total, doublings, *_ = while_any(
        "series", [zero, one, one, one, one, zero, p, b, y], goes_on, step
    )
    return where(size > least * reach, math.nan, total), doublings


def _kummer_expansion(p: Expr, b: Expr, y: Expr, with_slopes: bool) -> Expr:
    """1 + (1-p)(b-p)/y + (1-p)(2-p)(b-p)(b-p+1)/2y² + …, as long as terms get smaller."""
    least = _precision(y)

    def goes_on(k: Expr, term: Expr, size: Expr, total: Expr, p: Expr, b: Expr, y: Expr) -> Expr:
        return size > least * absolute(total)

    def step(k: Expr, term: Expr, size: Expr, total: Expr, p: Expr, b: Expr, y: Expr) -> list[Expr]:
        first, second, below = k + 1 - p, k + b - p, (k + 1) * y
        bound = maximum(absolute(first), 1) * maximum(absolute(second), 1) / below
        kept = bound < 1
        term = where(kept, term * first * second / below, 0)
        size = where(kept, size * bound, 0) if with_slopes else absolute(term)
        return [k + 1, term, size, total + term, p, b, y]

    one, zero = y.full_like(1), y.full_like(0)
    return while_any("expansion", [zero, one, one, one, p, b, y], goes_on, step)[3]


def _gauss(a: Expr, b: Expr, c: Expr, x: Expr, *, with_slopes: bool) -> Expr:
    pole = _is_whole(c)
    less, more = where(a < b, a, b), where(a < b, b, a)
    # A sum that ends is taken as it is, for any x. With slopes it is never so: those do not end.
    last = where(_is_whole(more), more, less)
    ends = x != x if with_slopes else _is_whole(last) & (~pole | (last >= c))
    limited = (absolute(a) < math.inf) & (absolute(b) < math.inf) & (absolute(c) < math.inf) & (absolute(x) < math.inf)
    inside = limited & (ends | (~pole & (x < 1)))
    p, q, r, y = (where(inside, given, other) for given, other in ((less, 1), (more, 1), (c, 2.5), (x, 0)))
    ends = ends & inside
    # Of a negative x: (1-x)^-a times the function of a, c-b, c and x/(x-1), which is 1/(1-x) away from 1.
    turned = (y < 0) & ~ends
    short = where(ends, 0, y)
    log_away = log1p(-short)
    log_away = where(turned, -log_away, log_away)
    away = where(turned, 1 / (1 - short), 1 - short)
    z = where(turned, short / (short - 1), short)
    power = where(turned, p, 0)
    q = where(turned, r - q, q)
    # Where its sum ends then: (1-z)^(c-a-b) times the function of c-a, c-b, c and z. Without it, if c-a-b is positive,
    # what vanishes at 1 would be the difference of what does not.
    excess = r - p - q
    mirrored = (_is_whole(r - p) | _is_whole(r - q)) & (excess > 0) & ~ends
    power = where(mirrored, power + excess, power)
    p, q = where(mirrored, r - p, p), where(mirrored, r - q, q)
    total, slope = _gauss_series(p, q, r, where(ends, y, minimum(z, 0.5)), with_slopes)
    onwards = (z > 0.5) & ~ends
    further, doublings = _gauss_steps(p, q, r, where(onwards, away, 0.5), total, slope, with_slopes)
    found = where(onwards, further, total) * _scaled_back(power * log_away, where(onwards, doublings, 0))
    at_one = limited & ~pole & ~ends & (x == 1)
    found = where(at_one, _gauss_at_one(a, b, c), found)
    if with_slopes:
        return found * where(inside | at_one, y.full_like(1), math.nan)
    known = (a == a) & (b == b) & (c == c) & (x == x)
    found = where(inside | at_one, found, where(known, math.inf, y.full_like(math.nan)))
    return where(limited & (x == 0), 1, found)


def _gauss_at_one(a: Expr, b: Expr, c: Expr) -> Expr:
    """By gamma functions: of c and c-a-b over those of c-a and c-b; where c-a-b is not positive, infinite."""
    gap = c - a - b
    settles = gap > 0
    none = _is_whole(c - a) | _is_whole(c - b)
    above = settles & ~none
    whole, rest, first, second = (where(above, x, 1) for x in (c, gap, c - a, c - b))
    sign = _sign_of_gamma(whole) * _sign_of_gamma(first) * _sign_of_gamma(second)
    value = sign * exp(lgamma(whole) + lgamma(rest) - lgamma(first) - lgamma(second))
    grown = _sign_of_gamma(c) * _sign_of_gamma(a) * _sign_of_gamma(b) * math.inf
    return where(settles, where(none, 0, value), grown)


def _gauss_series(a: Expr, b: Expr, c: Expr, x: Expr, with_slopes: bool) -> tuple[Expr, Expr]:
    """The sum, and its derivative along `x`; settled as Kummer's."""
    least = _precision(x)

    def goes_on(k: Expr, term: Expr, size: Expr, reach: Expr, *rest: Expr) -> Expr:
        _, _, a, b, c, _ = rest
        # No element has settled before its parameters are positive.
        early = (k < 1 - a) | (k < 1 - b) | (k < 1 - c)
        return (((k + 1) * size > least * reach) | early) & (k < _TURNS)

    def step(k: Expr, term: Expr, size: Expr, reach: Expr, *rest: Expr) -> list[Expr]:
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
    _, _, size, reach, total, slope, *_ = while_any("series", start, goes_on, step)
    return where(size > least * reach, math.nan, total), slope


def _gauss_steps(
    a: Expr, b: Expr, c: Expr, away: Expr, value: Expr, slope: Expr, with_slopes: bool
) -> tuple[Expr, Expr]:
    """The function `away` from 1, by its value and slope at 1/2, and by how many powers of two it was scaled down.

    Around a point that is `left` from 1, Taylor's series is good for half of that. Its terms, from the equation that
    the function solves, with the step already multiplied in: each follows from the two before it.
    """
    least = _precision(away)
    fewest = 1 - math.log2(least) if with_slopes else 0.0  # of a power series at half its radius
    large, small = 2.0**_DIGITS, 2.0**-_DIGITS

    def goes_on(*state: Expr) -> Expr:
        left, total, away, turns = state[1], state[5], state[-2], state[-1]
        return (left > away) & (absolute(total) < math.inf) & (turns < _TURNS)

    def step(*state: Expr) -> list[Expr]:
        n, left, h, before, here, total, moved, size, doublings, a, b, c, away, turns = state
        share, center = h / left, 1 - left
        bend = (1 - 2 * center) * n + c - (a + b + 1) * center
        ahead = (n + a) * (n + b) * share * h * before - bend * (n + 1) * share * here
        ahead = ahead / (center * (n + 2) * (n + 1))
        n = n + 1
        total, moved = total + ahead, moved + (n + 1) * ahead
        size = maximum(size, absolute(total))
        settled = ((n + 1) * (absolute(ahead) + absolute(here)) <= least * size) & (n >= fewest)
        # The next point: from there to half of what is left, or to the end.
        arrives = settled & (h >= left - away)
        new_left = where(arrives, away, where(settled, left - h, left))
        new_h = where(settled, minimum(new_left / 2, new_left - away), h)
        grown = settled & (size > large)
        scale = where(grown, small, size.full_like(1))
        doublings = where(grown, doublings + _DIGITS, doublings)
        value = total * scale
        first = moved * scale / where(h == 0, 1, h) * new_h
        before, here, moved = (where(settled, y, z) for y, z in ((value, here), (first, ahead), (first, moved)))
        size = where(settled, absolute(value) + absolute(first), size)
        total = where(settled & ~arrives, value + first, value)
        n = where(settled, 0, n)
        return [n, new_left, new_h, before, here, total, moved, size, doublings, a, b, c, away, turns + 1]

    half, zero = away.full_like(0.5), away.full_like(0)
    h = minimum(half / 2, half - away)
    first = slope * h
    size = absolute(value) + absolute(first)
    start = [zero, half, h, value, first, value + first, first, size, zero, a, b, c, away, zero]
    _, left, _, _, _, total, _, _, doublings, *_ = while_any("steps", start, goes_on, step)
    return where((left > away) & (absolute(total) < math.inf), math.nan, total), doublings
