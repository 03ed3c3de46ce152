"""Arrays that lax creates, against numpy."""

import numpy as np
import pytest

from shardwise import P, lax


def test_values_and_dtypes():
    np.testing.assert_array_equal(lax.full((2, 3), 7, np.int32), np.full((2, 3), 7, np.int32))
    np.testing.assert_array_equal(lax.full_like(np.zeros((2, 1), np.int8), 3), np.full((2, 1), 3, np.int8))
    np.testing.assert_array_equal(lax.iota(np.int32, 4), np.arange(4))
    np.testing.assert_array_equal(lax.broadcasted_iota(np.float32, (2, 3), 1), np.tile(np.arange(3), (2, 1)))
    assert lax.empty((2, 3), np.float32).shape == (2, 3)
    assert lax.full((), 1.0).weak_type and not lax.full((), 1.0, np.float32).weak_type


def test_the_result_has_the_sharding_that_is_asked_for(explicit_mesh):
    x = lax.broadcasted_iota(np.int32, (8, 4), 0, out_sharding=P("X", "Y"))
    assert x.sharding.spec == P("X", "Y")
    np.testing.assert_array_equal(x, np.repeat(np.arange(8)[:, None], 4, 1))


def test_a_dim_that_does_not_exist_is_an_error():
    with pytest.raises(ValueError, match=r"iota: dimension 2 does not exist in shape \(2, 3\)"):
        lax.broadcasted_iota(np.int32, (2, 3), 2)
