"""Derivatives of max, min and clamp at ties, at NaN, and along the operand that is not selected."""

import numpy as np
import pytest

from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.ops.elementwise.min_max import Clamp, Max, Min
from shardwise.compiler.transforms.jvp import jvp_program
from tests.compiler.ops.cases import one_op
from tests.compiler.ops.elementwise.tangents import tangent_of


@pytest.mark.parametrize(
    ("active", "expected"),
    [((True, True), [1.0, 10.0, 5.5]), ((True, False), [1.0, 0.0, 0.5]), ((False, True), [0.0, 10.0, 5.0])],
    ids=str,
)
def test_a_tie_shares_the_derivative_of_a_maximum(active, expected):
    program, _ = jvp_program(one_op(Max(), [parse_type("f32[3]")] * 2), active)
    x, y = np.array([2.0, 1.0, 3.0]), np.array([1.0, 2.0, 3.0])
    tangents = [np.full(3, 1.0)] * active[0] + [np.full(3, 10.0)] * active[1]
    _, tangent = evaluate(program, [x, y, *tangents])
    np.testing.assert_array_equal(tangent, expected)


@pytest.mark.parametrize("op", [Max(), Min()], ids=str)
def test_the_derivative_of_max_and_min_is_zero_at_nan(op):
    nan = np.nan
    tangent = tangent_of(op, ([nan, 1.0, nan], [1.0, nan, nan]), ([1.0] * 3, [10.0] * 3))
    np.testing.assert_array_equal(tangent, [0.0, 0.0, 0.0])


def test_an_infinite_tangent_of_the_operand_that_is_not_selected_is_ignored():
    np.testing.assert_array_equal(tangent_of(Min(), ([1.0], [2.0]), ([3.0], [np.inf])), [3.0])


def test_the_derivative_of_clamp_follows_the_active_operand():
    low, x, high = [0.0, 0.0, 0.0, 0.0, 2.0], [-1.0, 0.5, 0.0, 3.0, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0]
    tangent = tangent_of(Clamp(), (low, x, high), ([1.0] * 5, [10.0] * 5, [100.0] * 5))
    np.testing.assert_array_equal(tangent, [1.0, 10.0, 0.0, 100.0, 100.0])  # zero at a bound
