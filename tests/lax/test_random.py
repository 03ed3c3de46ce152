"""XLA's own random numbers: those of JAX for the same state, and the same on every layout."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax

STATE = np.array([1, 2, 3, 4], np.uint32)


@pytest.mark.jax
@pytest.mark.parametrize("algorithm", list(lax.RandomAlgorithm), ids=str)
def test_bits_of_jax(algorithm):
    jax = pytest.importorskip("jax")
    for dtype in ("uint8", "uint16", "uint32"):
        mine = lax.rng_bit_generator(STATE, (3, 5), dtype, algorithm)
        theirs = jax.lax.rng_bit_generator(STATE, (3, 5), dtype, int(algorithm))
        for x, y in zip(mine, theirs, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


def test_bits_on_every_layout(mesh):
    wanted = lax.rng_bit_generator(STATE, (13, 6))
    for spec in (("data",), (None, "model"), ("data", "model"), ()):
        where = sw.NamedSharding(mesh, sw.P(*spec))
        state, bits = sw.jit(
            lambda s, where=where: lax.rng_bit_generator(s, (13, 6), out_sharding=where), out_shardings=(None, where)
        )(STATE)
        assert bits.sharding == where
        np.testing.assert_array_equal(state, wanted[0])
        np.testing.assert_array_equal(bits, wanted[1])


def test_bits_of_a_batch():
    states = np.stack([STATE, STATE + 1])
    after, bits = sw.vmap(lambda s: lax.rng_bit_generator(s, (4,)))(states)
    for number in range(2):
        state, wanted = lax.rng_bit_generator(states[number], (4,))
        np.testing.assert_array_equal(after[number], state)
        np.testing.assert_array_equal(bits[number], wanted)


def test_rng_uniform(mesh):
    found = lax.rng_uniform(-1.0, 2.0, (1000,))
    assert found.dtype == np.float32
    assert -1 <= float(found.min()) < -0.9 and 1.9 < float(found.max()) < 2
    whole = sw.NamedSharding(mesh, sw.P())
    copies = sw.jit(lambda: lax.rng_uniform(np.int32(0), np.int32(10), (100,)), out_shardings=whole)()
    parts = [np.asarray(shard.data) for shard in copies.addressable_shards]
    assert set(parts[0].tolist()) == set(range(10))
    for part in parts:  # every device has a state of its own, and all hold the same numbers
        np.testing.assert_array_equal(part, parts[0])
