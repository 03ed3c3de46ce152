"""Random bits and PRNG keys. An operand of keys may have any shape."""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise import lax, random
from shardwise import numpy as jnp
from shardwise.api.transformations.vmap import vmap
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.samplers.prng import hash_pairs
from shardwise.random.gamma import sample_gamma


def _per_key(function: Callable[..., Array], ndim: int) -> Callable[..., Array]:
    """Return `function` mapped over `ndim` leading dims."""
    for _ in range(ndim):
        function = vmap(function)
    return function


def _bits(keys: Array, *, bit_width: int, shape: tuple[int, ...]) -> Array:
    return _per_key(lambda key: random.bits(key, shape, np.dtype(f"uint{bit_width}")), keys.ndim)(keys)


def _split(keys: Array, *, shape: tuple[int, ...]) -> Array:
    return _per_key(lambda key: random.split(key, shape), keys.ndim)(keys)


def _fold_in(keys: Array, data: Array) -> Array:
    shape = np.broadcast_shapes(keys.shape, data.shape)
    return _per_key(random.fold_in, len(shape))(jnp.broadcast_to(keys, shape), jnp.broadcast_to(data, shape))


def _seed(seeds: Array, *, impl: str) -> Array:
    return _per_key(lambda seed: random.key(seed, impl=impl), seeds.ndim)(seeds)


def _gamma(keys: Array, a: Array, *, log_space: bool) -> Array:
    shape = a.shape[keys.ndim :]
    return _per_key(lambda key, a: sample_gamma(key, a, shape=shape, dtype=a.dtype, log=log_space), keys.ndim)(keys, a)


def _threefry2x32(*operands: Array) -> tuple[Array, Array]:
    shape = np.broadcast_shapes(*(x.shape for x in operands))
    key_high, key_low, high, low = (jnp.broadcast_to(x, shape).reshape(-1) for x in operands)
    blocks = hash_pairs(jnp.stack([key_high, key_low], 1), high, low)
    return blocks[:, 0].reshape(shape), blocks[:, 1].reshape(shape)


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "random_bits": _bits,
    "random_clone": random.clone,
    "random_fold_in": _fold_in,
    "random_gamma": _gamma,
    "random_seed": _seed,
    "random_split": _split,
    "random_unwrap": random.key_data,
    "random_wrap": lambda words, *, impl: random.wrap_key_data(words, impl=impl),
    "rng_bit_generator": lax.rng_bit_generator,
    "rng_uniform": lax.rng_uniform,
    "threefry2x32": _threefry2x32,
}
