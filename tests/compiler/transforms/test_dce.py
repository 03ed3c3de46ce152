"""dce removes unused equations, inside loops and branches too, and keeps effects and decisions."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.control.call import Call
from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.ops.elementwise.arithmetic import Neg
from shardwise.compiler.ops.elementwise.transcendental import Exp
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline
from tests.compiler.ops.cases import op_cases
from tests.compiler.transforms.programs import SQUARE, program

X = np.array([1.0, 2.0, 3.0], np.float32)
XS = np.arange(6, dtype=np.float32).reshape(2, 3)


def control_ops_after_dce(function, *args):
    """Return the control ops of a function's program after dce, and check that it computes the same."""
    program = inline(sw.make_jaxpr(function)(*args).program)
    small = dce(program)
    for found, expected in zip(evaluate(verify(small), args), evaluate(program, args), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert dce(small) is small
    return [equation.op for equation in small.walk() if isinstance(equation.op, Control)]


def names(op):
    return sorted(equation.op.name for program in op.programs for equation in program.equations)


def test_a_carry_that_only_feeds_itself_is_removed():
    (loop,) = control_ops_after_dce(
        lambda x: lax.scan(lambda c, _: ((c[0] * 2, c[1] + 1), None), (x, x), length=3)[0][0], X
    )
    assert loop.carried == 1 and "add" not in names(loop)


def test_a_carry_that_feeds_another_is_kept():
    (loop,) = control_ops_after_dce(
        lambda x: lax.scan(lambda c, _: ((c[0] * c[1], c[1] + 1), None), (x, x), length=3)[0][0], X
    )
    assert loop.carried == 2


def test_a_chain_of_carries_is_kept_as_far_as_it_is_used():
    def step(c, _):
        a, b, d, e = c
        return (a * b, b * d, d + 1, e * a), None

    (loop,) = control_ops_after_dce(lambda x: lax.scan(step, (x, x, x, x), length=3)[0][0], X)
    assert loop.carried == 3


def test_unused_slices_stacks_and_consts_are_removed():
    def f(x, xs):
        k = jnp.exp(x)
        return lax.scan(lambda c, rows: (c + rows[0], (c * k, rows[1])), x, (xs, xs * 2))

    (loop,) = control_ops_after_dce(lambda x, xs: f(x, xs)[0], X, XS)
    assert (len(loop.program.inputs), len(loop.program.outputs), loop.consts) == (2, 1, 0)
    (loop,) = control_ops_after_dce(lambda x, xs: f(x, xs)[1][1], X, XS)
    assert (len(loop.program.inputs), len(loop.program.outputs), loop.carried) == (1, 1, 0)
    (loop,) = control_ops_after_dce(lambda x, xs: f(x, xs)[1][0], X, XS)
    assert (len(loop.program.inputs), len(loop.program.outputs), loop.consts, loop.carried) == (3, 2, 1, 1)


def test_an_unused_loop_is_removed():
    assert control_ops_after_dce(lambda x: (lax.scan(lambda c, _: (c * 2, c), x, length=3), x + 1)[1], X) == []
    assert control_ops_after_dce(lambda x: (lax.cond(x[0] > 0, lambda: x, lambda: -x), x + 1)[1], X) == []
    assert control_ops_after_dce(lambda x: (lax.while_loop(lambda c: c[0] < 3, lambda c: c + 1, x), x + 1)[1], X) == []


def test_the_values_that_a_while_loop_tests_are_kept():
    def f(x):
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2, c[2] * c[1]), (0, x, x))[1]

    (loop,) = control_ops_after_dce(f, X)
    assert len(loop.body.outputs) == 2 and len(loop.cond.inputs) == 2


def test_unused_results_and_operands_of_branches_are_removed():
    def f(x, y):
        return lax.cond(x[0] > 0, lambda: (x * 2, jnp.exp(y)), lambda: (x, y))[0]

    (branch,) = control_ops_after_dce(f, X, X)
    assert [len(p.outputs) for p in branch.branches] == [1, 1]
    assert [len(p.inputs) for p in branch.branches] == [1, 1] and "exp" not in names(branch)


def test_an_operand_that_one_branch_uses_is_kept():
    (branch,) = control_ops_after_dce(lambda x, y: lax.cond(x[0] > 0, lambda: x, lambda: y), X, X)
    assert [len(p.inputs) for p in branch.branches] == [2, 2]


def test_nested_loops_are_trimmed():
    def step(c, row):
        inner, kept = lax.scan(lambda d, x: ((d[0] + x, d[1] * x), d[1]), (c[0], c[1]), row)
        return inner, kept

    outer, inner = control_ops_after_dce(lambda x, xs: lax.scan(step, (x[0], x[1]), xs)[0][0], X, XS)
    assert outer.carried == inner.carried == 1
    assert len(outer.program.outputs) == len(inner.program.outputs) == 1 and "mul" not in names(inner)


def test_the_order_of_kept_values_does_not_change():
    def f(x, y, z):
        return lax.scan(lambda c, row: ((c[2] * 1, c[1] - row, c[0] + 1), c[1] + c[2]), (x, y, z), jnp.stack([x, y]))

    def some(x, y, z):
        carry, stacked = f(x, y, z)
        return carry[2], stacked

    (loop,) = control_ops_after_dce(some, X, X * 2, X * 3)
    assert loop.carried == 3
    (loop,) = control_ops_after_dce(lambda x, y, z: f(x, y, z)[0][1], X, X * 2, X * 3)
    assert loop.carried == 1 and names(loop) == ["sub"]


@pytest.mark.parametrize("ordered", [False, True])
def test_effects_and_their_operands_are_kept(ordered):
    seen = []

    def f(x):
        def step(c, row):
            sw.debug.callback(lambda v: seen.append(float(v)), c[0], ordered=ordered)
            return (c[0] + row, c[1] * row), c[1]

        lax.scan(step, (0.0, 1.0), x)
        lax.cond(x[0] > 0, lambda: sw.debug.callback(lambda v: seen.append(-float(v)), x[1]), lambda: None)
        return x + 1

    program = dce(inline(sw.make_jaxpr(f)(X).program))
    loop, branch = [equation.op for equation in program.equations if isinstance(equation.op, Control)]
    assert loop.carried == 1 and len(loop.program.outputs) == 1
    assert [branch.effect, loop.effect] == ["unordered", "ordered" if ordered else "unordered"]
    sw.block_until_ready(sw.jit(f)(X))
    assert sorted(seen) == [-2, 0, 1, 3]


def test_a_program_without_dead_equations_is_returned():
    for case in op_cases():
        if isinstance(case.op, Control):
            once = dce(case.program)
            assert dce(once) is once


@pytest.mark.parametrize("case", [case for case in op_cases() if isinstance(case.op, Control)], ids=str)
def test_any_subset_of_the_results_is_computed_correctly(case):
    program, args = case.program, case.args
    expected = evaluate(program, args)
    for chosen in range(2 ** len(program.outputs)):
        kept = [n for n in range(len(program.outputs)) if chosen >> n & 1]
        part = Program(program.inputs, program.equations, tuple(program.outputs[n] for n in kept))
        found = evaluate(verify(dce(part)), args)
        for n, value in zip(kept, found, strict=True):
            assert value.tobytes() == expected[n].tobytes()


class TestDce:
    def test_dead_equations_are_removed_and_inputs_are_kept(self):
        body = program("dead", "f64[3] f64[3]", lambda x, y: [Exp()(x), Neg()(Exp()(y))][:1])
        live = dce(body)
        assert [equation.op.name for equation in verify(live).equations] == ["exp"]
        assert live.inputs == body.inputs
        assert live.outputs == body.outputs

    def test_a_program_without_dead_equations_is_returned(self):
        assert dce(SQUARE) is SQUARE

    def test_an_equation_is_live_if_one_result_is(self):
        two = program("two", "f64[3]", lambda x: [Exp()(x), Neg()(x)])
        body = program("outer", "f64[3]", lambda x: [Call(two)(x)[1]])
        assert dce(body) is body

    def test_equations_that_only_dead_equations_use_are_dead(self):
        body = program("chain", "f64[3]", lambda x: [[x, Exp()(Neg()(Exp()(x)))][0]])
        assert dce(body).equations == ()
