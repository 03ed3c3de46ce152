"""extend.random: threefry and keys of an implementation, like JAX's."""

import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import UnsupportedError
from shardwise.extend import random


@pytest.mark.jax
@pytest.mark.parametrize("shape", [(1,), (2,), (5,), (2, 3), (0,)], ids=str)
def test_threefry_like_jax(shape):
    pytest.importorskip("jax")
    from jax.extend import random as jax_random  # noqa: PLC0415 - without jax, the other tests run

    key, count = np.array([7, 9], np.uint32), np.arange(np.prod(shape), dtype=np.uint32).reshape(shape)
    ours = random.threefry_2x32(key, count)
    assert ours.shape == shape and ours.dtype == np.uint32
    np.testing.assert_array_equal(ours, jax_random.threefry_2x32(key, count))


@pytest.mark.parametrize("name", ["threefry", "rbg", "unsafe_rbg"])
def test_keys_of_an_implementation(name):
    impl = getattr(random, f"{name}_prng_impl")
    keys = random.random_seed(np.arange(4).reshape(2, 2), impl)
    assert keys.shape == (2, 2)
    expected = sw.random.key(3, impl=sw.random.key_impl(keys))
    np.testing.assert_array_equal(sw.random.key_data(keys[1, 1]), sw.random.key_data(expected))
    assert (random.seed_with_impl(impl, 3) == expected) and sw.random.key(3, dtype=impl) == expected


def test_errors():
    with pytest.raises(TypeError, match=r"needs a key of type u32\[2\] and numbers of dtype uint32"):
        random.threefry_2x32(np.zeros(2, np.int32), np.zeros(2, np.uint32))
    with pytest.raises(UnsupportedError, match=r"the implementation 'mine' cannot be added.*'rbg'"):
        random.define_prng_impl(key_shape=(2,), seed=1, split=1, random_bits=1, fold_in=1, name="mine")
