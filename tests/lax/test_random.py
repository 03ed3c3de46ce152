"""XLA's random generators: the bits of JAX for the same state, and the same bits for every sharding."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax

STATE = np.array([1, 2, 3, 4], np.uint32)


@pytest.mark.table(default=1)
@pytest.mark.jax
@pytest.mark.parametrize("algorithm", list(lax.RandomAlgorithm), ids=str)
def test_bits_match_jax(algorithm):
    jax = pytest.importorskip("jax")
    for dtype in ("uint8", "uint16", "uint32"):
        ours = lax.rng_bit_generator(STATE, (3, 5), dtype, algorithm)
        theirs = jax.lax.rng_bit_generator(STATE, (3, 5), dtype, int(algorithm))
        for x, y in zip(ours, theirs, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


def test_bits_do_not_depend_on_sharding(mesh):
    expected_state, expected_bits = lax.rng_bit_generator(STATE, (13, 6))
    for spec in (("data",), (None, "model"), ("data", "model"), ()):
        sharding = sw.NamedSharding(mesh, sw.P(*spec))
        state, bits = sw.jit(
            lambda s, sharding=sharding: lax.rng_bit_generator(s, (13, 6), out_sharding=sharding),
            out_shardings=(None, sharding),
        )(STATE)
        assert bits.sharding == sharding
        np.testing.assert_array_equal(state, expected_state)
        np.testing.assert_array_equal(bits, expected_bits)


@pytest.mark.jax
def test_vmap_over_states_uses_the_first_as_in_jax():
    jax = pytest.importorskip("jax")
    states = np.stack([STATE, STATE + 1])
    ours = sw.vmap(lambda s: lax.rng_bit_generator(s, (4,)))(states)
    theirs = jax.vmap(lambda s: jax.lax.rng_bit_generator(s, (4,)))(states)
    for x, y in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(x, y)


def test_rng_uniform_is_in_range_and_replicated(mesh):
    x = lax.rng_uniform(-1.0, 2.0, (1000,))
    assert x.dtype == np.float32
    assert -1 <= float(x.min()) < -0.9 and 1.9 < float(x.max()) < 2
    replicated = sw.NamedSharding(mesh, sw.P())
    copies = sw.jit(lambda: lax.rng_uniform(np.int32(0), np.int32(10), (100,)), out_shardings=replicated)()
    shards = [np.asarray(shard.data) for shard in copies.addressable_shards]
    assert set(shards[0].tolist()) == set(range(10))
    for shard in shards:  # each device has its own generator state, but all must hold the same numbers
        np.testing.assert_array_equal(shard, shards[0])
