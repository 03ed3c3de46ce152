"""Functions computed by recurrences, against scipy."""

import numpy as np
import pytest
import scipy.special

from shardwise.scipy.recurrences import bessel_jn

Z = np.array([0.0, 0.3, 1.0, 7.5, 20.0], np.float32)


def test_bessel_functions_equal_those_of_scipy():
    found = np.asarray(bessel_jn(Z, v=6, n_iter=60))
    np.testing.assert_allclose(found, [scipy.special.jv(order, Z) for order in range(7)], atol=2e-6)


def test_a_negative_order_is_an_error():
    with pytest.raises(ValueError, match="bessel_jn: the order v must be 0 or more, not -1"):
        bessel_jn(Z, v=-1)
