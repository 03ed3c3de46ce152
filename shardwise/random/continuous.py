"""Continuous distributions that are sampled by inverting their cumulative distribution function."""

import math
from typing import Any

import numpy as np

from shardwise.base.docstrings import documented
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import BitcastConvert, Clz, ShiftLeft, ShiftRightLogical
from shardwise.compiler.ops.elementwise.complex_parts import Abs, Sign
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.expr import Expr, apply, where
from shardwise.compiler.ops.elementwise.powers import Sqrt
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Exp, Log, Log1p, Tan, log, log1p
from shardwise.compiler.samplers import distributions
from shardwise.compiler.samplers.distributions import mantissa_bits, scale_uniform
from shardwise.compiler.samplers.prng import random_bits
from shardwise.random.families import FLOATS, PARAMETRIC
from shardwise.random.float_samples import sample_parametric, sample_standard
from shardwise.random.keys import single_key
from shardwise.random.sampling import (
    StaticShape,
    broadcast_parameter,
    canonical_shape,
    check_one_of,
    finfo,
    float_dtype,
    run_sampler,
)
from shardwise.typing import ArrayLike, DTypeLike, OutSharding, Shape


def _uniform_from(key: Array, low: float, shape: StaticShape, dtype: DType) -> Any:
    """Sample uniform floats from `low` (included) to 1 (excluded)."""
    unit = distributions.uniform(key, shape, dtype)
    return scale_uniform(unit, full_like(unit, low), full_like(unit, 1))


@documented(FLOATS)
def exponential(
    key: ArrayLike, shape: Shape = (), dtype: DTypeLike | None = None, *, out_sharding: OutSharding = None
) -> Array:
    """Sample from the exponential distribution with rate 1.

    Example:
        >>> jax.random.exponential(jax.random.key(0), (2,)).round(3)
        Array([2.95     , 3.8430002], dtype=float32)
    """
    return sample_standard("exponential", sample_exponential, key, shape, dtype, out_sharding)


def sample_exponential(key: Array, *, shape: StaticShape, dtype: DType) -> Any:
    """Sample from the exponential distribution with rate 1."""
    return -Log1p()(-distributions.uniform(key, shape, dtype))


@documented(FLOATS)
def laplace(
    key: ArrayLike, shape: Shape = (), dtype: DTypeLike | None = None, *, out_sharding: OutSharding = None
) -> Array:
    """Sample from the standard Laplace distribution, with density `exp(-|x|) / 2`.

    Example:
        >>> jax.random.laplace(jax.random.key(0), (2,)).round(3)
        Array([-2.2570002, -3.15     ], dtype=float32)
    """
    return sample_standard("laplace", _laplace, key, shape, dtype, out_sharding)


def _laplace(key: Array, *, shape: StaticShape, dtype: DType) -> Any:
    u = _uniform_from(key, -1 + float(finfo(dtype).epsneg), shape, dtype)
    return Sign()(u) * Log1p()(-Abs()(u))


@documented(FLOATS)
def logistic(
    key: ArrayLike, shape: Shape = (), dtype: DTypeLike | None = None, *, out_sharding: OutSharding = None
) -> Array:
    """Sample from the standard logistic distribution, whose cumulative distribution function is the logistic function.

    Example:
        >>> jax.random.logistic(jax.random.key(0), (2,)).round(3)
        Array([2.8960001, 3.8220003], dtype=float32)
    """
    return sample_standard("logistic", _logistic, key, shape, dtype, out_sharding)


def _logistic(key: Array, *, shape: StaticShape, dtype: DType) -> Any:
    u = _uniform_from(key, float(finfo(dtype).tiny), shape, dtype)
    return Log()(u) - Log1p()(-u)


@documented(FLOATS)
def cauchy(
    key: ArrayLike, shape: Shape = (), dtype: DTypeLike | None = None, *, out_sharding: OutSharding = None
) -> Array:
    """Sample from the standard Cauchy distribution.

    Example:
        >>> jax.random.cauchy(jax.random.key(0), (2,)).round(3)
        Array([ 6.0270004, 14.838    ], dtype=float32)
    """
    return sample_standard("cauchy", _cauchy, key, shape, dtype, out_sharding)


def _cauchy(key: Array, *, shape: StaticShape, dtype: DType) -> Any:
    u = _uniform_from(key, float(finfo(dtype).eps), shape, dtype)
    return Tan()(math.pi * (u - 0.5))


@documented(FLOATS)
def gumbel(
    key: ArrayLike,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
    mode: str | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample from the standard Gumbel distribution.

    Args:
        mode: "low" (the default), or "high" or "highest", which sample twice the bits. With "low" in f32, the
            probabilities of small samples have an error of about 1e-7.

    Raises:
        ValueError: if `key` is an array of keys, if a size in `shape` is negative, if `dtype` is not a floating-point
            dtype, or if `mode` is unknown.

    Example:
        >>> jax.random.gumbel(jax.random.key(0), (2,)).round(3)
        Array([2.923    , 3.8330002], dtype=float32)
    """
    dtype, shape = float_dtype("gumbel", dtype), canonical_shape("gumbel", shape)
    check_one_of("gumbel", "mode", mode, (None, "low", "high", "highest"))
    key = single_key("gumbel", key)
    return run_sampler(sample_gumbel, key, shape=shape, dtype=dtype, mode=mode or "low", out_sharding=out_sharding)


def sample_gumbel(key: Array, *, shape: StaticShape, dtype: DType, mode: str | None = None) -> Any:
    """Sample from the standard Gumbel distribution."""
    if mode in (None, "low"):
        return -Log()(-Log()(_uniform_from(key, float(finfo(dtype).tiny), shape, dtype)))
    if mode == "highest" and dtype == np.float32:
        return _gumbel_from_64_bits(key, shape)
    pair = distributions.uniform(key, (2, *shape), dtype)
    high, low = pair[0], pair[1]
    combined = high + 2.0 ** -mantissa_bits(dtype) * low + float(finfo(dtype).tiny)
    x = Select()(high >= 0.5, high, combined)
    return -Log()(-Log1p()(-x))


def _gumbel_from_64_bits(key: Array, shape: StaticShape) -> Any:
    """Sample from the Gumbel distribution, from uniform fixed-point numbers of 64 bits each."""
    pair = random_bits(key, (2, *shape), 32)
    high, low = Expr(pair[0]), Expr(pair[1])
    is_small = high < 2**31
    # 1 - x in fixed point is the two's complement of x.
    carry = apply(Convert(high.dtype), low == 0)
    x = _fixed_point_to_float(where(is_small, high, ~high + carry), where(is_small, low, ~low + 1))
    return (-log(-where(is_small, log1p(-x), log(x)))).array


def _fixed_point_to_float(high: Expr, low: Expr) -> Expr:
    """Convert a fixed-point number, 64 bits after the binary point, to f32, rounding down."""
    high_zeros, low_zeros = apply(Clz(), high), apply(Clz(), low)
    high_is_zero = high_zeros == 32
    from_low = where(high_is_zero, apply(ShiftLeft(), low, low_zeros), apply(ShiftRightLogical(), low, 32 - high_zeros))
    mantissa = apply(ShiftRightLogical(), apply(ShiftLeft(), high, high_zeros) | from_low, high.full_like(8))
    leading_zeros = where(high_is_zero, low_zeros + 32, high_zeros)
    exponent = apply(ShiftLeft(), 126 - leading_zeros, leading_zeros.full_like(23))
    bits = (exponent & (2**30 - 2**22)) | (mantissa & (2**23 - 1))
    return apply(BitcastConvert(np.dtype(np.float32)), bits)


@documented(PARAMETRIC)
def pareto(
    key: ArrayLike,
    b: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample from the Pareto distribution with minimum 1 and shape parameter `b`.

    A sample exceeds `x >= 1` with probability `x ** -b`.

    Args:
        b: the shape parameter, positive.

    Example:
        >>> jax.random.pareto(jax.random.key(0), 2.0, (2,)).round(3)
        Array([4.3710003, 6.833    ], dtype=float32)
    """
    return sample_parametric("pareto", _pareto, key, b, shape=shape, dtype=dtype, out_sharding=out_sharding)


def _pareto(key: Array, b: Array, *, shape: StaticShape, dtype: DType) -> Any:
    return Exp()(sample_exponential(key, shape=shape, dtype=dtype) / broadcast_parameter(as_operand(b), shape, dtype))


@documented(PARAMETRIC)
def rayleigh(
    key: ArrayLike,
    scale: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample from the Rayleigh distribution.

    It is the distribution of the length of a vector of two independent normal numbers with standard deviation `scale`.

    Args:
        scale: the scale parameter, positive.

    Example:
        >>> jax.random.rayleigh(jax.random.key(0), 1.0, (2,)).round(3)
        Array([0.328, 0.208], dtype=float32)
    """
    return sample_parametric("rayleigh", _rayleigh, key, scale, shape=shape, dtype=dtype, out_sharding=out_sharding)


def _rayleigh(key: Array, scale: Array, *, shape: StaticShape, dtype: DType) -> Any:
    logs = Log()(distributions.uniform(key, shape, dtype))
    return broadcast_parameter(as_operand(scale), shape, dtype) * Sqrt()(-2 * logs)


@documented(FLOATS)
def weibull_min(
    key: ArrayLike, scale: ArrayLike, concentration: ArrayLike, shape: Shape = (), dtype: DTypeLike | None = None
) -> Array:
    """Sample from the Weibull distribution.

    Args:
        scale: the scale parameter, positive.
        concentration: the shape parameter, positive.
        shape: the shape of the samples before broadcasting with the parameters.

    Returns:
        An array of floats, with the shape that `shape`, `scale` and `concentration` broadcast to.

    Raises:
        TypeError: if `key` is not a PRNG key, if `shape` does not consist of integers, or if the shapes of the
            parameters and `shape` do not broadcast.

    Example:
        >>> jax.random.weibull_min(jax.random.key(0), 1.0, 2.0, (2,)).round(3)
        Array([1.718, 1.96 ], dtype=float32)
    """
    dtype, shape = float_dtype("weibull_min", dtype), canonical_shape("weibull_min", shape)
    return run_sampler(_weibull, single_key("weibull_min", key), scale, concentration, shape=shape, dtype=dtype)


def _weibull(key: Array, scale: Array, concentration: Array, *, shape: StaticShape, dtype: DType) -> Any:
    return sample_exponential(key, shape=shape, dtype=dtype) ** (1.0 / as_operand(concentration)) * as_operand(scale)


@documented(PARAMETRIC)
def triangular(
    key: ArrayLike,
    left: ArrayLike,
    mode: ArrayLike,
    right: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample from the triangular distribution.

    Args:
        left: the lower bound.
        mode: the most probable number, between `left` and `right`.
        right: the upper bound.

    Example:
        >>> jax.random.triangular(jax.random.key(0), 0.0, 1.0, 2.0, (2,)).round(3)
        Array([1.6760001, 1.7930001], dtype=float32)
    """
    return sample_parametric(
        "triangular", _triangular, key, left, mode, right, shape=shape, dtype=dtype, out_sharding=out_sharding
    )


def _triangular(key: Array, left: Array, mode: ArrayLike, right: Array, *, shape: StaticShape, dtype: DType) -> Any:
    left, mode, right = (broadcast_parameter(as_operand(x), shape, dtype) for x in (left, mode, right))
    u = distributions.uniform(key, shape, dtype)
    rising = left + Sqrt()(u * (right - left) * (mode - left))
    falling = right - Sqrt()((1 - u) * (right - left) * (right - mode))
    return Select()(Compare("LT")(u, (mode - left) / (right - left)), rising, falling)
