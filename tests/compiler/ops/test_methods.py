"""Functions composed of ops, where their arithmetic is easy to get wrong."""

import ml_dtypes
import numpy as np
import pytest

from shardwise.compiler.arrays import reductions
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.trace.build import build


def run(function, *args):
    """What a function of arrays gives, staged and evaluated in numpy."""
    types = [ArrayType(np.shape(arg), arg.dtype) for arg in args]
    program, captured = build(lambda *xs: [function(*xs)], types, "f")
    assert captured == []
    return evaluate(program, args)[0]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("shape", [(5000,), (3, 5000)], ids=str)
def test_means_of_small_floats_neither_overflow_nor_stop_growing(dtype, shape):
    x = np.random.default_rng(0).uniform(100, 1000, shape).astype(dtype)
    found = run(lambda x: reductions.mean(x, axis=-1), x)
    assert found.dtype == dtype
    expected = x.astype(np.float64).mean(-1)
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=float(ml_dtypes.finfo(dtype).eps))


@pytest.mark.parametrize(
    ("given", "asked", "result"),
    [
        (np.float32, None, np.float32),
        (np.int32, None, np.float32),
        (np.bool_, None, np.float32),
        (np.uint8, np.float16, np.float16),
        (np.float32, np.int32, np.int32),
        (np.complex64, None, np.complex64),
    ],
)
def test_the_dtype_of_a_mean(given, asked, result):
    x = np.arange(6).reshape(2, 3).astype(given)
    found = run(lambda x: reductions.mean(x, axis=0, dtype=asked), x)
    assert found.dtype == result
    np.testing.assert_allclose(found, x.mean(0, dtype=asked or result))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_a_mean_of_nothing_is_nan(shape):
    x = np.zeros(shape, np.float32)
    np.testing.assert_array_equal(run(lambda x: reductions.mean(x, axis=0), x), np.full(shape[1:], np.nan))
    assert np.isnan(run(reductions.mean, x))


def test_a_python_integer_that_does_not_fit_is_refused():
    with pytest.raises(OverflowError, match="the integer 1099511627776 does not fit i32"):
        run(lambda x: x + 2**40, np.zeros(3, np.int32))


def test_python_integers_wrap_in_narrow_types():
    np.testing.assert_array_equal(run(lambda x: x + (-1), np.array([0, 1], np.uint8)), [255, 0])
