"""The derivative of abs at zero."""

import numpy as np

from shardwise.compiler.ops.elementwise.complex_parts import Abs
from tests.compiler.ops.elementwise.tangents import tangent_of


def test_the_derivative_of_abs_at_zero_is_one():
    np.testing.assert_array_equal(tangent_of(Abs(), ([0.0, -0.0, -2.0],), ([3.0] * 3,)), [3.0, 3.0, -3.0])
