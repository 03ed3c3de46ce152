"""Transposes of linear programs against closed forms."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul, Neg
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.transforms.transpose import transpose_program
from tests.compiler.transforms.programs import ops_of, program


class TestTranspose:
    def test_a_value_with_several_uses_gets_the_sum_of_its_cotangents(self):
        body = program("thrice", "f64[3]", lambda x: [Add()(Add()(x, x), x)])
        backward, reached = transpose_program(body, (True,), (True,))
        assert reached == (True,)
        (found,) = evaluate(backward, [np.array([1.0, 2.0, 3.0])])
        np.testing.assert_array_equal(found, [3.0, 6.0, 9.0])

    def test_an_input_that_no_output_depends_on_gets_no_cotangent(self):
        body = program("first", "f64[3] f64[3]", lambda x, y: [Neg()(x), Neg()(Neg()(y))])
        backward, reached = transpose_program(body, (True, True), (True, False))
        assert reached == (True, False)
        assert ops_of(backward) == ["neg"]

    def test_outputs_that_are_inputs_or_repeat(self):
        body = program("same", "f64[3]", lambda x: [x, x, Neg()(x)])
        backward, _ = transpose_program(body, (True,), (True, True, True))
        (found,) = evaluate(backward, [np.full(3, 1.0), np.full(3, 10.0), np.full(3, 100.0)])
        np.testing.assert_array_equal(found, np.full(3, 1.0 + 10.0 - 100.0))

    def test_known_inputs_get_no_cotangent(self):
        body = program("scaled", "f64[3] f64[3]", lambda x, y: [Mul()(Exp()(y), x)])
        backward, reached = transpose_program(body, (True, False), (True,))
        assert reached == (True,)
        (found,) = evaluate(backward, [np.array([0.0, 1.0, 2.0]), np.ones(3)])
        np.testing.assert_allclose(found, np.exp([0.0, 1.0, 2.0]))


def test_results_of_a_loop_that_depend_on_known_values_alone_are_known():
    def solve(x):
        scale, product = lax.fori_loop(0, 3, lambda _, carry: (carry[0] * 1.5, carry[1] * carry[0]), (2.0, x))
        return product / scale

    (cotangent,) = sw.linear_transpose(solve, 1.0)(1.0)
    assert cotangent == 2 * 3 * 4.5 / 6.75


@pytest.mark.parametrize("flag", [False, True])
def test_results_of_a_branch_that_depend_on_known_values_alone_are_known(flag):
    def transposed(flag):
        def choose(x):
            scale, product = lax.cond(flag, lambda: (2.0, 3 * x), lambda: (5.0, x))
            return product * scale

        return sw.linear_transpose(choose, 1.0)(1.0)

    assert sw.jit(transposed)(flag) == ((6,) if flag else (5,))
