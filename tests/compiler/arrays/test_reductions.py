"""Means: precision of narrow floats, result dtypes, empty axes."""

import ml_dtypes
import numpy as np
import pytest

from shardwise.compiler.arrays import reductions
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.trace.build import build


def run(function, *args):
    """Stage a function of arrays and evaluate it in numpy."""
    types = [ArrayType(np.shape(arg), arg.dtype) for arg in args]
    program, captured = build(lambda *xs: [function(*xs)], types, "f")
    assert captured == []
    return evaluate(program, args)[0]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("shape", [(5000,), (3, 5000)], ids=str)
def test_means_of_narrow_floats_are_accurate(dtype, shape):
    x = np.random.default_rng(0).uniform(100, 1000, shape).astype(dtype)
    result = run(lambda x: reductions.mean(x, axis=-1), x)
    assert result.dtype == dtype
    expected = x.astype(np.float64).mean(-1)
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=float(ml_dtypes.finfo(dtype).eps))


@pytest.mark.parametrize(
    ("operand", "dtype", "result"),
    [
        (np.float32, None, np.float32),
        (np.int32, None, np.float32),
        (np.bool_, None, np.float32),
        (np.uint8, np.float16, np.float16),
        (np.float32, np.int32, np.int32),
        (np.complex64, None, np.complex64),
    ],
)
def test_the_dtype_of_a_mean(operand, dtype, result):
    x = np.arange(6).reshape(2, 3).astype(operand)
    actual = run(lambda x: reductions.mean(x, axis=0, dtype=dtype), x)
    assert actual.dtype == result
    np.testing.assert_allclose(actual, x.mean(0, dtype=dtype or result))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_the_mean_of_no_elements_is_nan(shape):
    x = np.zeros(shape, np.float32)
    np.testing.assert_array_equal(run(lambda x: reductions.mean(x, axis=0), x), np.full(shape[1:], np.nan))
    assert np.isnan(run(reductions.mean, x))
