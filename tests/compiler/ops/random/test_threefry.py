"""Threefry against its published test vectors and JAX's hash, for counters of more than 32 bits."""

import numpy as np
import pytest

import shardwise as sw
from shardwise.compiler.ops.random.threefry import RandomBits, RandomKeys, threefry2x32

U32, U64 = np.uint32, np.uint64


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [  # from the Random123 library: threefry2x32 with 20 rounds
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_published_test_vectors(key, counter, words):
    count = U64(counter[0] << 32 | counter[1])
    with np.errstate(over="ignore"):
        assert tuple(int(word) for word in threefry2x32(U32(key[0]), U32(key[1]), count)) == words
    new_key = RandomKeys((), ())(sw.numpy.array(np.array(key, U32)), _array(count))
    assert tuple(new_key.tolist()) == words


def _array(x):
    """Return a 64-bit array, also if x64 is disabled."""
    before = sw.config.enable_x64
    sw.config.update("enable_x64", True)
    try:
        return sw.numpy.array(x)
    finally:
        sw.config.update("enable_x64", before)


@pytest.mark.jax
def test_counters_of_more_than_32_bits():
    """The last elements of an array with more than 2**32 elements, against JAX's own hash."""
    prng = pytest.importorskip("jax._src.random.threefry2x32")
    key = np.array([3, 4], U32)
    first = U64(2**33 - 5)
    bits = RandomBits((9,), (1,), 32)(sw.numpy.array(key), _array(first))
    counts = first + np.arange(9, dtype=U64)
    high, low = (counts >> U64(32)).astype(U32), counts.astype(U32)
    a, b = prng.threefry2x32_p.bind(np.full(9, key[0]), np.full(9, key[1]), high, low)
    np.testing.assert_array_equal(bits, np.asarray(a) ^ np.asarray(b))
