"""Derivatives where a law of slopes cannot look: at ties, at NaN, and in the branch that was not taken."""

import numpy as np
import pytest

from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.ops.elementwise import Max, Select
from shardwise.compiler.transforms.jvp import jvp_program
from shardwise.compiler.transforms.transpose import transpose_program
from tests.compiler.ops.cases import one_op


@pytest.mark.parametrize(
    ("active", "expected"),
    [((True, True), [1.0, 10.0, 5.5]), ((True, False), [1.0, 0.0, 0.5]), ((False, True), [0.0, 10.0, 5.0])],
    ids=str,
)
def test_the_derivative_of_a_maximum_at_a_tie_is_shared(active, expected):
    program, _ = jvp_program(one_op(Max(), [parse_type("f32[3]")] * 2), active)
    x, y = np.array([2.0, 1.0, 3.0]), np.array([1.0, 2.0, 3.0])
    tangents = [np.full(3, 1.0)] * active[0] + [np.full(3, 10.0)] * active[1]
    _, tangent = evaluate(program, [x, y, *tangents])
    np.testing.assert_array_equal(tangent, expected)


def test_a_branch_that_was_not_taken_gets_zero_and_no_nan():
    types = [parse_type(text) for text in ("bool[2]", "f32[2]", "f32[2]")]
    program, _ = transpose_program(one_op(Select(), types), (False, True, True), (True,))
    to_x, to_y = evaluate(program, [np.array([True, False]), np.array([np.nan, np.inf])])
    np.testing.assert_array_equal(to_x, [np.nan, 0.0])
    np.testing.assert_array_equal(to_y, [0.0, np.inf])


def test_a_tangent_of_nan_does_not_cross_a_select():
    types = [parse_type(text) for text in ("bool[2]", "f32[2]", "f32[2]")]
    program, _ = jvp_program(one_op(Select(), types), (False, True, False))
    which, ones, nan = np.array([True, False]), np.ones(2), np.full(2, np.nan)
    _, tangent = evaluate(program, [which, ones, ones, nan])
    np.testing.assert_array_equal(tangent, [np.nan, 0.0])
