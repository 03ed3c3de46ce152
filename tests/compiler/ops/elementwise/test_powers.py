"""Derivatives of powers at zero."""

import numpy as np

from shardwise.compiler.ops.elementwise.powers import IntegerPow, Pow
from tests.compiler.ops.elementwise.tangents import tangent_of


def test_derivatives_of_powers_at_zero():
    x, y, ones, zeros = [0.0] * 3, [0.0, 1.0, 2.0], [1.0] * 3, [0.0] * 3
    np.testing.assert_array_equal(tangent_of(Pow(), (x, y), (ones, zeros)), [0.0, 1.0, 0.0])
    np.testing.assert_array_equal(tangent_of(Pow(), (x, y), (zeros, ones)), [0.0, 0.0, 0.0])
    assert tangent_of(IntegerPow(0), (x,), (ones,)) is None
    np.testing.assert_array_equal(tangent_of(IntegerPow(1), (x,), (ones,)), ones)
