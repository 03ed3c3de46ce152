"""Base classes of special functions; error functions, lgamma and its derivatives, zeta, xlogy, entr.

The other modules hold incomplete gamma and beta functions (`incomplete`), hypergeometric functions (`hypergeometric`)
and functions computed by Chebyshev approximations (`approximations`).
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np

from shardwise.base.caches import registered_cache
from shardwise.base.lazy import lazy_module
from shardwise.compiler.dtypes import numpy_carrier
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray, ignore_float_errors
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import add_tangents
from shardwise.compiler.ops.elementwise.base import FLOATS
from shardwise.compiler.ops.elementwise.expr import Expr, apply, where
from shardwise.compiler.ops.elementwise.powers import square
from shardwise.compiler.ops.elementwise.select import lower_compare
from shardwise.compiler.ops.elementwise.transcendental import exp, log, log1p
from shardwise.compiler.ops.elementwise.unary import Unary
from shardwise.compiler.trace.build import rewrite

scipy = lazy_module("scipy")  # importing scipy.special takes 290 ms, and only `reference` needs it


class SpecialFunction(Unary):
    """A special function of floats, lowered to CHLO."""

    accepts = FLOATS
    cheap_to_recompute = False  # most take hundreds of flops per element
    dialect = "chlo"
    min_itemsize: ClassVar[int] = 2  # floats with fewer bytes are computed in f32

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        x = operands[0]
        if x.type.dtype.itemsize >= self.min_itemsize:
            return self.lower_wide(hlo, *operands)
        wide = [hlo.op("stablehlo.convert", (y,), y.type.with_dtype(np.float32)) for y in operands]
        return hlo.op("stablehlo.convert", (self.lower_wide(hlo, *wide),), self.out_type(*(y.type for y in operands)))

    def lower_wide(self, hlo: Hlo, *operands: HloValue) -> Any:
        return hlo.op(f"chlo.{self.hlo_name}", operands, self.out_type(*(x.type for x in operands)))


class MultiOperandFunction(SpecialFunction):
    """A special function of several operands, differentiable along all operands but `nondifferentiable`."""

    arity = 2
    min_itemsize = 4
    nondifferentiable: ClassVar[tuple[int, ...]] = ()
    nondifferentiable_reason: ClassVar[str]

    def partial_derivative(self, number: int, *operands: Expr) -> Expr:
        """Return the partial derivative along the operand with index `number`."""
        raise self.missing_rule("partial_derivative")

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        total = None
        for index, tangent in enumerate(tangents):
            if tangent is not None:
                if index in self.nondifferentiable:
                    raise NotImplementedError(f"{self.name}: {self.nondifferentiable_reason}")
                term = Expr(tangent) * self.partial_derivative(index, *map(Expr, primals))
                total = add_tangents(total, term.array)
        return self(*primals), total

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        wide = [x.astype(numpy_carrier(x.dtype)) for x in operands]
        return np.asarray(self.numpy_function(*wide)).astype(operands[0].dtype)


class CompositeFunction(SpecialFunction):
    """A special function that is lowered as a program of other ops, in f32 or wider.

    A loop in that program runs until all elements of one device's shard have converged, without communication.
    """

    min_itemsize = 4

    def formula(self, *operands: Expr) -> Expr:
        """Return the result as an expression of ops."""
        raise self.missing_rule("formula")

    def lower_wide(self, hlo: Hlo, *operands: HloValue) -> Any:
        (result,) = hlo.program(_program(self, tuple(x.type for x in operands)), operands)
        return result


@registered_cache(maxsize=4096)
def _program(op: CompositeFunction, types: tuple[ArrayType, ...]) -> Program:
    return rewrite(op.name, types, lambda *operands: [op.formula(*map(Expr, operands)).array])


@final
@record
class Erf(SpecialFunction):
    """The error function."""

    name = hlo_name = "erf"
    cheap_to_recompute = True

    def numpy_function(self, x: NumpyArray) -> Any:
        return scipy.special.erf(x)

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * (2 / math.sqrt(math.pi) * exp(-square(x)))


@final
@record
class Erfc(SpecialFunction):
    """One minus the error function, accurate where the error function is close to one."""

    name = hlo_name = "erfc"
    cheap_to_recompute = True

    def numpy_function(self, x: NumpyArray) -> Any:
        return scipy.special.erfc(x)

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * (-2 / math.sqrt(math.pi) * exp(-square(x)))


@final
@record
class ErfInv(SpecialFunction):
    """The inverse of the error function."""

    name = hlo_name = "erf_inv"

    def numpy_function(self, x: NumpyArray) -> Any:
        return scipy.special.erfinv(x)

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * (math.sqrt(math.pi) / 2 * exp(square(y)))


@final
@record
class Lgamma(SpecialFunction):
    """The logarithm of the absolute value of the gamma function; infinite at both infinities."""

    name = hlo_name = "lgamma"

    def numpy_function(self, x: NumpyArray) -> Any:
        return np.where(np.isinf(x), np.inf, scipy.special.gammaln(x))

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * apply(Digamma(), x)


@final
@record
class Digamma(SpecialFunction):
    """The derivative of `lgamma`; NaN at its poles."""

    name = hlo_name = "digamma"

    def numpy_function(self, x: NumpyArray) -> Any:
        return np.where(x == 0, np.nan, scipy.special.digamma(x))

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * apply(Polygamma(), x.full_like(1), x)


@final
@record
class Polygamma(MultiOperandFunction):
    """The derivative of `digamma` at the second operand, of the order in the first.

    NaN at a pole whose sign differs on both sides. The order must be an integer from 0 to a million, else it is NaN.
    """

    name = hlo_name = "polygamma"
    nondifferentiable = (0,)
    nondifferentiable_reason = (
        "not differentiable with respect to the order m; differentiate along x, or use stop_gradient(m)"
    )

    def partial_derivative(self, number: int, *operands: Expr) -> Expr:
        m, x = operands
        return apply(self, m + 1, x)

    def lower_wide(self, hlo: Hlo, *operands: HloValue) -> Any:
        m, x = operands
        result = super().lower_wide(hlo, m, x)
        # CHLO returns NaN at infinity.
        vanishes = _and(
            hlo,
            lower_compare(hlo, "EQ", x, _constant(hlo, x, np.inf)),
            lower_compare(hlo, "GE", m, _constant(hlo, m, 1)),
        )
        result = _select(hlo, vanishes, _constant(hlo, x, 0), result)
        return _select(hlo, lower_compare(hlo, "LE", m, _constant(hlo, m, 1e6)), result, _constant(hlo, x, np.nan))

    def numpy_function(self, m: NumpyArray, x: NumpyArray) -> Any:
        is_order = (m >= 0) & (m == np.floor(m)) & (m <= 1e6)
        order = np.where(is_order, m, 1)
        result = np.where(order == 0, Digamma().numpy_function(x), scipy.special.polygamma(order, x))
        result = np.where((x == np.inf) & (order > 0), 0, result)
        is_odd_pole = (x <= 0) & (x == np.floor(x)) & (order % 2 == 0)
        return np.where(is_odd_pole | ~is_order, np.nan, result)


@final
@record
class Zeta(MultiOperandFunction):
    """The Hurwitz zeta function: the sum of (q + n)^-x over all integers n from 0; NaN for x below 1."""

    name = hlo_name = "zeta"

    def partial_derivative(self, number: int, *operands: Expr) -> Expr:
        """Differentiate the Euler-Maclaurin formula term by term along x."""
        x, q = operands
        if number == 1:
            return -x * apply(self, x + 1, q)
        total = x.full_like(0)
        for n in range(10):
            total = total - log(q + n) * exp(-x * log(q + n))
        w = q + 10
        power = exp(-x * log(w))
        total = total - w * power / (x - 1) * (log(w) + 1 / (x - 1)) - log(w) * power / 2
        product, inverses = x, 1 / x
        for j, bernoulli in enumerate((1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510), 1):
            power = power / w if j == 1 else power / (w * w)
            total = total + bernoulli / math.factorial(2 * j) * product * power * (inverses - log(w))
            product = product * (x + (2 * j - 1)) * (x + 2 * j)
            inverses = inverses + 1 / (x + (2 * j - 1)) + 1 / (x + 2 * j)
        return total

    def lower_wide(self, hlo: Hlo, *operands: HloValue) -> Any:
        x, q = operands
        one, zero, infinity = (_constant(hlo, x, number) for number in (1, 0, np.inf))
        # CHLO returns NaN at infinity and for large x, where only the first term counts.
        limit = _select(
            hlo, lower_compare(hlo, "GT", q, one), zero, _select(hlo, lower_compare(hlo, "LT", q, one), infinity, one)
        )
        result = _select(
            hlo, lower_compare(hlo, "GT", x, _constant(hlo, x, 1e30)), limit, super().lower_wide(hlo, x, q)
        )
        above_one = lower_compare(hlo, "GT", x, one)
        result = _select(hlo, _and(hlo, above_one, lower_compare(hlo, "EQ", q, infinity)), zero, result)
        # CHLO returns infinity for x below 1 if q is 0, -1, -2, ...
        converges = _and(hlo, lower_compare(hlo, "GE", x, one), lower_compare(hlo, "EQ", q, q))
        return _select(hlo, converges, result, _constant(hlo, x, np.nan))

    def numpy_function(self, x: NumpyArray, q: NumpyArray) -> Any:
        result = np.where((x > 1e30) & (q > 1), 0, scipy.special.zeta(x, q))
        return np.where((x >= 1) & (q == q), result, np.nan)


@final
@record
class Xlogy(CompositeFunction, MultiOperandFunction):
    """x log(y), but 0 where x is 0 and y is not NaN."""

    name = "xlogy"

    def partial_derivative(self, number: int, *operands: Expr) -> Expr:
        x, y = operands
        return x / y if number else log(y)

    def formula(self, *operands: Expr) -> Expr:
        x, y = operands
        return where((x == 0) & (y == y), 0, x * log(y))

    def numpy_function(self, x: NumpyArray, y: NumpyArray) -> Any:
        return scipy.special.xlogy(x, y)


@final
@record
class Xlog1py(CompositeFunction, MultiOperandFunction):
    """x log(1 + y), but 0 where x is 0 and y is not NaN."""

    name = "xlog1py"

    def partial_derivative(self, number: int, *operands: Expr) -> Expr:
        x, y = operands
        return x / (1 + y) if number else log1p(y)

    def formula(self, *operands: Expr) -> Expr:
        x, y = operands
        return where((x == 0) & (y == y), 0, x * log1p(y))

    def numpy_function(self, x: NumpyArray, y: NumpyArray) -> Any:
        return scipy.special.xlog1py(x, y)


@final
@record
class Entr(CompositeFunction):
    """-x log(x): 0 at 0, and -inf below it."""

    name = "entr"

    def formula(self, *operands: Expr) -> Expr:
        (x,) = operands
        return where(x < 0, -math.inf, where(x == 0, 0, -x * log(x)))

    def numpy_function(self, x: NumpyArray) -> Any:
        return scipy.special.entr(x)

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr:
        return dx * (-1 - log(x))


def _constant(hlo: Hlo, x: HloValue, number: float) -> Any:
    return hlo.constant(number, x.type.strong())


def _select(hlo: Hlo, condition: HloValue, x: HloValue, y: HloValue) -> Any:
    return hlo.op("stablehlo.select", (condition, x, y), x.type)


def _and(hlo: Hlo, x: HloValue, y: HloValue) -> Any:
    return hlo.op("stablehlo.and", (x, y), x.type)
