"""Discrete distributions: Poisson, binomial, geometric and multinomial."""

from typing import Any

import numpy as np

from shardwise.api.control import scan
from shardwise.base.docstrings import documented
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, as_operand, astype_weak, type_of
from shardwise.compiler.arrays.promotion import default_dtype, promote_dtypes
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.rounding import Floor
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Log, Log1p
from shardwise.compiler.ops.random.counter_based import constant_counters, row_major_strides
from shardwise.compiler.ops.random.key_data import KeyData
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.movement import move_dim
from shardwise.compiler.samplers import distributions
from shardwise.compiler.samplers.poisson_binomial import RejectionSampler, WaitingTimeSampler
from shardwise.compiler.samplers.prng import random_keys
from shardwise.lax.cumulative import cumsum
from shardwise.random.families import NOT_BROADCASTABLE, PARAMETRIC
from shardwise.random.keys import key_impl, single_key
from shardwise.random.sampling import (
    StaticShape,
    broadcast_parameter,
    canonical_shape,
    check_parameter_shape,
    float_dtype,
    integer_dtype,
    run_sampler,
    sample_shape,
)
from shardwise.typing import ArrayLike, DTypeLike, OutSharding, Shape


def _count_waiting_times(distribution: str, key: Array, *parameters: Array) -> Any:
    """Sample counts with a small mean, by adding up waiting times between events."""
    strides = row_major_strides(parameters[0].type.shape)
    words = KeyData()(key)
    op = WaitingTimeSampler(distribution, strides, key_impl(key))
    return op(words, constant_counters(words, 0), *parameters)


def _count_by_rejection(distribution: str, key: Array, *parameters: Array) -> Any:
    """Sample counts with a large mean, by rejection sampling."""
    shape = parameters[0].type.shape
    iteration, is_pending = full((), 0, np.int32), full(shape, True, np.bool_)
    words = KeyData()(key)
    op = RejectionSampler(distribution, row_major_strides(shape), key_impl(key))
    return op(words, constant_counters(words, 0), iteration, is_pending, *parameters)[0]


@documented(PARAMETRIC, returns="An array of integers; -1 where `lam` is NaN.")
def poisson(
    key: ArrayLike,
    lam: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample from the Poisson distribution.

    Args:
        lam: the rate, the mean number of events.
        dtype: the integer dtype of the result; by default the default integer dtype.

    Raises:
        TypeError: if `key` is not a PRNG key, or if the shapes of `lam` and `shape` do not broadcast.
        ValueError: if `key` is an array of keys, if `dtype` is not an integer dtype, or if the parameters broadcast to
            a larger shape than `shape`.

    Example:
        >>> jax.random.poisson(jax.random.key(0), 4.0, (4,))
        Array([0, 1, 5, 5], dtype=int32)
    """
    dtype, shape = integer_dtype("poisson", dtype), sample_shape("poisson", shape, lam)
    return run_sampler(_poisson, single_key("poisson", key), lam, shape=shape, dtype=dtype, out_sharding=out_sharding)


def _poisson(key: Array, lam: Array, *, shape: StaticShape, dtype: DType) -> Any:
    lam = broadcast_parameter(as_operand(lam), shape, np.dtype(np.float32))
    is_small = (lam < 10) | (lam != lam)
    if_small = _count_waiting_times("poisson", key, Select()(is_small, lam, full_like(lam, 0)))
    if_large = _count_by_rejection("poisson", key, Select()(is_small, full_like(lam, 1e5), lam))
    # Via int32, so that -1, the result for a NaN rate, becomes the largest integer of an unsigned dtype.
    counts = Select()(is_small, Convert(dtype)(Convert(np.dtype(np.int32))(if_small)), Convert(dtype)(if_large))
    return Select()(Compare("EQ")(lam, full_like(lam, 0)), full_like(counts, 0), counts)


@documented(PARAMETRIC, raises=[NOT_BROADCASTABLE])
def binomial(
    key: ArrayLike, n: ArrayLike, p: ArrayLike, shape: Shape | None = None, dtype: DTypeLike | None = None
) -> Array:
    """Sample from the binomial distribution: the number of successes in `n` trials.

    Args:
        n: the number of trials.
        p: the probability of success of a trial.

    Returns:
        An array of floats with integer values; NaN where `n` or `p` is invalid.

    Example:
        >>> jax.random.binomial(jax.random.key(0), 10, 0.5, (4,))
        Array([6., 7., 5., 6.], dtype=float32)
    """
    dtype, shape = float_dtype("binomial", dtype), sample_shape("binomial", shape, n, p)
    return run_sampler(sample_binomial, single_key("binomial", key), n, p, shape=shape, dtype=dtype)


def sample_binomial(key: Array, n: Array, p: Array, *, shape: StaticShape, dtype: DType) -> Any:
    """Sample from the binomial distribution."""
    p = as_inexact(p, "binomial")
    compute_dtype = p.type.dtype
    p, n = broadcast_parameter(p, shape, compute_dtype), broadcast_parameter(as_operand(n), shape, compute_dtype)
    # The samplers expect p <= 1/2: otherwise they count the failures, whose probability is 1 - p.
    is_below_half = p < 0.5
    q = Select()(is_below_half, p, 1.0 - p)
    q_is_invalid = (q < 0) | (q != q)
    n_is_invalid, n_is_infinite = (n != n) | (n < 0), n == np.inf
    q = Select()(q_is_invalid, full_like(q, 0.01), q)
    is_small = n_is_invalid | (n * q <= 10)
    n = Floor()(n)
    if_small = _count_waiting_times("binomial", key, Select()(is_small, n, full_like(n, 0)), q)
    # Elements that the other sampler handles get parameters for which rejection sampling ends soon.
    large_parameters = Select()(is_small, full_like(n, 1e4), n), Select()(is_small, full_like(q, 0.5), q)
    if_large = _count_by_rejection("binomial", key, *large_parameters)
    counts = Convert(dtype)(Select()(is_small, if_small, if_large))
    is_invalid = q_is_invalid | n_is_invalid
    counts = Select()(is_invalid, full_like(counts, np.nan), counts)
    counts = Select()(n_is_infinite & ~is_invalid, full_like(counts, np.inf), counts)
    keep = is_below_half | n_is_invalid | (p != p) | n_is_infinite
    return Select()(keep, counts, Convert(dtype)(n) - counts)


@documented(PARAMETRIC, returns="An array of integers, at least 1.")
def geometric(
    key: ArrayLike,
    p: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample from the geometric distribution: the number of trials up to and including the first success.

    Args:
        p: the probability of success of a trial.
        dtype: the integer dtype of the result; by default the default integer dtype.

    Raises:
        TypeError: if `key` is not a PRNG key, or if the shapes of `p` and `shape` do not broadcast.
        ValueError: if `key` is an array of keys, if `dtype` is not an integer dtype, or if the parameters broadcast to
            a larger shape than `shape`.

    Example:
        >>> jax.random.geometric(jax.random.key(0), 0.1, (4,))
        Array([ 1,  1, 11,  8], dtype=int32)
    """
    dtype, shape = integer_dtype("geometric", dtype), sample_shape("geometric", shape, p)
    return run_sampler(_geometric, single_key("geometric", key), p, shape=shape, dtype=dtype, out_sharding=out_sharding)


def _geometric(key: Array, p: Array, *, shape: StaticShape, dtype: DType) -> Any:
    p = as_inexact(p, "geometric")
    p = broadcast_parameter(p, shape, p.type.dtype)
    u = distributions.uniform(key, shape, p.type.dtype)
    logs = Log()(Select()(u == 0, full_like(u, 1), u))
    return Convert(dtype)(Floor()(logs / Log1p()(-p)) + 1)


def multinomial(
    key: ArrayLike,
    n: ArrayLike,
    p: ArrayLike,
    *,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    unroll: int | bool = 1,
) -> Array:
    """Sample from the multinomial distribution: the number of trials with each outcome.

    Args:
        key: the PRNG key, as `key` or `PRNGKey` returns it.
        n: the number of trials, which broadcasts to the batch dims.
        p: the probabilities of the outcomes along the last dim; dims before it are a batch.
        shape: the shape of the result, with the last dim of `p`; by default the shape of `p`.
        dtype: the floating-point dtype of the result; by default the default float dtype.
        unroll: the number of iterations of the loop over outcomes to unroll, as for `lax.scan`.

    Returns:
        An array of floats with integer values, which sum to `n` along the last dim.

    Raises:
        TypeError: if `key` is not a PRNG key.
        ValueError: if `key` is an array of keys, if `p` is a scalar and `shape` is not passed, if `n` or `p` does not
            broadcast to `shape`, or if `dtype` is not a floating-point dtype.

    Example:
        >>> jax.random.multinomial(jax.random.key(0), 10, jnp.array([0.2, 0.3, 0.5]))
        Array([1., 1., 8.], dtype=float32)
    """
    types = [type_of(n, "multinomial"), type_of(p, "multinomial")]
    compute_dtype, _ = promote_dtypes("multinomial", types)
    compute_dtype = compute_dtype if compute_dtype.kind == "f" else default_dtype("float*")
    shape = types[1].shape if shape is None else canonical_shape("multinomial", shape)
    if not shape:
        raise ValueError(f"multinomial: p must have at least one dim, that of the outcomes, not {types[1]}")
    if types[1].ndim and types[1].shape[-1] != shape[-1]:
        raise ValueError(
            f"multinomial: the last dim of shape {shape} must have the size of that of p {types[1]}: one per outcome"
        )
    check_parameter_shape("multinomial", "p", p, shape)
    check_parameter_shape("multinomial", "n", n, shape[:-1])
    dtype = float_dtype("multinomial", dtype)
    key = single_key("multinomial", key)
    return run_sampler(_multinomial, key, n, p, shape=shape, compute_dtype=compute_dtype, dtype=dtype, unroll=unroll)


def _multinomial(
    key: Array, n: Array, p: Array, *, shape: StaticShape, compute_dtype: DType, dtype: DType, unroll: int | bool
) -> Any:
    """Sample one outcome after the other: its count is binomial, given the number of trials that remain."""
    trials = broadcast_parameter(as_operand(n), shape[:-1], compute_dtype)
    probabilities = broadcast_parameter(as_operand(p), shape, compute_dtype)
    probabilities = move_dim(probabilities, len(shape) - 1, 0)
    remaining = cumsum(probabilities, 0, reverse=True)
    conditional = probabilities / Select()(remaining == 0, full_like(remaining, 1), remaining)

    def step(trials: Array, outcome: Array) -> Any:
        probability, key = outcome
        count = sample_binomial(key, trials, probability.clip(0, 1), shape=shape[:-1], dtype=compute_dtype)
        return trials - count, count

    _, counts = scan(step, trials, (conditional, random_keys(key, shape[-1:])), unroll=unroll)
    return astype_weak(move_dim(counts, 0, len(shape) - 1), dtype, False)
