"""Python scalars as operands, and shapes that do not broadcast."""

import numpy as np
import pytest

from tests.compiler.arrays.test_reductions import run


def test_a_python_integer_out_of_range_raises():
    with pytest.raises(OverflowError, match="the integer 1099511627776 does not fit i32"):
        run(lambda x: x + 2**40, np.zeros(3, np.int32))


def test_python_integers_wrap_in_narrow_dtypes():
    np.testing.assert_array_equal(run(lambda x: x + (-1), np.array([0, 1], np.uint8)), [255, 0])


@pytest.mark.parametrize("error", [TypeError, ValueError])
@pytest.mark.parametrize("shape", [(4,), (3, 10)])
def test_shapes_that_do_not_broadcast_raise_either_error_of_jax(shape, error):
    with pytest.raises(error, match=r"shapes \(3,\) and .* do not broadcast"):
        run(lambda x, y: x * y, np.zeros(3, np.float32), np.zeros(shape, np.float32))
