"""Random bits, and uniform, Bernoulli and Rademacher distributions."""

from typing import Any

import numpy as np

from shardwise.base.docstrings import documented
from shardwise.compiler.arrays.methods import Array, reshape
from shardwise.compiler.arrays.operands import as_operand, astype_weak, broadcast_to_shape, type_of
from shardwise.compiler.arrays.promotion import canonical_dtype, default_dtype, requested_dtype
from shardwise.compiler.dtypes import DType, integer_range, is_float, is_integer
from shardwise.compiler.ops.elementwise.arithmetic import Rem
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import bit_width
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.min_max import Clamp
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.random.counter_based import WIDTHS
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.samplers import distributions
from shardwise.compiler.samplers.distributions import mantissa_bits, scale_uniform
from shardwise.compiler.samplers.prng import random_bits, split_key
from shardwise.random.families import FLOATS, SAMPLES
from shardwise.random.keys import single_key
from shardwise.random.sampling import (
    StaticShape,
    broadcast_parameter,
    broadcast_sample_shape,
    canonical_shape,
    check_one_of,
    float_dtype,
    integer_dtype,
    run_sampler,
)
from shardwise.typing import ArrayLike, DTypeLike, OutSharding, Shape


@documented(SAMPLES, returns="An array of unsigned integers.")
def bits(
    key: ArrayLike, shape: Shape = (), dtype: DTypeLike | None = None, *, out_sharding: OutSharding = None
) -> Array:
    """Sample uniformly distributed random bits, as unsigned integers.

    Args:
        dtype: an unsigned integer dtype; by default uint64, or uint32 where 64-bit types are disabled.

    Raises:
        ValueError: if `key` is an array of keys, if a size in `shape` is negative, or if `dtype` is not an unsigned
            integer dtype.

    Example:
        >>> jax.random.bits(jax.random.key(0), (3,), "uint8")
        Array([167, 146,  40], dtype=uint8)
    """
    out_dtype = canonical_dtype(np.uint64) if dtype is None else requested_dtype("bits", dtype)
    if out_dtype not in WIDTHS.values():
        raise ValueError(f"bits: dtype must be one of {', '.join(map(str, WIDTHS.values()))}, not {out_dtype}")
    shape = canonical_shape("bits", shape)
    return run_sampler(
        random_bits, single_key("bits", key), shape=shape, width=8 * out_dtype.itemsize, out_sharding=out_sharding
    )


@documented(FLOATS)
def uniform(
    key: ArrayLike,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
    minval: ArrayLike = 0.0,
    maxval: ArrayLike = 1.0,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample from the uniform distribution over the interval from `minval` (included) to `maxval` (excluded).

    Args:
        minval: the lower bound, which broadcasts to `shape`. If `shape` is () and it has dims of size 1, the sample
            has them too.
        maxval: the upper bound, which broadcasts to `shape`.

    Raises:
        TypeError: if `key` is not a PRNG key, if `shape` does not consist of integers, or if the shapes of `minval`,
            `maxval` and `shape` do not broadcast.
        ValueError: if `key` is an array of keys, if a size in `shape` is negative, if `dtype` is not a floating-point
            dtype, or if `minval` and `maxval` broadcast to a larger shape than `shape`.

    Example:
        >>> jax.random.uniform(jax.random.key(0), (2,))
        Array([0.947667 , 0.9785799], dtype=float32)
    """
    dtype, shape = float_dtype("uniform", dtype), canonical_shape("uniform", shape)
    low, high = type_of(minval, "uniform"), type_of(maxval, "uniform")
    if shape == () and low.size == high.size == 1:
        shape, maxval = low.shape, reshape(maxval, shape=low.shape)  # as in JAX, minval keeps its dims of size 1
    broadcast_sample_shape("uniform", shape, low.shape, type_of(maxval).shape)
    key = single_key("uniform", key)
    return run_sampler(sample_uniform, key, minval, maxval, shape=shape, dtype=dtype, out_sharding=out_sharding)


def sample_uniform(key: Array, low: Array, high: Array, *, shape: StaticShape, dtype: DType) -> Any:
    """Sample uniform floats from `low` (included) to `high` (excluded)."""
    low, high = (broadcast_parameter(as_operand(bound), shape, dtype) for bound in (low, high))
    return scale_uniform(distributions.uniform(key, shape, dtype), low, high)


@documented(SAMPLES, returns="An array of integers.")
def randint(
    key: ArrayLike,
    shape: Shape,
    minval: ArrayLike,
    maxval: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample uniform integers from `minval` (included) to `maxval` (excluded).

    A sample is a random integer of twice the bits of the dtype, modulo `maxval - minval`. The distribution is therefore
    uniform up to a small bias if the number of integers is not a power of two.

    Args:
        minval: the lower bound, which broadcasts to `shape`.
        maxval: the upper bound, which broadcasts to `shape`. Where it is not above `minval`, the result is `minval`.
        dtype: the integer dtype of the result; by default the default integer dtype.

    Raises:
        TypeError: if `key` is not a PRNG key, if `shape` does not consist of integers, or if the shapes of `minval`,
            `maxval` and `shape` do not broadcast.
        ValueError: if `key` is an array of keys, if a size in `shape` is negative, if `dtype` is not an integer dtype,
            or if `minval` and `maxval` broadcast to a larger shape than `shape`.

    Example:
        >>> jax.random.randint(jax.random.key(0), (4,), 0, 10)
        Array([9, 0, 2, 3], dtype=int32)
    """
    dtype, shape = integer_dtype("randint", dtype), canonical_shape("randint", shape)
    broadcast_sample_shape("randint", shape, type_of(minval, "randint").shape, type_of(maxval, "randint").shape)
    key = single_key("randint", key)
    return run_sampler(sample_randint, key, minval, maxval, shape=shape, dtype=dtype, out_sharding=out_sharding)


def sample_randint(key: Array, minval: ArrayLike, maxval: ArrayLike, *, shape: StaticShape, dtype: DType) -> Any:
    """Sample uniform integers from `minval` (included) to `maxval` (excluded)."""
    bounds = [_as_integer(bound) for bound in (minval, maxval)]
    low, high = bounds
    sample_dtype = dtype
    if bit_width(dtype) < 32:  # narrow dtypes are sampled in 32 bits, which keeps the bias of the modulo small
        sample_dtype, (minimum, maximum) = np.dtype(np.int32), integer_range(dtype)
        low, high = (astype_weak(bound, sample_dtype, False) for bound in bounds)
        low, high = _clip(low, minimum, maximum), _clip(high, minimum, maximum + 1)
    # A `high` of one above the largest integer of the dtype is clipped to it; the span is then one too small.
    exceeds = Compare("GT")(
        high, full_like(high, min(integer_range(sample_dtype)[1], integer_range(high.type.dtype)[1]))
    )
    low, high = (broadcast_to_shape(_saturating_cast(bound, sample_dtype), shape) for bound in (low, high))
    exceeds, is_nonempty = broadcast_to_shape(exceeds, shape), Compare("GT")(high, low)
    unsigned = WIDTHS[bit_width(sample_dtype)]
    span = Convert(unsigned)(high - low)
    span = Select()(is_nonempty, span, full_like(span, 1))
    span = Select()(exceeds & is_nonempty, span + 1, span)
    upper, lower = (random_bits(subkey, shape, bit_width(sample_dtype)) for subkey in split_key(key, 2))
    half = Rem()(full_like(span, 2 ** (bit_width(sample_dtype) // 2)), span)
    multiplier = Rem()(half * half, span)  # 2 to the number of bits, modulo span
    offset = Rem()(Rem()(upper, span) * multiplier + Rem()(lower, span), span)
    return astype_weak(low + Convert(sample_dtype)(offset), dtype, False)


def _as_integer(x: ArrayLike) -> Array:
    x = as_operand(x)
    return x if is_integer(x.type.dtype) else astype_weak(x, default_dtype("int*"), False)


def _clip(x: Array, low: int, high: int) -> Any:
    return Clamp()(full_like(x, low), x, full_like(x, high))


def _saturating_cast(x: Array, dtype: DType) -> Any:
    """Convert integers to another dtype; those out of its range become its smallest or largest integer."""
    (low, high), (minimum, maximum) = integer_range(x.type.dtype), integer_range(dtype)
    return astype_weak(_clip(x, max(low, minimum), min(high, maximum)), dtype, False)


@documented(SAMPLES, returns="An array of booleans.")
def bernoulli(
    key: ArrayLike,
    p: ArrayLike = 0.5,
    shape: Shape | None = None,
    mode: str = "low",
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample from the Bernoulli distribution: True with probability `p`.

    Args:
        p: the probability, an array of floats.
        shape: the shape of the result; by default the shape of `p`.
        mode: "low", or "high" to sample twice the bits, which is more exact for small probabilities.

    Raises:
        TypeError: if `key` is not a PRNG key, if `p` does not have a floating-point dtype, or if the shapes of `p` and
            `shape` do not broadcast.
        ValueError: if `key` is an array of keys, if `mode` is unknown, or if `p` does not broadcast to `shape`.

    Example:
        >>> jax.random.bernoulli(jax.random.key(0), 0.5, (4,))
        Array([False, False,  True,  True], dtype=bool)
    """
    check_one_of("bernoulli", "mode", mode, ("high", "low"))
    p_type = type_of(p, "bernoulli")
    if not is_float(p_type.dtype):
        raise TypeError(f"bernoulli: the probability p must have a floating-point dtype, not {p_type}")
    shape = broadcast_sample_shape("bernoulli", shape, p_type.shape)
    key = single_key("bernoulli", key)
    return run_sampler(sample_bernoulli, key, p, shape=shape, mode=mode, out_sharding=out_sharding)


def sample_bernoulli(key: Array, p: Array, *, shape: StaticShape, mode: str = "low") -> Any:
    """Sample booleans that are True with probability `p`."""
    p = as_operand(p)
    p = broadcast_parameter(p, shape, p.type.dtype)
    if mode == "low":
        return Compare("LT")(distributions.uniform(key, shape, p.type.dtype), p)
    pair = distributions.uniform(key, (2, *shape), p.type.dtype)
    return pair[1] * 2.0 ** -mantissa_bits(p.type.dtype) < p - pair[0]


@documented(SAMPLES, returns="An array of the numbers 1 and -1.")
def rademacher(
    key: ArrayLike, shape: Shape = (), dtype: DTypeLike | None = None, *, out_sharding: OutSharding = None
) -> Array:
    """Sample from the Rademacher distribution: 1 or -1 with equal probability.

    Args:
        dtype: the dtype of the result; by default the default integer dtype.

    Raises:
        ValueError: if `key` is an array of keys, or if a size in `shape` is negative.

    Example:
        >>> jax.random.rademacher(jax.random.key(0), (4,))
        Array([-1, -1,  1,  1], dtype=int32)
    """
    dtype = default_dtype("int*") if dtype is None else requested_dtype("rademacher", dtype)
    key, shape = single_key("rademacher", key), canonical_shape("rademacher", shape)
    return run_sampler(sample_rademacher, key, shape=shape, dtype=dtype, out_sharding=out_sharding)


def sample_rademacher(key: Array, *, shape: StaticShape, dtype: DType) -> Any:
    """Sample the numbers 1 and -1."""
    is_positive = sample_bernoulli(key, full((), 0.5, default_dtype("float*")), shape=shape)
    bit = Convert(dtype)(is_positive)
    return 2 * bit - 1
