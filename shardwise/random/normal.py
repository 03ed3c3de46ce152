"""The normal distribution, and distributions that are functions of normal numbers."""

import math
from typing import Any

import numpy as np

from shardwise.base.docstrings import documented
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ops.elementwise.arithmetic import StopGradient
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.complex_parts import Complex
from shardwise.compiler.ops.elementwise.min_max import Max, Min
from shardwise.compiler.ops.elementwise.powers import Sqrt, Square
from shardwise.compiler.ops.elementwise.rounding import Nextafter
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.samplers import distributions
from shardwise.compiler.samplers.prng import split_key
from shardwise.compiler.special.gamma_erf import Erf, ErfInv
from shardwise.random.families import FLOATS, NOT_BROADCASTABLE, PARAMETRIC
from shardwise.random.float_samples import sample_parametric, sample_standard
from shardwise.random.keys import single_key
from shardwise.random.sampling import (
    StaticShape,
    broadcast_parameter,
    canonical_shape,
    check_no_narrowing,
    float_dtype,
    inexact_dtype,
    run_sampler,
    sample_shape,
)
from shardwise.random.uniform import sample_rademacher, sample_uniform
from shardwise.typing import ArrayLike, DTypeLike, OutSharding, Shape

_ONE = np.float32(1)


@documented(FLOATS, returns="An array of numbers.")
def normal(
    key: ArrayLike, shape: Shape = (), dtype: DTypeLike | None = None, *, out_sharding: OutSharding = None
) -> Array:
    """Sample from the standard normal distribution.

    The mean is 0 and the variance 1. The real and the imaginary part of complex numbers have variance 1/2 each.

    Args:
        dtype: the floating-point or complex dtype of the result; by default the default float dtype.

    Raises:
        ValueError: if `key` is an array of keys, if a size in `shape` is negative, or if `dtype` is neither a
            floating-point nor a complex dtype.

    Example:
        >>> jax.random.normal(jax.random.key(0), (2,)).round(3)
        Array([1.623, 2.025], dtype=float32)
    """
    dtype, shape = inexact_dtype("normal", dtype), canonical_shape("normal", shape)
    return run_sampler(sample_normal, single_key("normal", key), shape=shape, dtype=dtype, out_sharding=out_sharding)


def sample_normal(key: Array, *, shape: StaticShape, dtype: DType) -> Any:
    """Sample from the standard normal distribution, real or complex."""
    if dtype.kind != "c":
        return distributions.normal(key, shape, dtype)
    real_dtype = np.zeros((), dtype).real.dtype
    real, imaginary = (distributions.normal(subkey, shape, real_dtype) for subkey in split_key(key, 2))
    samples = Complex()(real, imaginary)
    return samples / math.sqrt(2)


@documented(PARAMETRIC, raises=[NOT_BROADCASTABLE])
def truncated_normal(
    key: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample from the standard normal distribution, truncated to the interval between `lower` and `upper`.

    Args:
        lower: the lower bound, which is excluded.
        upper: the upper bound, which is excluded.

    Example:
        >>> jax.random.truncated_normal(jax.random.key(0), -1.0, 1.0, (2,)).round(3)
        Array([0.86200005, 0.94100004], dtype=float32)
    """
    dtype = float_dtype("truncated_normal", dtype)
    shape = sample_shape("truncated_normal", shape, lower, upper)
    key = single_key("truncated_normal", key)
    return run_sampler(_truncated_normal, key, lower, upper, shape=shape, dtype=dtype, out_sharding=out_sharding)


def _truncated_normal(key: Array, lower: Array, upper: Array, *, shape: StaticShape, dtype: DType) -> Any:
    lower, upper = (broadcast_parameter(as_operand(bound), shape, dtype) for bound in (lower, upper))
    bounds = [Erf()(bound / math.sqrt(2)) for bound in (lower, upper)]
    samples = math.sqrt(2) * ErfInv()(sample_uniform(key, *bounds, shape=shape, dtype=dtype))
    # Rounding may move a sample to a bound or beyond.
    smallest = Nextafter()(StopGradient()(lower), full_like(lower, np.inf))
    largest = Nextafter()(StopGradient()(upper), full_like(upper, -np.inf))
    return Min()(largest, Max()(smallest, samples))


@documented(PARAMETRIC)
def lognormal(
    key: ArrayLike,
    sigma: ArrayLike = _ONE,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample from the log-normal distribution: `exp(sigma · z)` for a standard normal `z`.

    Args:
        sigma: the standard deviation of the logarithm.
        dtype: the floating-point or complex dtype of the result; by default the default float dtype.

    Raises:
        ValueError: if `key` is an array of keys, if `dtype` is not a floating-point or complex dtype, or if the
            parameters broadcast to a larger shape than `shape`.

    Example:
        >>> jax.random.lognormal(jax.random.key(0), 0.5, (2,)).round(3)
        Array([2.2510002, 2.753    ], dtype=float32)
    """
    dtype, shape = inexact_dtype("lognormal", dtype), sample_shape("lognormal", shape, sigma)
    check_no_narrowing("lognormal", dtype, sigma)
    key = single_key("lognormal", key)
    return run_sampler(_lognormal, key, sigma, shape=shape, dtype=dtype, out_sharding=out_sharding)


def _lognormal(key: Array, sigma: Array, *, shape: StaticShape, dtype: DType) -> Any:
    return Exp()(sample_normal(key, shape=shape, dtype=dtype) * broadcast_parameter(as_operand(sigma), shape, dtype))


@documented(FLOATS)
def maxwell(
    key: ArrayLike, shape: Shape = (), dtype: DTypeLike | None = None, *, out_sharding: OutSharding = None
) -> Array:
    """Sample from the standard Maxwell distribution, that of the length of a vector of three normal numbers.

    Example:
        >>> jax.random.maxwell(jax.random.key(0), (2,)).round(3)
        Array([2.631     , 0.99100006], dtype=float32)
    """
    return sample_standard("maxwell", sample_maxwell, key, shape, dtype, out_sharding)


def sample_maxwell(key: Array, *, shape: StaticShape, dtype: DType) -> Any:
    """Sample from the Maxwell distribution."""
    return Sqrt()(Sum((len(shape),))(Square()(distributions.normal(key, (*shape, 3), dtype))))


@documented(FLOATS)
def double_sided_maxwell(
    key: ArrayLike, loc: ArrayLike, scale: ArrayLike, shape: Shape = (), dtype: DTypeLike | None = None
) -> Array:
    """Sample from the double-sided Maxwell distribution: `loc + scale · sign · m`, with `m` from `maxwell`.

    Args:
        loc: the location parameter.
        scale: the scale parameter.
        shape: the leading dims of the result; by default the shape that `loc` and `scale` broadcast to.

    Returns:
        An array of floats. Its shape is `shape`, followed by the shape that `loc` and `scale` broadcast to.

    Raises:
        TypeError: if `key` is not a PRNG key, if `shape` does not consist of integers, or if the shapes of `loc` and
            `scale` do not broadcast.

    Example:
        >>> jax.random.double_sided_maxwell(jax.random.key(0), 0.0, 1.0, (2,)).round(3)
        Array([1.5460001, 1.5740001], dtype=float32)
    """
    dtype, shape = float_dtype("double_sided_maxwell", dtype), canonical_shape("double_sided_maxwell", shape)
    parameter_shape = sample_shape("double_sided_maxwell", None, loc, scale)
    key = single_key("double_sided_maxwell", key)
    return run_sampler(
        _double_sided_maxwell, key, loc, scale, shape=(shape or parameter_shape) + parameter_shape, dtype=dtype
    )


def _double_sided_maxwell(key: Array, loc: Array, scale: Array, *, shape: StaticShape, dtype: DType) -> Any:
    length_key, sign_key = split_key(key, 2)
    length = sample_maxwell(length_key, shape=shape, dtype=dtype)
    sign = sample_rademacher(sign_key, shape=shape, dtype=dtype)
    return sign * length * as_operand(scale) + as_operand(loc)


@documented(PARAMETRIC)
def wald(
    key: ArrayLike,
    mean: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample from the Wald (inverse Gaussian) distribution with shape parameter 1.

    Args:
        mean: the mean, positive.

    Example:
        >>> jax.random.wald(jax.random.key(0), 1.0, (2,)).round(3)
        Array([0.381, 0.416], dtype=float32)
    """
    return sample_parametric("wald", _wald, key, mean, shape=shape, dtype=dtype, out_sharding=out_sharding)


def _wald(key: Array, mean: Array, *, shape: StaticShape, dtype: DType) -> Any:
    mean = broadcast_parameter(as_operand(mean), shape, dtype)
    normal_key, uniform_key = split_key(key, 2)
    y = Square()(distributions.normal(normal_key, shape, dtype))
    z = distributions.uniform(uniform_key, shape, dtype)
    root = Sqrt()(4 * mean * y + Square()(mean) * Square()(y))
    x = mean + Square()(mean) * y / 2 - mean / 2 * root
    return Select()(Compare("LE")(z, mean / (mean + x)), x, Square()(mean) / x)
