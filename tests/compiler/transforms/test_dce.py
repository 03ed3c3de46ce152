"""dce: what nobody uses is left out, inside loops and branches too; effects and decisions stay."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.ops.control.control import Control
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline
from tests.compiler.ops.cases import op_cases

X = np.array([1.0, 2.0, 3.0], np.float32)
XS = np.arange(6, dtype=np.float32).reshape(2, 3)


def trimmed(function, *args):
    """The control ops of a function's program once it is trimmed, and that it still computes the same."""
    program = inline(sw.make_jaxpr(function)(*args).program)
    small = dce(program)
    for found, expected in zip(evaluate(verify(small), args), evaluate(program, args), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert dce(small) is small
    return [equation.op for equation in small.walk() if isinstance(equation.op, Control)]


def names(op):
    return sorted(equation.op.name for program in op.programs for equation in program.equations)


def test_a_carry_that_only_feeds_itself_goes():
    (loop,) = trimmed(lambda x: lax.scan(lambda c, _: ((c[0] * 2, c[1] + 1), None), (x, x), length=3)[0][0], X)
    assert loop.carried == 1 and "add" not in names(loop)


def test_a_carry_that_feeds_another_stays():
    (loop,) = trimmed(lambda x: lax.scan(lambda c, _: ((c[0] * c[1], c[1] + 1), None), (x, x), length=3)[0][0], X)
    assert loop.carried == 2


def test_a_chain_of_carries_stays_as_far_as_it_is_needed():
    def step(c, _):
        a, b, d, e = c
        return (a * b, b * d, d + 1, e * a), None

    (loop,) = trimmed(lambda x: lax.scan(step, (x, x, x, x), length=3)[0][0], X)
    assert loop.carried == 3


def test_slices_stacks_and_consts_go():
    def f(x, xs):
        k = jnp.exp(x)
        return lax.scan(lambda c, rows: (c + rows[0], (c * k, rows[1])), x, (xs, xs * 2))

    (loop,) = trimmed(lambda x, xs: f(x, xs)[0], X, XS)
    assert (len(loop.program.inputs), len(loop.program.outputs), loop.consts) == (2, 1, 0)
    (loop,) = trimmed(lambda x, xs: f(x, xs)[1][1], X, XS)
    assert (len(loop.program.inputs), len(loop.program.outputs), loop.carried) == (1, 1, 0)
    (loop,) = trimmed(lambda x, xs: f(x, xs)[1][0], X, XS)
    assert (len(loop.program.inputs), len(loop.program.outputs), loop.consts, loop.carried) == (3, 2, 1, 1)


def test_a_loop_that_nobody_uses_goes():
    assert trimmed(lambda x: (lax.scan(lambda c, _: (c * 2, c), x, length=3), x + 1)[1], X) == []
    assert trimmed(lambda x: (lax.cond(x[0] > 0, lambda: x, lambda: -x), x + 1)[1], X) == []
    assert trimmed(lambda x: (lax.while_loop(lambda c: c[0] < 3, lambda c: c + 1, x), x + 1)[1], X) == []


def test_what_a_while_loop_decides_by_stays():
    def f(x):
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2, c[2] * c[1]), (0, x, x))[1]

    (loop,) = trimmed(f, X)
    assert len(loop.body.outputs) == 2 and len(loop.cond.inputs) == 2


def test_results_and_operands_of_branches_go():
    def f(x, y):
        return lax.cond(x[0] > 0, lambda: (x * 2, jnp.exp(y)), lambda: (x, y))[0]

    (branch,) = trimmed(f, X, X)
    assert [len(p.outputs) for p in branch.branches] == [1, 1]
    assert [len(p.inputs) for p in branch.branches] == [1, 1] and "exp" not in names(branch)


def test_an_operand_stays_while_one_branch_uses_it():
    (branch,) = trimmed(lambda x, y: lax.cond(x[0] > 0, lambda: x, lambda: y), X, X)
    assert [len(p.inputs) for p in branch.branches] == [2, 2]


def test_loops_in_loops_are_trimmed():
    def step(c, row):
        inner, kept = lax.scan(lambda d, x: ((d[0] + x, d[1] * x), d[1]), (c[0], c[1]), row)
        return inner, kept

    outer, inner = trimmed(lambda x, xs: lax.scan(step, (x[0], x[1]), xs)[0][0], X, XS)
    assert outer.carried == inner.carried == 1
    assert len(outer.program.outputs) == len(inner.program.outputs) == 1 and "mul" not in names(inner)


def test_the_order_of_what_stays_is_kept():
    def f(x, y, z):
        return lax.scan(lambda c, row: ((c[2] * 1, c[1] - row, c[0] + 1), c[1] + c[2]), (x, y, z), jnp.stack([x, y]))

    def some(x, y, z):
        carry, stacked = f(x, y, z)
        return carry[2], stacked

    (loop,) = trimmed(some, X, X * 2, X * 3)
    assert loop.carried == 3
    (loop,) = trimmed(lambda x, y, z: f(x, y, z)[0][1], X, X * 2, X * 3)
    assert loop.carried == 1 and names(loop) == ["sub"]


@pytest.mark.parametrize("ordered", [False, True])
def test_effects_stay_with_what_they_need(ordered):
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


def test_a_program_without_dead_parts_is_handed_back():
    for case in op_cases():
        if isinstance(case.op, Control):
            once = dce(case.program)
            assert dce(once) is once


@pytest.mark.parametrize("case", [case for case in op_cases() if isinstance(case.op, Control)], ids=str)
def test_any_of_the_results_can_be_left_out(case):
    program, args = case.program, case.args
    expected = evaluate(program, args)
    for chosen in range(2 ** len(program.outputs)):
        kept = [n for n in range(len(program.outputs)) if chosen >> n & 1]
        part = Program(program.inputs, program.equations, tuple(program.outputs[n] for n in kept))
        found = evaluate(verify(dce(part)), args)
        for n, value in zip(kept, found, strict=True):
            assert value.tobytes() == expected[n].tobytes()
