"""Derivatives of select along the branch that is not selected: no NaN passes."""

import numpy as np

from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.ops.elementwise.select import Select
from shardwise.compiler.transforms.jvp import jvp_program
from shardwise.compiler.transforms.transpose import transpose_program
from tests.compiler.ops.cases import one_op


def test_the_cotangent_of_a_branch_that_is_not_selected_is_zero():
    types = [parse_type(text) for text in ("bool[2]", "f32[2]", "f32[2]")]
    program, _ = transpose_program(one_op(Select(), types), (False, True, True), (True,))
    to_x, to_y = evaluate(program, [np.array([True, False]), np.array([np.nan, np.inf])])
    np.testing.assert_array_equal(to_x, [np.nan, 0.0])
    np.testing.assert_array_equal(to_y, [0.0, np.inf])


def test_a_nan_tangent_does_not_pass_a_select():
    types = [parse_type(text) for text in ("bool[2]", "f32[2]", "f32[2]")]
    program, _ = jvp_program(one_op(Select(), types), (False, True, False))
    condition, ones, nan = np.array([True, False]), np.ones(2), np.full(2, np.nan)
    _, tangent = evaluate(program, [condition, ones, ones, nan])
    np.testing.assert_array_equal(tangent, [np.nan, 0.0])
