"""Elementwise special functions: the error function and its kin, the gamma function's logarithm and its derivatives."""

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import scipy  # loads `scipy.special` once it is asked for: a third of a second that few programs need

from shardwise.compiler.ir.op import Hlo, NumpyArray
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise import FLOATS, Mul, Neg, Unary, compared, like
from shardwise.compiler.ops.powers import Square
from shardwise.compiler.ops.transcendental import Exp


class Special(Unary):
    """A function of floats that is lowered by CHLO, the library of functions beside StableHLO."""

    takes = FLOATS
    dialect = "chlo"

    def lower(self, hlo: Hlo, x: Any) -> Any:
        """Floats of 8 bits go through f32: CHLO has no approximations for them."""
        if x.type.dtype.itemsize > 1:
            return self.lower_wide(hlo, x)
        wide = hlo.op("stablehlo.convert", (x,), x.type.with_dtype(np.float32))
        return hlo.op("stablehlo.convert", (self.lower_wide(hlo, wide),), x.type)

    def lower_wide(self, hlo: Hlo, x: Any) -> Any:
        return hlo.op(f"chlo.{self.hlo_name}", (x,), x.type)


@final
@dataclass(frozen=True)
class Erf(Special):
    """The error function."""

    name = hlo_name = "erf"

    def meaning(self, x: NumpyArray) -> Any:
        return scipy.special.erf(x)

    def tangent(self, dx: Any, x: Any, y: Any) -> Any:
        return Mul()(dx, _bell(x, 2 / math.sqrt(math.pi)))


@final
@dataclass(frozen=True)
class Erfc(Special):
    """One minus the error function, exact where that is close to one."""

    name = hlo_name = "erfc"

    def meaning(self, x: NumpyArray) -> Any:
        return scipy.special.erfc(x)

    def tangent(self, dx: Any, x: Any, y: Any) -> Any:
        return Mul()(dx, _bell(x, -2 / math.sqrt(math.pi)))


@final
@dataclass(frozen=True)
class ErfInv(Special):
    """The number whose error function is the element."""

    name = hlo_name = "erf_inv"

    def meaning(self, x: NumpyArray) -> Any:
        return scipy.special.erfinv(x)

    def tangent(self, dx: Any, x: Any, y: Any) -> Any:
        return Mul()(dx, Mul()(like(y, math.sqrt(math.pi) / 2), Exp()(Square()(y))))


@final
@dataclass(frozen=True)
class Lgamma(Special):
    """The logarithm of the magnitude of the gamma function; infinite at either infinity."""

    name = hlo_name = "lgamma"

    def meaning(self, x: NumpyArray) -> Any:
        return np.where(np.isinf(x), np.inf, scipy.special.gammaln(x))

    def tangent(self, dx: Any, x: Any, y: Any) -> Any:
        return Mul()(dx, Digamma()(x))


@final
@dataclass(frozen=True)
class Digamma(Special):
    """The derivative of `lgamma`; NaN at its poles."""

    name = hlo_name = "digamma"

    def meaning(self, x: NumpyArray) -> Any:
        return np.where(x == 0, np.nan, scipy.special.digamma(x))

    def tangent(self, dx: Any, x: Any, y: Any) -> Any:
        return Mul()(dx, Polygamma(1)(x))


@final
@dataclass(frozen=True)
class Polygamma(Special):
    """The derivative of `digamma` of this order, from 1; where it is infinite with a sign that depends on the side,
    NaN.
    """

    name = "polygamma"
    order: int

    def out_type(self, *types: ArrayType) -> ArrayType:
        if self.order < 1:
            raise TypeError(f"polygamma: the order is 1 or more, not {self.order}; of order 0 it is digamma")
        return super().out_type(*types)

    def tangent(self, dx: Any, x: Any, y: Any) -> Any:
        return Mul()(dx, Polygamma(self.order + 1)(x))

    def lower_wide(self, hlo: Hlo, x: Any) -> Any:
        found = hlo.op("chlo.polygamma", (hlo.constant(self.order, x.type), x), x.type)
        at_infinity = compared(hlo, "EQ", x, hlo.constant(np.inf, x.type))  # CHLO gives NaN there
        return hlo.op("stablehlo.select", (at_infinity, hlo.constant(0, x.type), found), x.type)

    def meaning(self, x: NumpyArray) -> Any:
        is_torn = (x <= 0) & (x == np.floor(x)) & (self.order % 2 == 0)
        return np.where(is_torn, np.nan, scipy.special.polygamma(self.order, x))


def _bell(x: Any, height: float) -> Any:
    """`height · exp(-x²)`."""
    return Mul()(like(x, height), Exp()(Neg()(Square()(x))))
