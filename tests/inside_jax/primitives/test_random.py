"""Random bits and PRNG keys: the numbers have the bits of JAX's."""

import numpy as np
import pytest

from shardwise.errors import UnsupportedError
from tests.inside_jax.primitives.cases import case, inside_jax, jax, jnp, like_jax

lax, random = jax.lax, jax.random

pytestmark = pytest.mark.jax

KEY = random.key(3)
KEYS = random.split(KEY, 8)
OLD = random.PRNGKey(5)
SEEDS = np.arange(8, dtype=np.int32)
ALPHA = np.random.default_rng(0).uniform(0.3, 3, (8, 6)).astype(np.float32)
DISCRETE = "random bits have no gradient"


def draw(function, *args, **options):
    return lambda key: function(key, *args, **options)


CASES = [
    case("bits", draw(random.bits, (8, 6), jnp.uint32), KEY, no_grad=DISCRETE),
    case("bits_8", draw(random.bits, (8, 6), jnp.uint8), KEY, no_grad=DISCRETE),
    case("bits_per_key", jax.vmap(draw(random.bits, (3,))), KEYS, no_grad=DISCRETE),
    case("split", draw(random.split, (2, 3)), KEY, no_grad=DISCRETE),
    case("fold_in", jax.vmap(random.fold_in), KEYS, SEEDS, no_grad=DISCRETE),
    case("fold_in of one number", jax.vmap(lambda key: random.fold_in(key, 3)), KEYS, no_grad=DISCRETE),
    case("fold_in into one key", jax.vmap(lambda n: random.fold_in(random.key(0), n)), SEEDS, no_grad=DISCRETE),
    case("seed", jax.vmap(random.key), SEEDS, no_grad=DISCRETE),
    case("seed_of_rbg", lambda s: random.key(s, impl="rbg"), np.int32(7), no_grad=DISCRETE),
    case("key_data", random.key_data, KEYS, no_grad=DISCRETE),
    case("wrap_key_data", lambda keys: random.wrap_key_data(random.key_data(keys)), KEYS, no_grad=DISCRETE),
    case("clone", random.clone, KEYS, no_grad=DISCRETE),
    case("old_keys", lambda key: (random.split(key), random.uniform(key, (8, 6))), OLD, no_grad=DISCRETE),
    case("old_keys_seeded", random.PRNGKey, np.int32(7), no_grad=DISCRETE),
    case("rbg", lambda s: random.bits(random.key(s, impl="rbg"), (8, 6)), np.int32(7), no_grad=DISCRETE),
    case("unsafe_rbg", lambda s: random.split(random.key(s, impl="unsafe_rbg"), 3), np.int32(7), no_grad=DISCRETE),
    case(
        "rng_bit_generator",
        lambda words: lax.rng_bit_generator(words, (8, 6)),
        np.arange(4, dtype=np.uint32),
        no_grad=DISCRETE,
    ),
    case(
        "threefry2x32",
        lambda words: jax.extend.random.threefry_2x32(words, jnp.arange(12, dtype=jnp.uint32)),
        np.arange(2, dtype=np.uint32),
        no_grad=DISCRETE,
    ),
    case("uniform", draw(random.uniform, (8, 6)), KEY, no_grad=DISCRETE, tolerance=0),
    case("randint", draw(random.randint, (8, 6), 0, 100), KEY, no_grad=DISCRETE),
    case("normal", draw(random.normal, (8, 6)), KEY, no_grad=DISCRETE),
    case("permutation", draw(random.permutation, 24), KEY, no_grad=DISCRETE),
    case("categorical", random.categorical, KEY, ALPHA, no_grad=DISCRETE),
    case("gamma", random.gamma, KEY, ALPHA, tolerance=2e-4),
    case("gamma_per_key", jax.vmap(random.loggamma), KEYS, ALPHA[:, 0].copy(), tolerance=2e-4),
    case("poisson", draw(random.poisson, 3.5, (8,)), KEY, no_grad=DISCRETE),
    case("dropout", lambda key, x: jnp.where(random.bernoulli(key, 0.5, x.shape), x, 0), KEY, ALPHA),
    case("truncated_normal", draw(random.truncated_normal, -1.0, 1.0, (8,)), KEY, no_grad=DISCRETE),
    case("ball", draw(random.ball, 3, shape=(4,)), KEY, no_grad=DISCRETE, tolerance=2e-4),
]


@like_jax(CASES)
def test_like_jax(check, case):
    check(case)


def test_rng_uniform_is_within_its_bounds():
    draws = inside_jax.jit(lambda low: lax.rng_uniform(low, 3.0, (64,)))(jnp.float32(2))
    assert draws.shape == (64,)
    assert 2 <= draws.min() < draws.max() < 3


def test_other_implementations_of_keys_are_an_error():
    with pytest.raises(UnsupportedError, match="PRNG keys of the implementation 'philox4x32' are not supported"):
        inside_jax.jit(random.bits)(random.key(0, impl="philox4x32"))
