"""Views of the bytes of arrays, against numpy."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import shardwise.numpy as jnp

DTYPES = [np.uint8, np.int16, np.float32, np.complex64, ml_dtypes.bfloat16]


@pytest.mark.parametrize("after", DTYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("before", DTYPES, ids=lambda dtype: dtype.__name__)
def test_a_view_has_the_bytes_of_the_array(before, after):
    bits = np.random.default_rng(0).integers(0, 64, (3, 16), np.uint8)  # exponents of finite numbers
    x = bits.view(before)
    found = np.asarray(jnp.asarray(x).view(after))
    assert (found.dtype, found.shape) == (x.view(after).dtype, x.view(after).shape)
    assert found.tobytes() == x.tobytes()


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(("uint2", "uint4", "uint8", "float32"), 2)))
def test_elements_narrower_than_a_byte_are_packed(before, after):
    widths = {"uint2": 2, "uint4": 4, "uint8": 8, "float32": 32}
    bits = np.random.default_rng(0).integers(0, 2, (3, 64))

    def pack(dtype):
        """Return elements of these bits, of which the low ones come first."""
        elements = bits.reshape(3, -1, widths[dtype])
        numbers = (elements << np.arange(widths[dtype])).sum(-1).astype(np.uint32)
        return jnp.asarray(numbers.view(np.float32) if dtype == "float32" else numbers).astype(dtype)

    view = pack(before).view(after)
    assert (view.dtype, view.shape) == (after, pack(after).shape)
    assert np.asarray(view).tobytes() == np.asarray(pack(after)).tobytes()


def test_booleans_are_bytes():
    assert jnp.asarray(np.array([1, 0, 2], np.uint8)).view(bool).tolist() == [True, False, True]
    assert jnp.asarray(np.array([True, False])).view(np.int8).tolist() == [1, 0]


@pytest.mark.parametrize("dtype", [np.int16, np.float32, np.complex64], ids=lambda dtype: dtype.__name__)
def test_bytes_are_swapped(dtype):
    x = np.arange(1, 7).astype(dtype)
    assert np.asarray(jnp.asarray(x).byteswap()).tobytes() == x.byteswap().tobytes()


def test_sizes_that_do_not_fit_are_errors():
    with pytest.raises(ValueError, match=r"the 48 bits of the last dim of i16\[3\] are not a multiple"):
        jnp.zeros(3, jnp.int16).view(jnp.float32)
    with pytest.raises(ValueError, match=r"a scalar .* cannot be viewed as int16, which has a different size"):
        jnp.float32(1).view(jnp.int16)
