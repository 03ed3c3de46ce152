"""Distributions whose draws are a function of one uniform number each."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.compiler.ir.types import DType
from shardwise.compiler.ops import draws
from shardwise.compiler.ops.bitwise import And, BitcastConvert, Clz, Not, Or, ShiftLeft, ShiftRightLogical
from shardwise.compiler.ops.draws import mantissa_bits, uniform_between
from shardwise.compiler.ops.elementwise import Add, Compare, Convert, Div, Mul, Neg, Select, Sub, like
from shardwise.compiler.ops.operands import as_operand
from shardwise.compiler.ops.parts import Abs, Sign
from shardwise.compiler.ops.powers import Sqrt
from shardwise.compiler.ops.random import random_bits
from shardwise.compiler.ops.transcendental import Exp, Log, Log1p, Tan
from shardwise.random.draw import (
    Shape,
    converts_safely,
    draw,
    float_dtype,
    limits,
    one_of,
    parameter,
    shape_with,
    sizes,
)
from shardwise.random.keys import words


def _standard(name: str, sampler: Callable[..., Any], key: Any, shape: Any, dtype: Any, out_sharding: Any) -> Any:
    """Draws of a distribution without parameters."""
    kind, shape = float_dtype(name, dtype), sizes(name, shape)
    return draw(sampler, words(name, key), shape=shape, dtype=kind, out_sharding=out_sharding)


def _above(key: Any, low: float, shape: Shape, dtype: DType) -> Any:
    """Uniform floats from `low` to below 1."""
    unit = draws.uniform(key, shape, dtype)
    return uniform_between(unit, like(unit, low), like(unit, 1))


def exponential(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Waiting times, 1 on average.

    >>> jax.random.exponential(jax.random.key(0), (2,)).round(3)
    Array([2.95     , 3.8430002], dtype=float32)
    """
    return _standard("exponential", waits, key, shape, dtype, out_sharding)


def waits(key: Any, *, shape: Shape, dtype: DType) -> Any:
    """Waiting times."""
    return Neg()(Log1p()(Neg()(draws.uniform(key, shape, dtype))))


def laplace(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """The difference of two waiting times.

    >>> jax.random.laplace(jax.random.key(0), (2,)).round(3)
    Array([-2.2570002, -3.15     ], dtype=float32)
    """
    return _standard("laplace", _laplace, key, shape, dtype, out_sharding)


def _laplace(key: Any, *, shape: Shape, dtype: DType) -> Any:
    u = _above(key, -1 + float(limits(dtype).epsneg), shape, dtype)
    return Mul()(Sign()(u), Log1p()(Neg()(Abs()(u))))


def logistic(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers whose logistic function is uniform.

    >>> jax.random.logistic(jax.random.key(0), (2,)).round(3)
    Array([2.8960001, 3.8220003], dtype=float32)
    """
    return _standard("logistic", _logistic, key, shape, dtype, out_sharding)


def _logistic(key: Any, *, shape: Shape, dtype: DType) -> Any:
    u = _above(key, float(limits(dtype).tiny), shape, dtype)
    return Sub()(Log()(u), Log1p()(Neg()(u)))


def cauchy(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """The quotient of two normal numbers.

    >>> jax.random.cauchy(jax.random.key(0), (2,)).round(3)
    Array([ 6.0270004, 14.838    ], dtype=float32)
    """
    return _standard("cauchy", _cauchy, key, shape, dtype, out_sharding)


def _cauchy(key: Any, *, shape: Shape, dtype: DType) -> Any:
    u = _above(key, float(limits(dtype).eps), shape, dtype)
    return Tan()(Mul()(like(u, math.pi), Sub()(u, like(u, 0.5))))


def gumbel(key: Any, shape: Any = (), dtype: Any = None, mode: str | None = None, *, out_sharding: Any = None) -> Any:
    """The largest of many waiting times, less the logarithm of how many.

    By `mode`, of the chance of small draws: "low" (as None) is exact to about 1e-7 in f32, "high" and "highest" draw
    twice the bits.

    >>> jax.random.gumbel(jax.random.key(0), (2,)).round(3)
    Array([2.923    , 3.8330002], dtype=float32)
    """
    kind, shape = float_dtype("gumbel", dtype), sizes("gumbel", shape)
    one_of("gumbel", "mode", mode, (None, "low", "high", "highest"))
    key = words("gumbel", key)
    return draw(gumbels, key, shape=shape, dtype=kind, mode=mode or "low", out_sharding=out_sharding)


def gumbels(key: Any, *, shape: Shape, dtype: DType, mode: str | None = None) -> Any:
    """Gumbel numbers."""
    if mode in (None, "low"):
        return Neg()(Log()(Neg()(Log()(_above(key, float(limits(dtype).tiny), shape, dtype)))))
    if mode == "highest" and dtype == np.float32:
        return _finest_gumbels(key, shape)
    pair = draws.uniform(key, (2, *shape), dtype)
    high, low = pair[0], pair[1]
    finer = high + 2.0 ** -mantissa_bits(dtype) * low + float(limits(dtype).tiny)
    x = Select()(Compare("GE")(high, like(high, 0.5)), high, finer)
    return Neg()(Log()(Neg()(Log1p()(Neg()(x)))))


def _finest_gumbels(key: Any, shape: Shape) -> Any:
    """Gumbel numbers of 64 bits each, of which the first that is one is where a float begins."""
    pair = random_bits(key, (2, *shape), 32)
    high, low = pair[0], pair[1]
    is_small = Compare("LT")(high, like(high, 2**31))
    # 1 less the number, in fixed point: both words inverted, plus one in the last place.
    carries = Convert(high.type.dtype)(Compare("EQ")(low, like(low, 0)))
    flipped = Add()(Not()(high), carries), Add()(Not()(low), like(low, 1))
    x = _fraction(*(Select()(is_small, word, other) for word, other in zip((high, low), flipped, strict=True)))
    by_small, by_large = Log1p()(Neg()(x)), Log()(x)
    return Neg()(Log()(Neg()(Select()(is_small, by_small, by_large))))


def _fraction(high: Any, low: Any) -> Any:
    """64 bits after the point as f32, rounded down."""
    zeros, more = Clz()(high), Clz()(low)
    is_low = Compare("EQ")(zeros, like(zeros, 32))
    rest = Select()(is_low, ShiftLeft()(low, more), ShiftRightLogical()(low, Sub()(like(zeros, 32), zeros)))
    digits = ShiftRightLogical()(Or()(ShiftLeft()(high, zeros), rest), like(high, 8))
    digits = And()(digits, like(digits, 2**23 - 1))
    places = Select()(is_low, Add()(more, like(more, 32)), zeros)
    exponent = ShiftLeft()(Sub()(like(places, 126), places), like(places, 23))
    exponent = And()(exponent, like(exponent, 2**30 - 2**22))
    return BitcastConvert(np.dtype(np.float32))(Or()(exponent, digits))


def pareto(key: Any, b: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers above 1 that are above x with chance x to the power of `-b`.

    >>> jax.random.pareto(jax.random.key(0), 2.0, (2,)).round(3)
    Array([4.3710003, 6.833    ], dtype=float32)
    """
    kind, shape = float_dtype("pareto", dtype), shape_with("pareto", shape, b)
    converts_safely("pareto", kind, b)
    return draw(_pareto, words("pareto", key), b, shape=shape, dtype=kind, out_sharding=out_sharding)


def _pareto(key: Any, b: Any, *, shape: Shape, dtype: DType) -> Any:
    return Exp()(Div()(waits(key, shape=shape, dtype=dtype), parameter(as_operand(b), shape, dtype)))


def rayleigh(key: Any, scale: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """The length of a vector of two normal numbers, times `scale`.

    >>> jax.random.rayleigh(jax.random.key(0), 1.0, (2,)).round(3)
    Array([0.328, 0.208], dtype=float32)
    """
    kind, shape = float_dtype("rayleigh", dtype), shape_with("rayleigh", shape, scale)
    converts_safely("rayleigh", kind, scale)
    return draw(_rayleigh, words("rayleigh", key), scale, shape=shape, dtype=kind, out_sharding=out_sharding)


def _rayleigh(key: Any, scale: Any, *, shape: Shape, dtype: DType) -> Any:
    logs = Log()(draws.uniform(key, shape, dtype))
    return Mul()(parameter(as_operand(scale), shape, dtype), Sqrt()(Mul()(logs, like(logs, -2))))


def weibull_min(key: Any, scale: Any, concentration: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Waiting times to the power of 1 by `concentration`, times `scale`.

    >>> jax.random.weibull_min(jax.random.key(0), 1.0, 2.0, (2,)).round(3)
    Array([1.718, 1.96 ], dtype=float32)
    """
    kind, shape = float_dtype("weibull_min", dtype), sizes("weibull_min", shape)
    return draw(_weibull, words("weibull_min", key), scale, concentration, shape=shape, dtype=kind)


def _weibull(key: Any, scale: Any, concentration: Any, *, shape: Shape, dtype: DType) -> Any:
    return waits(key, shape=shape, dtype=dtype) ** (1.0 / as_operand(concentration)) * as_operand(scale)


def triangular(
    key: Any, left: Any, mode: Any, right: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None
) -> Any:
    """Numbers from `left` to `right`, of which those at `mode` are the likeliest.

    >>> jax.random.triangular(jax.random.key(0), 0.0, 1.0, 2.0, (2,)).round(3)
    Array([1.6760001, 1.7930001], dtype=float32)
    """
    kind, shape = float_dtype("triangular", dtype), shape_with("triangular", shape, left, mode, right)
    converts_safely("triangular", kind, left, mode, right)
    key = words("triangular", key)
    return draw(_triangular, key, left, mode, right, shape=shape, dtype=kind, out_sharding=out_sharding)


def _triangular(key: Any, left: Any, mode: Any, right: Any, *, shape: Shape, dtype: DType) -> Any:
    left, mode, right = (parameter(as_operand(x), shape, dtype) for x in (left, mode, right))
    u = draws.uniform(key, shape, dtype)
    rising = left + Sqrt()(u * (right - left) * (mode - left))
    falling = right - Sqrt()((1 - u) * (right - left) * (right - mode))
    return Select()(Compare("LT")(u, (mode - left) / (right - left)), rising, falling)
