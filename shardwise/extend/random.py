"""jax.extend.random: the implementations of random generators."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise import random
from shardwise.api.transformations.vmap import vmap
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.dtypes import KEY_DTYPES, KeyDType
from shardwise.compiler.ops.random.counter_based import WORD
from shardwise.compiler.samplers.prng import hash_pairs
from shardwise.errors import UnsupportedError
from shardwise.typing import ArrayLike

# An implementation is identified by the dtype of its keys, which `random.key` accepts as `impl` too.
threefry_prng_impl: KeyDType = KEY_DTYPES["threefry2x32"]
rbg_prng_impl: KeyDType = KEY_DTYPES["rbg"]
unsafe_rbg_prng_impl: KeyDType = KEY_DTYPES["unsafe_rbg"]


def define_prng_impl(
    *,
    key_shape: object,
    seed: object,
    split: object,
    random_bits: object,
    fold_in: object,
    name: str = "<unnamed>",
    tag: str = "?",
) -> Any:
    """Raise an error: the compiler knows how to shard the bits of its own generators only.

    Args:
        key_shape: the shape of a key's words.
        seed: a function from an integer to a key.
        split: a function from a key and a shape to keys.
        random_bits: a function from a key, a width and a shape to bits.
        fold_in: a function from a key and an integer to a key.
        name: the name of the implementation.
        tag: its short name.

    Returns:
        Nothing.

    Raises:
        UnsupportedError: always.

    Example:
        >>> make = jax.extend.random.define_prng_impl
        >>> make(key_shape=(2,), seed=None, split=None, random_bits=None, fold_in=None)
        Traceback (most recent call last):
        shardwise.errors.UnsupportedError: ...
    """
    raise UnsupportedError(
        f"define_prng_impl: the implementation {name!r} cannot be added, because each device generates its own shard "
        f"of random bits, by a rule of the generator. Use one of {', '.join(map(repr, KEY_DTYPES))}, as in "
        "`random.key(0, impl='rbg')`."
    )


def random_seed(seeds: ArrayLike, impl: KeyDType | str) -> Array:
    """Return the PRNG keys of seeds.

    Args:
        seeds: an integer, or an array of integers.
        impl: the implementation, such as `threefry_prng_impl`, or its name.

    Returns:
        An array of keys, of the shape of `seeds`.

    Raises:
        TypeError: if `seeds` are not integers.
        ValueError: if the implementation is not supported.

    Example:
        >>> jax.extend.random.random_seed(jnp.arange(3), jax.extend.random.threefry_prng_impl).shape
        (3,)
    """
    dtype = random.key_dtype(impl)
    if np.ndim(seeds) == 0:
        return random.key(seeds, dtype=dtype)
    flat = jnp.asarray(seeds).reshape(-1)
    return vmap(lambda seed: random.key(seed, dtype=dtype))(flat).reshape(np.shape(seeds))


def seed_with_impl(impl: KeyDType | str, seed: ArrayLike) -> Array:
    """Return the PRNG keys of seeds; `random_seed` with its arguments exchanged.

    Args:
        impl: the implementation, such as `threefry_prng_impl`, or its name.
        seed: an integer, or an array of integers.

    Returns:
        An array of keys, of the shape of `seed`.

    Raises:
        TypeError: if `seed` is not an integer.
        ValueError: if the implementation is not supported.

    Example:
        >>> jax.extend.random.seed_with_impl(jax.extend.random.rbg_prng_impl, 3)
        Array((), dtype=key<rbg>) overlaying:
        [0 3 0 3]
    """
    return random_seed(seed, impl)


def threefry_2x32(keypair: ArrayLike, count: ArrayLike) -> Array:
    """Hash 32-bit numbers with threefry.

    The numbers of the first half of `count` and of its second half are hashed in pairs.

    Args:
        keypair: the key, two numbers of dtype uint32.
        count: the numbers, of dtype uint32.

    Returns:
        The hashes, of the shape of `count`.

    Raises:
        TypeError: if `keypair` or `count` is not of dtype uint32, or `keypair` is not of shape (2,).

    Example:
        >>> jax.extend.random.threefry_2x32(jnp.zeros(2, jnp.uint32), jnp.arange(2, dtype=jnp.uint32))
        Array([ 928981903, 3453687069], dtype=uint32)
    """
    key, counts = (as_operand(jnp.asarray(x), "threefry_2x32") for x in (keypair, count))
    if key.dtype != WORD or counts.dtype != WORD or key.shape != (2,):
        raise TypeError(
            f"threefry_2x32 needs a key of type u32[2] and numbers of dtype uint32, not {key.type} and {counts.type}"
        )
    flat = counts.reshape(-1)
    half = -(-flat.size // 2)
    high, low = flat[:half], jnp.concatenate([flat[half:], jnp.zeros(2 * half - flat.size, WORD)])
    blocks = hash_pairs(jnp.broadcast_to(key, (half, 2)), high, low)
    return jnp.concatenate([blocks[:, 0], blocks[:, 1]])[: flat.size].reshape(counts.shape)


publish(__name__, "rbg_prng_impl", "threefry_prng_impl", "unsafe_rbg_prng_impl")
