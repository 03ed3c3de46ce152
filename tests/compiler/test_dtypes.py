"""Dtypes: ranges and predicates against those of numpy and ml_dtypes."""

import ml_dtypes
import numpy as np
import pytest

from shardwise.compiler.dtypes import (
    SHORT_NAMES,
    accumulation_dtype,
    has_infinity,
    highest,
    integer_range,
    is_float,
    is_inexact,
    is_integer,
    is_key,
    lowest,
    numpy_carrier,
    short_name,
)

NUMBERS = [dtype for dtype in SHORT_NAMES.values() if not is_key(dtype)]


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_predicates_and_bounds_agree_with_numpy(dtype):
    if is_integer(dtype):
        info = ml_dtypes.iinfo(dtype)
        assert integer_range(dtype) == (lowest(dtype), highest(dtype)) == (info.min, info.max)
    elif is_float(dtype):
        with np.errstate(all="ignore"):
            assert has_infinity(dtype) == bool(np.isinf(np.array(np.inf, np.float32).astype(dtype).astype(np.float32)))
        assert lowest(dtype) == (-np.inf if has_infinity(dtype) else ml_dtypes.finfo(dtype).min)
        assert highest(dtype) == (np.inf if has_infinity(dtype) else ml_dtypes.finfo(dtype).max)
    else:
        assert dtype.kind in "bc"
    assert is_inexact(dtype) == (is_float(dtype) or dtype.kind == "c")


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_the_carrier_holds_every_value(dtype):
    carrier = numpy_carrier(dtype)
    assert carrier.kind in "biufc"  # numpy's own
    if is_integer(dtype) or is_float(dtype):
        ends = np.array([lowest(dtype), highest(dtype)], dtype)
        np.testing.assert_array_equal(ends.astype(carrier).astype(dtype), ends)
    assert accumulation_dtype(dtype) == (carrier if is_float(dtype) else dtype)


def test_dtypes_that_are_not_supported_are_an_error():
    assert short_name(np.dtype(np.float32)) == "f32"
    with pytest.raises(TypeError, match="arrays of object are not supported; element types: "):
        short_name(np.dtype(object))
