"""The common body of functions that sample floats: check the arguments, and run the sampler as one program."""

from collections.abc import Callable
from typing import Any

from shardwise.random.keys import single_key
from shardwise.random.sampling import canonical_shape, check_no_narrowing, float_dtype, run_sampler, sample_shape
from shardwise.typing import ArrayLike, DTypeLike, OutSharding, Shape


def sample_standard(
    name: str,
    sampler: Callable[..., Any],
    key: ArrayLike,
    shape: Shape,
    dtype: DTypeLike | None,
    out_sharding: OutSharding,
) -> Any:
    """Sample from a distribution without parameters."""
    dtype, shape = float_dtype(name, dtype), canonical_shape(name, shape)
    return run_sampler(sampler, single_key(name, key), shape=shape, dtype=dtype, out_sharding=out_sharding)


def sample_parametric(
    name: str,
    sampler: Callable[..., Any],
    key: ArrayLike,
    *parameters: ArrayLike,
    shape: Shape | None,
    dtype: DTypeLike | None,
    out_sharding: OutSharding,
) -> Any:
    """Sample from a distribution whose parameters broadcast to the samples, and are not wider than their dtype."""
    dtype, shape = float_dtype(name, dtype), sample_shape(name, shape, *parameters)
    check_no_narrowing(name, dtype, *parameters)
    return run_sampler(sampler, single_key(name, key), *parameters, shape=shape, dtype=dtype, out_sharding=out_sharding)
