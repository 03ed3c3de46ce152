"""Derivatives where the laws do not look: at ties, at NaN, and in branches that are not selected."""

import numpy as np
import pytest

from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.ops.elementwise.arithmetic import Rem
from shardwise.compiler.ops.elementwise.complex_parts import Abs
from shardwise.compiler.ops.elementwise.min_max import Clamp, Max, Min
from shardwise.compiler.ops.elementwise.powers import IntegerPow, Pow
from shardwise.compiler.ops.elementwise.select import Select
from shardwise.compiler.transforms.jvp import jvp_program
from shardwise.compiler.transforms.transpose import transpose_program
from tests.compiler.ops.cases import one_op


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


def tangent_of(op, operands, tangents):
    """Return the tangent of an op on floats; None if it is zero."""
    types = [parse_type(f"f32[{len(operands[0])}]")] * len(operands)
    program, nonzero = jvp_program(one_op(op, types), (True,) * len(operands))
    arrays = [np.array(array, np.float32) for array in (*operands, *tangents)]
    return evaluate(program, arrays)[1] if any(nonzero) else None


@pytest.mark.parametrize("op", [Max(), Min()], ids=str)
def test_the_derivative_of_max_and_min_is_zero_at_nan(op):
    nan = np.nan
    tangent = tangent_of(op, ([nan, 1.0, nan], [1.0, nan, nan]), ([1.0] * 3, [10.0] * 3))
    np.testing.assert_array_equal(tangent, [0.0, 0.0, 0.0])


def test_an_infinite_tangent_of_the_operand_that_is_not_selected_is_ignored():
    np.testing.assert_array_equal(tangent_of(Min(), ([1.0], [2.0]), ([3.0], [np.inf])), [3.0])


def test_the_derivative_of_abs_at_zero_is_one():
    np.testing.assert_array_equal(tangent_of(Abs(), ([0.0, -0.0, -2.0],), ([3.0] * 3,)), [3.0, 3.0, -3.0])


def test_the_derivative_of_clamp_follows_the_active_operand():
    low, x, high = [0.0, 0.0, 0.0, 0.0, 2.0], [-1.0, 0.5, 0.0, 3.0, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0]
    tangent = tangent_of(Clamp(), (low, x, high), ([1.0] * 5, [10.0] * 5, [100.0] * 5))
    np.testing.assert_array_equal(tangent, [1.0, 10.0, 0.0, 100.0, 100.0])  # zero at a bound


def test_derivatives_of_powers_at_zero():
    x, y, ones, zeros = [0.0] * 3, [0.0, 1.0, 2.0], [1.0] * 3, [0.0] * 3
    np.testing.assert_array_equal(tangent_of(Pow(), (x, y), (ones, zeros)), [0.0, 1.0, 0.0])
    np.testing.assert_array_equal(tangent_of(Pow(), (x, y), (zeros, ones)), [0.0, 0.0, 0.0])
    assert tangent_of(IntegerPow(0), (x,), (ones,)) is None
    np.testing.assert_array_equal(tangent_of(IntegerPow(1), (x,), (ones,)), ones)


def test_the_derivative_of_rem_along_the_divisor():
    tangent = tangent_of(Rem(), ([7.5, -7.5], [2.0, 2.0]), ([0.0, 0.0], [1.0, 1.0]))
    np.testing.assert_array_equal(tangent, [-3.0, 3.0])


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
