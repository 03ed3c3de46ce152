"""Wrong arguments of nn functions: the typed error and its text."""

import numpy as np
import pytest

from shardwise import lax, nn, random

A, SCALES = np.ones((1, 2, 4), np.float32), np.ones((1, 2, 2), np.float32)
M, M_SCALES = np.ones((2, 4), np.float32), np.ones((2, 2), np.float32)


def scaled_dot(scales):
    numbers = (((1,), (1,)), ((), ()))
    return lax.scaled_dot(M, M, lhs_scale=scales, rhs_scale=M_SCALES, dimension_numbers=numbers)


CASES = [
    (
        lambda: nn.scaled_matmul(A[0], A, SCALES, SCALES),
        ValueError,
        "scaled_matmul: all operands must have rank 3, not ",
    ),
    (
        lambda: nn.scaled_matmul(A, A[..., :2], SCALES, SCALES),
        ValueError,
        r"scaled_matmul: f32\[1,2,4\] and f32\[1,2,2\] must have equal first and last dims",
    ),
    (
        lambda: nn.scaled_matmul(A, A, SCALES, SCALES[..., :1]),
        ValueError,
        r"scaled_matmul: scales f32\[1,2,2\] and f32\[1,2,1\] must have equal first and last dims",
    ),
    (
        lambda: nn.scaled_matmul(A, A, np.ones((1, 2, 3)), np.ones((1, 2, 3))),
        ValueError,
        "scaled_matmul: 4 elements cannot be divided into 3 blocks of equal size",
    ),
    (
        lambda: scaled_dot(np.ones(2, np.float32)),
        TypeError,
        r"scaled_dot: lhs_scale f32\[2\] must have the rank of lhs",
    ),
    (
        lambda: scaled_dot(np.ones((2, 3), np.float32)),
        TypeError,
        r"scaled_dot: lhs_scale f32\[2,3\] must divide contract",
    ),
    (
        lambda: scaled_dot(np.ones((1, 2), np.float32)),
        TypeError,
        r"scaled_dot: dim 0 of lhs_scale f32\[1,2\] must have",
    ),
    (
        lambda: nn.initializers.delta_orthogonal()(random.key(0), (2, 2)),
        ValueError,
        r"delta_orthogonal: the shape must have 3, 4 or 5 dims, not \(2, 2\)",
    ),
    (lambda: nn.one_hot(random.key(0), 3), TypeError, "one_hot: the indices must be integers, not "),
]


@pytest.mark.parametrize(("call", "error", "text"), CASES, ids=[text.replace("\\", "")[:40] for _, _, text in CASES])
def test_wrong_arguments_raise(call, error, text):
    with pytest.raises(error, match=f"^{text}"):
        call()
