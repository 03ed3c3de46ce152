"""Python scalars as operands."""

import numpy as np
import pytest

from tests.compiler.arrays.test_reductions import run


def test_a_python_integer_out_of_range_raises():
    with pytest.raises(OverflowError, match="the integer 1099511627776 does not fit i32"):
        run(lambda x: x + 2**40, np.zeros(3, np.int32))


def test_python_integers_wrap_in_narrow_dtypes():
    np.testing.assert_array_equal(run(lambda x: x + (-1), np.array([0, 1], np.uint8)), [255, 0])
