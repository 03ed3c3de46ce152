"""prng_seed and prng_random_bits: random numbers in kernels.

A TPU's generator is imitated by threefry, so the numbers are other ones than on a TPU, and independent between seeds
and between calls.
"""

from collections.abc import Sequence
from typing import Any

import shardwise.numpy as jnp
from shardwise import lax, random
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.dtypes import DTypeLike
from shardwise.experimental.pallas.grid_context import current_context, require_interpreter
from shardwise.typing import ArrayLike


def prng_seed(*seeds: ArrayLike) -> None:
    """Set the seed of the random numbers of a kernel.

    Args:
        seeds: integers, which may be traced, such as a seed and the index of the step.

    Raises:
        ValueError: if no kernel is being traced, or there is no seed.

    Example:
        >>> def kernel(out_ref):
        ...     pallas.tpu.prng_seed(0)
        ...     out_ref[...] = pallas.tpu.prng_random_bits((2,))
        >>> pallas.pallas_call(kernel, jax.ShapeDtypeStruct((2,), jnp.uint32))().shape
        (2,)
    """
    require_interpreter("it draws random numbers")
    if not seeds:
        raise ValueError("prng_seed: pass at least one integer")
    key = random.key(jnp.asarray(seeds[0], jnp.int32), impl="threefry2x32")
    for seed in seeds[1:]:
        key = random.fold_in(key, jnp.asarray(seed, jnp.int32))
    current_context("prng_seed").random_key[...] = random.key_data(key)


def prng_random_bits(shape: Sequence[int]) -> Any:
    """Return random integers, after `prng_seed`.

    Args:
        shape: the shape of the result.

    Returns:
        An array of uint32.

    Raises:
        ValueError: if no kernel is being traced.

    Example:
        >>> def kernel(out_ref):
        ...     pallas.tpu.prng_seed(0)
        ...     out_ref[...] = pallas.tpu.prng_random_bits((2,))
        >>> pallas.pallas_call(kernel, jax.ShapeDtypeStruct((2,), jnp.uint32))().dtype
        dtype('uint32')
    """
    require_interpreter("it draws random numbers")
    state = current_context("prng_random_bits").random_key
    key, used = random.split(random.wrap_key_data(state[...], impl="threefry2x32"))
    state[...] = random.key_data(key)
    return random.bits(used, tuple(shape), jnp.uint32)


def stochastic_round(x: Array, random_bits: Array, *, target_dtype: DTypeLike) -> Any:
    """Round floats up or down by chance, so that the expected value is the float.

    Args:
        x: an array of float32.
        random_bits: uint32 random integers of the same shape.
        target_dtype: bfloat16.

    Returns:
        An array of bfloat16.

    Raises:
        ValueError: if the shapes differ, or a dtype is another one.

    Example:
        >>> pallas.tpu.stochastic_round(jnp.ones(2), jnp.zeros(2, jnp.uint32), target_dtype=jnp.bfloat16)
        Array([1, 1], dtype=bfloat16)
    """
    if x.shape != random_bits.shape or x.dtype != jnp.float32 or random_bits.dtype != jnp.uint32:
        raise ValueError(
            f"stochastic_round: expected float32 and uint32 of the same shape, not {x.dtype}{list(x.shape)} and "
            f"{random_bits.dtype}{list(random_bits.shape)}"
        )
    if jnp.dtype(target_dtype) != jnp.bfloat16:
        raise ValueError(f"stochastic_round: target_dtype must be bfloat16, not {target_dtype}")
    bits = lax.bitcast_convert_type(x, jnp.uint32) + (random_bits & jnp.uint32(0xFFFF))
    rounded = lax.bitcast_convert_type(bits & jnp.uint32(0xFFFF0000), jnp.float32)
    return jnp.where(jnp.isfinite(x), rounded, x).astype(jnp.bfloat16)
