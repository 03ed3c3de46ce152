"""The slicing functions of lax against NumPy, and their errors."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax

X = np.arange(20, dtype=np.float32).reshape(5, 4)


def test_slice():
    np.testing.assert_array_equal(lax.slice(X, (1, 0), (5, 3)), X[1:5, 0:3])
    np.testing.assert_array_equal(lax.slice(X, [0, 1], [5, 4], [3, 2]), X[::3, 1:4:2])


@pytest.mark.table(default=2)
@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((1, 3), X[1:3]),
        ((None, None, 2), X[::2]),
        ((-2, None, 1, 1), X[:, -2:]),
        ((0, -1, 2, -1), X[:, 0:-1:2]),
        ((2, 2), X[2:2]),
    ],
    ids=str,
)
def test_slice_in_dim(args, expected):
    np.testing.assert_array_equal(lax.slice_in_dim(X, *args), expected)
    np.testing.assert_array_equal(sw.jit(lambda x: lax.slice_in_dim(x, *args))(X), expected)


def test_concatenate_and_rev():
    np.testing.assert_array_equal(lax.concatenate([X, X[:2]], 0), np.concatenate([X, X[:2]]))
    np.testing.assert_array_equal(lax.concatenate([X], 1), X)
    np.testing.assert_array_equal(lax.rev(X, (0, 1)), X[::-1, ::-1])


def test_pad():
    expected = np.full((6, 6), 9, np.float32)
    expected[1:, 0::2] = X[:, 1:]
    np.testing.assert_array_equal(lax.pad(X, 9.0, [(1, 0, 0), (-1, 1, 0)])[:, :3], expected[:, 0::2])
    np.testing.assert_array_equal(lax.pad(X[:, 1:], 9.0, [(1, 0, 0), (0, 1, 1)]), expected)
    assert lax.pad(X.astype(np.int8), 2, [(0, 1, 0), (0, 0, 0)]).dtype == np.int8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lax.slice(X, (0, 0), (6, 4)), "slice: 0:6 is out of bounds for dim 0 of f32[5,4]"),
        (lambda: lax.slice_in_dim(X, 0, -6), "slice: 0:-1 is out of bounds for dim 0 of f32[5,4]"),
        (lambda: lax.concatenate([], 0), "concatenate: needs at least one operand"),
        (lambda: lax.concatenate([X], 2), "concatenate: dim 2 does not exist in f32[5,4]"),
        (
            lambda: lax.concatenate([X, X.astype(np.int32)], 0),
            "concatenate: operands must have one dtype and equal sizes in all dims but 0, not f32[5,4], i32[5,4]",
        ),
        (lambda: lax.rev(X, (-1,)), "reverse: dims [-1] do not exist in f32[5,4]"),
        (lambda: lax.pad(np.arange(3), 0.5, [(1, 1, 0)]), "pad: i32[3] cannot hold a padding value of type f32[]~"),
        (
            lambda: lax.pad(X, 0.0, [(1, 1), (0, 0)]),
            "pad: padding_config must have (low, high, interior) for each dim, not [(1, 1), (0, 0)]",
        ),
        (
            lambda: lax.pad(X, X[0], [(0, 0, 0)] * 2),
            "pad: the padding value of f32[5,4] must be a scalar of the same dtype, not f32[4]",
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_error_messages(call, message):
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == message


def test_traced_index_is_an_error():
    with pytest.raises(sw.errors.TracerIntegerConversionError):
        sw.jit(lambda x, i: lax.slice(x, (i, 0), (5, 4)))(X, 1)
