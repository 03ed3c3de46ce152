"""The gamma distribution, and distributions that are functions of gamma variates."""

import operator
from typing import Any

from shardwise.base.docstrings import documented
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ops.elementwise.complex_parts import Abs
from shardwise.compiler.ops.elementwise.min_max import Max
from shardwise.compiler.ops.elementwise.powers import Sqrt
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.ops.random.key_data import KeyData
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.reductions import ReduceMax
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.samplers import distributions
from shardwise.compiler.samplers.distributions import RandomGamma
from shardwise.compiler.samplers.prng import random_keys, split_key
from shardwise.random.continuous import sample_exponential
from shardwise.random.families import FLOATS, NOT_BROADCASTABLE, PARAMETRIC
from shardwise.random.float_samples import sample_parametric
from shardwise.random.keys import key_impl, single_key
from shardwise.random.sampling import (
    StaticShape,
    broadcast_parameter,
    broadcast_sample_shape,
    canonical_shape,
    check_parameter_shape,
    float_dtype,
    run_sampler,
    sample_shape,
)
from shardwise.random.uniform import sample_rademacher
from shardwise.typing import ArrayLike, DTypeLike, OutSharding, Shape


@documented(PARAMETRIC, raises=[NOT_BROADCASTABLE])
def gamma(
    key: ArrayLike,
    a: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample from the gamma distribution with shape parameter `a` and scale 1.

    Args:
        a: the shape parameter, positive.

    Example:
        >>> jax.random.gamma(jax.random.key(0), 3.0, (2,)).round(3)
        Array([2.569    , 2.7840002], dtype=float32)
    """
    dtype, shape = float_dtype("gamma", dtype), sample_shape("gamma", shape, a)
    return run_sampler(sample_gamma, single_key("gamma", key), a, shape=shape, dtype=dtype, out_sharding=out_sharding)


@documented(PARAMETRIC, raises=[NOT_BROADCASTABLE])
def loggamma(
    key: ArrayLike,
    a: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample the logarithm of a gamma variate, which does not underflow for small `a`.

    Args:
        a: the shape parameter, positive.

    Example:
        >>> jax.random.loggamma(jax.random.key(0), 3.0, (2,)).round(3)
        Array([0.94400007, 1.024     ], dtype=float32)
    """
    dtype, shape = float_dtype("loggamma", dtype), sample_shape("loggamma", shape, a)
    return run_sampler(
        sample_gamma, single_key("loggamma", key), a, shape=shape, dtype=dtype, log=True, out_sharding=out_sharding
    )


def sample_gamma(key: Array, a: Array, *, shape: StaticShape, dtype: DType, log: bool = False) -> Any:
    """Sample from the gamma distribution, or its logarithm.

    Each element has a key of its own, so a device samples its shard without communication.
    """
    keys = KeyData()(random_keys(key, shape))
    return RandomGamma(log, key_impl(key))(keys, broadcast_parameter(as_operand(a), shape, dtype))


@documented(PARAMETRIC)
def beta(
    key: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample from the beta distribution.

    A sample is `x / (x + y)`, with `x` from `gamma(a)` and `y` from `gamma(b)`.

    Args:
        a: the first shape parameter, positive.
        b: the second shape parameter, positive.

    Example:
        >>> jax.random.beta(jax.random.key(0), 2.0, 3.0, (2,)).round(3)
        Array([0.23600002, 0.49      ], dtype=float32)
    """
    return sample_parametric("beta", _beta, key, a, b, shape=shape, dtype=dtype, out_sharding=out_sharding)


def _beta(key: Array, a: Array, b: Array, *, shape: StaticShape, dtype: DType) -> Any:
    logs = [
        sample_gamma(subkey, x, shape=shape, dtype=dtype, log=True)
        for subkey, x in zip(split_key(key, 2), (a, b), strict=True)
    ]
    largest = Max()(*logs)
    first, second = (Exp()(log - largest) for log in logs)
    return first / (first + second)


@documented(PARAMETRIC, returns="An array of floats, whose last dim is that of `alpha`.")
def dirichlet(
    key: ArrayLike,
    alpha: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample from the Dirichlet distribution: vectors of positive numbers that sum to 1.

    Args:
        alpha: the concentration parameters; the last dim is that of the categories, dims before it are a batch.
        shape: the shape of the result without its last dim; by default the batch dims of `alpha`.

    Raises:
        TypeError: if `key` is not a PRNG key, or if the batch dims of `alpha` and `shape` do not broadcast.
        ValueError: if `key` is an array of keys, if `alpha` is a scalar, if `dtype` is not a floating-point dtype, or
            if the batch dims of `alpha` do not broadcast to `shape`.

    Example:
        >>> jax.random.dirichlet(jax.random.key(0), jnp.ones(3)).round(3)
        Array([0.365     , 0.42800003, 0.20700002], dtype=float32)
    """
    dtype, alpha_type = float_dtype("dirichlet", dtype), type_of(alpha, "dirichlet")
    if not alpha_type.ndim:
        raise ValueError(f"dirichlet: alpha must have at least one dim, that of the categories, not {alpha_type}")
    shape = (*broadcast_sample_shape("dirichlet", shape, alpha_type.shape[:-1]), alpha_type.shape[-1])
    return run_sampler(
        _dirichlet, single_key("dirichlet", key), alpha, shape=shape, dtype=dtype, out_sharding=out_sharding
    )


def _dirichlet(key: Array, alpha: Array, *, shape: StaticShape, dtype: DType) -> Any:
    logs = sample_gamma(key, alpha, shape=shape, dtype=dtype, log=True)
    last, batch = len(shape) - 1, tuple(range(len(shape) - 1))
    weights = Exp()(logs - Broadcast(shape, batch)(ReduceMax((last,))(logs)))
    return weights / Broadcast(shape, batch)(Sum((last,))(weights))


@documented(PARAMETRIC)
def chisquare(
    key: ArrayLike,
    df: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample from the chi-squared distribution.

    Args:
        df: the degrees of freedom, positive.

    Example:
        >>> jax.random.chisquare(jax.random.key(0), 3.0, (2,)).round(3)
        Array([2.2050002, 2.49     ], dtype=float32)
    """
    return sample_parametric("chisquare", _chisquare, key, df, shape=shape, dtype=dtype, out_sharding=out_sharding)


def _chisquare(key: Array, df: Array, *, shape: StaticShape, dtype: DType) -> Any:
    half = broadcast_parameter(as_operand(df), shape, dtype) / 2
    samples = Exp()(sample_gamma(key, half, shape=shape, dtype=dtype, log=True))
    return 2 * samples


@documented(PARAMETRIC)
def f(
    key: ArrayLike,
    dfnum: ArrayLike,
    dfden: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample from the F distribution: the quotient of two chi-squared variates, each over its degrees of freedom.

    Args:
        dfnum: the degrees of freedom of the numerator, positive.
        dfden: the degrees of freedom of the denominator, positive.

    Example:
        >>> jax.random.f(jax.random.key(0), 4.0, 6.0, (2,)).round(3)
        Array([2.325, 0.31 ], dtype=float32)
    """
    return sample_parametric("f", _f, key, dfnum, dfden, shape=shape, dtype=dtype, out_sharding=out_sharding)


def _f(key: Array, dfnum: Array, dfden: Array, *, shape: StaticShape, dtype: DType) -> Any:
    dfnum, dfden = (broadcast_parameter(as_operand(df), shape, dtype) for df in (dfnum, dfden))
    den_key, num_key = split_key(key, 2)
    numerator, denominator = (
        _chisquare(subkey, df, shape=shape, dtype=dtype) / df for subkey, df in ((num_key, dfnum), (den_key, dfden))
    )
    return numerator / denominator


@documented(PARAMETRIC)
def t(
    key: ArrayLike,
    df: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample from Student's t distribution.

    Args:
        df: the degrees of freedom, positive.

    Example:
        >>> jax.random.t(jax.random.key(0), 3.0, (2,)).round(3)
        Array([ 0.69000006, -3.239     ], dtype=float32)
    """
    return sample_parametric("t", _t, key, df, shape=shape, dtype=dtype, out_sharding=out_sharding)


def _t(key: Array, df: Array, *, shape: StaticShape, dtype: DType) -> Any:
    normal_key, gamma_key = split_key(key, 2)
    half = broadcast_parameter(as_operand(df), shape, dtype) / 2
    scale = Sqrt()(half / sample_gamma(gamma_key, half, shape=shape, dtype=dtype))
    return distributions.normal(normal_key, shape, dtype) * scale


@documented(FLOATS)
def generalized_normal(
    key: ArrayLike, p: float, shape: Shape = (), dtype: DTypeLike | None = None, *, out_sharding: OutSharding = None
) -> Array:
    """Sample from the generalized normal distribution, whose density is proportional to `exp(-|x| ** p)`.

    Args:
        p: the shape parameter, a positive number or an array of them, which broadcasts to `shape`.

    Raises:
        ValueError: if `key` is an array of keys, if a size in `shape` is negative, if `p` does not broadcast to
            `shape`, or if `dtype` is not a floating-point dtype.

    Example:
        >>> jax.random.generalized_normal(jax.random.key(0), 2.0, (2,)).round(3)
        Array([0.95400006, 0.09      ], dtype=float32)
    """
    dtype, shape = float_dtype("generalized_normal", dtype), canonical_shape("generalized_normal", shape)
    key = single_key("generalized_normal", key)
    check_parameter_shape("generalized_normal", "p", p, shape)
    return run_sampler(_generalized_normal, key, p, shape=shape, dtype=dtype, out_sharding=out_sharding)


def _generalized_normal(key: Array, p: Array, *, shape: StaticShape, dtype: DType) -> Any:
    magnitude_key, sign_key = split_key(key, 2)
    inverse = 1 / as_operand(p)
    magnitude = sample_gamma(magnitude_key, inverse, shape=shape, dtype=dtype) ** inverse
    return sample_rademacher(sign_key, shape=shape, dtype=dtype) * magnitude


@documented(FLOATS)
def ball(
    key: ArrayLike,
    d: int,
    p: float = 2,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample uniformly from the unit ball of the Lp norm.

    Args:
        d: the number of dimensions of the space.
        p: the order of the norm.
        shape: the shape of the result without its last dim.

    Returns:
        An array of floats, whose last dim, of size `d`, holds the coordinates of a point.

    Raises:
        TypeError: if `key` is not a PRNG key, if `d` is not an integer, or if `shape` does not consist of integers.

    Example:
        >>> jax.random.ball(jax.random.key(0), 2).round(3)
        Array([0.91700006, 0.393     ], dtype=float32)
    """
    dtype, shape = float_dtype("ball", dtype), (*canonical_shape("ball", shape), operator.index(d))
    return run_sampler(_ball, single_key("ball", key), p, shape=shape, dtype=dtype, out_sharding=out_sharding)


def _ball(key: Array, p: Array, *, shape: StaticShape, dtype: DType) -> Any:
    direction_key, radius_key = split_key(key, 2)
    p, batch = as_operand(p), shape[:-1]
    vector = _generalized_normal(direction_key, p, shape=shape, dtype=dtype)
    total = (Abs()(vector) ** p).sum(-1) + sample_exponential(radius_key, shape=batch, dtype=dtype)
    return vector / Broadcast(shape, tuple(range(len(batch))))(total ** (1 / p))
