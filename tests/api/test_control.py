"""Control flow as users write it: values, derivatives, maps, counts, layouts, memory, and every error's text."""

import re
from collections import Counter

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, tree
from shardwise.api.request import stages
from shardwise.compiler.ops.branch import Cond
from shardwise.compiler.ops.loop import While
from shardwise.compiler.ops.scan import Scan
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

RNG = np.random.default_rng(3)
X = RNG.uniform(0.5, 1.5, 4).astype(np.float32)
XS = RNG.uniform(-1, 1, (5, 4)).astype(np.float32)


def close(found, expected, rtol=1e-5, atol=1e-6):
    assert tree.structure(found) == tree.structure(expected)
    for a, b in zip(tree.leaves(found), tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol, atol)


def traced(function, *args):
    """The program of a function, without calls and dead equations."""
    return dce(inline(sw.make_jaxpr(function)(*args).program))


def ops(program):
    """How many equations of each op the program has, those inside loops and branches too."""
    return Counter(equation.op.name for equation in program.walk())


def loops(program):
    """The scans of a program, in order, those inside others too."""
    return [equation.op for equation in program.walk() if isinstance(equation.op, Scan)]


# Values: against loops in Python.


def python_scan(f, init, xs, length=None, reverse=False):
    count = length if xs is None else len(tree.leaves(xs)[0])
    carry, ys = init, [None] * count
    for i in reversed(range(count)) if reverse else range(count):
        carry, ys[i] = f(carry, None if xs is None else tree.map(lambda x, i=i: x[i], xs))
    return carry, tree.map(lambda *rows: np.stack(rows), *ys)


def swap(carry, x):
    return {"a": carry["b"] * x[0], "b": (carry["a"] + x[1]["n"])}, (carry["a"] - x[0], None)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("unroll", [1, 2, 5, 9, True])
def test_scan_of_trees_is_a_python_loop(reverse, unroll):
    init = {"a": np.float32(1), "b": np.float32(2)}
    xs = (XS[:, 0], {"n": np.arange(5, dtype=np.float32)})
    close(lax.scan(swap, init, xs, reverse=reverse, unroll=unroll), python_scan(swap, init, xs, reverse=reverse))


def test_loops_in_loops_in_conds_are_python():
    def whole(rows):
        def step(carry, row):
            def turn(state, x):
                i, c = state
                return (i + 1, lax.cond(x > 0, lambda c: c * 2 + i, lambda c: c - row.sum(), c)), None

            value = lax.scan(turn, (0, 1.0), row)[0][1]
            return lax.cond(value > 0, lambda: carry + value, lambda: carry - 1), value

        return lax.scan(step, 0.0, rows)

    carry, values = 0.0, []
    for row in XS:
        value = 1.0
        for i, x in enumerate(row):
            value = value * 2 + i if x > 0 else value - row.sum()
        values.append(value)
        carry = carry + value if value > 0 else carry - 1
    close(sw.jit(whole)(XS), (carry, np.array(values)))
    close(whole(XS), (carry, np.array(values)))


def test_while_is_a_python_loop():
    def collatz(n):
        return lax.while_loop(
            lambda c: c[0] != 1,
            lambda c: (lax.cond(c[0] % 2 == 0, lambda m: m // 2, lambda m: 3 * m + 1, c[0]), c[1] + 1),
            (n, 0),
        )[1]

    def steps(n):
        count = 0
        while n != 1:
            n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
        return count

    assert [int(sw.jit(collatz)(n)) for n in (1, 2, 7, 27)] == [steps(n) for n in (1, 2, 7, 27)]
    assert sw.vmap(collatz)(jnp.array([1, 2, 7, 27])).tolist() == [steps(n) for n in (1, 2, 7, 27)]


def test_switch_takes_the_nearest_branch():
    branches = [lambda x: x, lambda x: x * 2, lambda x: -x]
    expected = {-(2**31): 3, -1: 3, 0: 3, 1: 6, 2: -3, 3: -3, 2**31 - 1: -3}
    for index, value in expected.items():
        assert int(lax.switch(index, branches, 3)) == value
        assert int(sw.jit(lambda i: lax.switch(i, branches, 3))(index)) == value
    assert sw.vmap(lambda i: lax.switch(i, branches, 3))(jnp.array(list(expected))).tolist() == [*expected.values()]


def test_only_one_branch_runs():
    seen = []
    tell = {name: lambda x, name=name: sw.debug.callback(lambda v: seen.append((name, float(v))), x) for name in "ab"}
    choose = sw.jit(lambda p, x: lax.cond(p, lambda: (tell["a"](x), x)[1], lambda: (tell["b"](x), -x)[1]))
    assert [float(choose(p, 2.0)) for p in (True, False)] == [2, -2]
    assert seen == [("a", 2.0), ("b", 2.0)]


def test_a_branch_result_is_weak_only_where_all_are():
    assert not lax.cond(True, lambda: 1.0, lambda: jnp.float32(2)).weak_type
    assert not lax.cond(True, lambda: jnp.float32(2), lambda: 1.0).weak_type
    assert lax.cond(True, lambda: 1.0, lambda: 2.0).weak_type


def test_a_strong_carry_is_strong_at_every_step():
    carry, stacked = lax.scan(lambda c, x: (c + x, c), 0.0, X)
    assert not carry.weak_type and not stacked.weak_type
    carry, stacked = lax.scan(lambda c, _: (c * 2, c), 1.0, length=3)
    assert carry.weak_type and stacked.weak_type


def test_a_weak_carry_takes_the_type_that_it_meets():
    half = X.astype(jnp.bfloat16)
    assert lax.scan(lambda c, x: (c + x, None), 0.0, half)[0].dtype == jnp.bfloat16
    assert lax.scan(lambda c, x: (c + x, None), 0, half)[0].dtype == jnp.bfloat16
    assert lax.fori_loop(0, 3, lambda i, c: c + i * 0.5, 0).dtype == np.float32
    # One after the other: the second meets f16 by way of the first.
    chain = lax.scan(lambda c, x: ((c[1], c[0] + x), None), (0, 0), X.astype(np.float16))[0]
    assert [x.dtype for x in chain] == [np.float16] * 2


def test_the_index_of_a_loop_takes_the_type_of_what_it_meets():
    assert lax.fori_loop(0, 3, lambda i, c: c + i, np.uint8(254)).tolist() == 1
    assert lax.fori_loop(0, 3, lambda i, c: c * i, np.float16(2)).dtype == np.float16
    assert sw.jit(lambda n: lax.fori_loop(0, n, lambda i, c: c + i, np.uint8(254)))(3).tolist() == 1


def test_operand_may_be_none():
    assert lax.cond(False, lambda _: 1, lambda _: 2, operand=None).tolist() == 2
    assert lax.switch(1, [lambda _: 1, lambda _: 2], operand=None).tolist() == 2


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_map_in_batches(size):
    def f(t):
        return {"sum": t["x"].sum() * t["n"], "x": t["x"]}

    xs = {"x": XS, "n": np.arange(5, dtype=np.int32)}
    expected = {"sum": XS.sum(1) * np.arange(5), "x": XS}
    close(lax.map(f, xs, batch_size=size), expected)
    close(lax.map(f, xs), expected)


# Derivatives: against finite differences, in 64 bits.


@pytest.fixture
def x64(monkeypatch):
    monkeypatch.setattr(sw.config, "enable_x64", True)


MATRICES = RNG.uniform(-0.5, 0.5, (3, 4, 4))
SMOOTH = {
    "cond": lambda x: lax.cond(x.sum() > 0, lambda y: jnp.exp(y).sum(), lambda y: (y * y).sum(), x),
    "switch": lambda x: lax.switch(jnp.int32(1), [lambda: x.sum(), lambda: (jnp.exp(x) * x).sum(), lambda: 0.0]),
    "scan of consts": lambda x: lax.scan(lambda c, y: (c + jnp.exp(x * y).sum() * c, None), 1.0, np.arange(3.0))[0],
    "scan of carry": lambda x: lax.scan(lambda c, w: (jnp.exp(w @ c), None), x, MATRICES)[0].sum(),
    "scan of xs": lambda x: lax.scan(lambda c, y: (c * y + jnp.exp(c), c), 0.3, x)[1].sum(),
    "scan of ys": lambda x: jnp.square(lax.scan(lambda c, w: (w @ c, jnp.exp(c)), x, MATRICES, reverse=True)[1]).sum(),
    "fori": lambda x: lax.fori_loop(1, 4, lambda i, c: jnp.exp(c / i) * x, x).sum(),
    "map": lambda x: lax.map(lambda y: jnp.exp(y * x), x, batch_size=3).sum(),
    "all nested": lambda x: lax.scan(
        lambda c, w: (
            lax.fori_loop(0, 2, lambda i, d: lax.cond(d.sum() > i, lambda: jnp.exp(w @ d), lambda: d * x), c),
            None,
        ),
        x,
        MATRICES,
    )[0].sum(),
}
FORWARD_ONLY = {
    "while": lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.exp(c[1]) * x), (0, x))[1].sum(),
    "while of x": lambda x: lax.while_loop(lambda c: c.sum() < 20, lambda c: c * (1 + x) + 0.1, x).sum(),
}


def slopes(f, x, step=1e-6):
    """The gradient by finite differences."""
    moved = np.eye(len(x)) * step
    return np.array([(np.asarray(f(x + row)) - np.asarray(f(x - row))) / (2 * step) for row in moved])


@pytest.mark.parametrize("name", [*SMOOTH, *FORWARD_ONLY])
def test_derivatives_are_slopes(name, x64):
    f = sw.jit({**SMOOTH, **FORWARD_ONLY}[name])
    x, v = X.astype(np.float64), np.array([0.5, -1.0, 2.0, 0.25])
    first = slopes(f, x)
    np.testing.assert_allclose(sw.jacfwd(f)(x), first, rtol=1e-6)
    np.testing.assert_allclose(sw.jvp(f, (x,), (v,))[1], first @ v, rtol=1e-6)
    np.testing.assert_allclose(sw.linearize(f, x)[1](v), first @ v, rtol=1e-6)
    forward = sw.jit(sw.jacfwd(f))
    np.testing.assert_allclose(sw.jacfwd(forward)(x), slopes(forward, x), rtol=1e-5, atol=1e-7)
    if name in SMOOTH:
        np.testing.assert_allclose(sw.grad(f)(x), first, rtol=1e-6)
        np.testing.assert_allclose(sw.vjp(f, x)[1](2.0)[0], 2 * first, rtol=1e-6)
        backward = sw.jit(sw.grad(f))
        np.testing.assert_allclose(sw.hessian(f)(x), slopes(backward, x), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(sw.jacrev(backward)(x), slopes(backward, x), rtol=1e-5, atol=1e-7)


def test_derivatives_flow_through_closures_of_every_level():
    def f(a, b):
        def step(c, x):
            return lax.cond(x > 0, lambda: c * a + x, lambda: c * sw.jit(lambda y: y * b)(a)), b * c

        return lax.scan(step, b, jnp.array([1.0, -1.0, 1.0]))[0]

    def plain(a, b):
        return (((b * a + 1) * a * b) * a) + 1

    np.testing.assert_allclose(f(0.5, 2.0), plain(0.5, 2.0))
    ours, expected = sw.grad(f, (0, 1))(0.5, 2.0), sw.grad(plain, (0, 1))(0.5, 2.0)
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_while_in_reverse_says_what_to_do_instead():
    text = (
        r"`while` at test_control.py:\d+ cannot be differentiated in reverse mode: how often a while_loop runs is not "
        r"known beforehand, so what it computes on the way cannot be kept. Use scan, or fori_loop with bounds that are "
        r"Python integers; forward mode \(jvp, jacfwd\) works."
    )
    for f in (
        lambda x: lax.while_loop(lambda c: c < 3, lambda c: c * 2, x),
        lambda x: lax.scan(lambda c, y: (lax.while_loop(lambda d: d < y, lambda d: d * 2, c), None), x, X)[0],
        sw.jit(lambda x: lax.while_loop(lambda c: c < 3, lambda c: c * 2, x)),
    ):
        with pytest.raises(TypeError, match=text):
            sw.grad(f)(1.0)
    with pytest.raises(TypeError, match=text):
        sw.jit(sw.grad(lambda x, n: lax.fori_loop(0, n, lambda i, c: c * 2, x)))(1.0, 3)


def test_a_while_loop_of_what_does_not_move_is_no_obstacle():
    def f(x):
        n = lax.while_loop(lambda c: c < 5.0, lambda c: c * 2, sw.lax.stop_gradient(x))
        return x * n

    assert sw.grad(f)(3.0).tolist() == 6.0


def test_linear_transpose_of_a_loop_with_a_counter():
    def f(x):
        def step(carry, row):
            n, c = carry
            return (n + 1, c * 2.0), (c * n + row)

        return lax.scan(step, (1, x), jnp.broadcast_to(x, (3, 4)))

    (_, last), stacked = f(X)
    weights = RNG.uniform(-1, 1, (3, 4)).astype(np.float32)
    (back,) = sw.linear_transpose(lambda x: (f(x)[0][1], f(x)[1]), X)((X, weights))
    np.testing.assert_allclose(
        (np.asarray(last) * X).sum() + (np.asarray(stacked) * weights).sum(), back @ X, rtol=1e-5
    )


# What a derivative keeps: structure.


def test_grad_of_a_loop_stacks_only_what_changes():
    def loss(scale, x, xs):
        def step(c, row):
            return c * jnp.exp(scale) + row, jnp.exp(row)

        carry, stacked = lax.scan(step, x, xs)
        return carry.sum() + jnp.square(stacked).sum()

    program = traced(sw.grad(loss, (0, 1, 2)), X, X, XS)
    forward, backward = loops(program)
    # exp(scale) does not change: computed once, before the loop. exp(row) is a result: kept anyway. Only c is stacked.
    assert ops(program)["exp"] == 2 and ops(forward.program)["exp"] == 1
    assert len(forward.program.outputs) == 3 and forward.carried == 1
    assert backward.reverse and ops(backward.program)["exp"] == 0


def test_a_linear_loop_keeps_nothing():
    program = traced(sw.grad(lambda x: lax.scan(lambda c, y: (c * 2 + y, c), x.sum(), x)[1].sum()), X)
    (backward,) = loops(program)
    assert backward.reverse and not backward.consts


def test_slices_that_are_there_anyway_are_not_stacked_again():
    program = traced(sw.grad(lambda x: lax.scan(lambda c, w: (w @ c, None), x, MATRICES.astype("f4"))[0].sum()), X)
    assert [loop.carried for loop in loops(program)] == [1]  # the backward loop slices the matrices: no forward is left
    assert ops(program)["dot"] == 1


def test_grad_runs_the_forward_body_once():
    def loss(x):
        return lax.scan(lambda c, w: (jnp.exp(w @ c), None), x, MATRICES.astype("f4"))[0].sum()

    program = traced(sw.value_and_grad(loss), X)
    assert ops(program)["exp"] == 1 and ops(program)["dot"] == 2
    remat = traced(sw.value_and_grad(sw.checkpoint(loss)), X)
    assert ops(remat)["exp"] == 2
    inside = traced(
        sw.value_and_grad(
            lambda x: lax.scan(
                lambda c, w: (sw.checkpoint(lambda c, w: jnp.exp(w @ c))(c, w), None), x, MATRICES.astype("f4")
            )[0].sum()
        ),
        X,
    )
    assert [ops(loop.program)["exp"] for loop in loops(inside)] == [1, 1]
    assert [len(loop.program.outputs) - loop.carried for loop in loops(inside)] == [1, 0]  # the carry alone is stacked


def test_branches_share_the_slots_of_their_residuals():
    def loss(x):
        return lax.switch(
            jnp.int32(1), [lambda: jnp.exp(x).sum(), lambda: (jnp.exp(2 * x) * jnp.exp(x)).sum(), lambda: x.sum()]
        )

    program = traced(sw.grad(loss), X)
    first, *_ = [equation.op for equation in program.walk() if isinstance(equation.op, Cond)]
    assert len(first.branches[0].outputs) == 2  # as many as the branch that keeps most, not the sum of all
    assert [ops(branch)["exp"] for branch in first.branches] == [1, 2, 0]


# vmap: structure.


def test_vmap_leaves_alone_what_is_not_mapped():
    def f(x, w):
        carry, stacked = lax.scan(lambda c, row: ((c[0] * row, c[1] + x), row * 2), (w[0], x), w)
        n = lax.while_loop(lambda n: n < 3, lambda n: n + 1, 0)
        return carry, stacked, lax.cond(n > 1, lambda: x, lambda: -x), n

    program = traced(sw.vmap(f, (0, None)), XS, MATRICES[0].astype("f4"))
    (loop,) = loops(program)
    assert [str(type) for type in loop.program.out_types] == ["f32[4]", "f32[5,4]", "f32[4]"]
    kinds = {type(equation.op): equation.op for equation in program.equations}
    assert [str(type) for type in kinds[While].body.out_types] == ["i32[]~"]
    assert [str(type) for type in kinds[Cond].branches[0].out_types] == ["f32[5,4]"]
    assert "select" not in ops(program)


def test_a_mapped_condition_stops_each_element_on_its_own():
    f = sw.vmap(lambda x, y: lax.while_loop(lambda c: c < x, lambda c: c * 2 + y, 1.0), (0, None))
    assert f(jnp.array([0.0, 3.0, 20.0]), 1.0).tolist() == [1.0, 3.0, 31.0]
    program = traced(f, X, 1.0)
    (loop,) = [equation.op for equation in program.equations if isinstance(equation.op, While)]
    assert str(loop.cond.out_types[0]) == "bool[]"  # goes on while any does


def test_elements_that_have_stopped_do_not_spoil_the_others():
    def f(x):  # past the end it would divide by zero
        return lax.while_loop(lambda c: c[0] > 1, lambda c: (c[0] - 1, c[1] / (c[0] - 1)), (x, 1.0))[1]

    found, moved = sw.jvp(sw.vmap(f), (jnp.array([1.0, 2.0, 4.0]),), (jnp.ones(3),))
    np.testing.assert_allclose(found, [1, 1, 1 / 6], rtol=1e-6)
    assert np.isfinite(np.asarray(moved)).all()


def test_out_axes():
    f = sw.vmap(lambda x: lax.scan(lambda c, y: (c + y, c * y), x.sum(), x), out_axes=(0, 1))
    carry, stacked = f(XS)
    assert carry.shape == (5,) and stacked.shape == (4, 5)
    expected = [python_scan(lambda c, y: (c + y, c * y), row.sum(), row) for row in XS]
    np.testing.assert_allclose(carry, [c for c, _ in expected], rtol=1e-5)
    np.testing.assert_allclose(stacked, np.stack([ys for _, ys in expected], 1), rtol=1e-5)


# Effects: once for each time that the program comes there.


def watched(seen):
    def f(x):
        def step(c, y):
            sw.debug.callback(lambda v: seen.append(float(v)), y)
            return jnp.exp(c * 0.1) * y, None

        return lax.scan(step, x, jnp.array([1.0, 2.0, 3.0]))[0]

    return f


DERIVATIVES = {
    "plain": lambda f: f,
    "grad": sw.grad,
    "grad of grad": lambda f: sw.grad(sw.grad(f)),
    "jvp": lambda f: lambda x: sw.jvp(f, (x,), (1.0,)),
    "jacfwd of grad": lambda f: sw.jacfwd(sw.grad(f)),
    "remat": sw.checkpoint,
    "grad of remat": lambda f: sw.grad(sw.checkpoint(f)),
    "grad of remat that saves": lambda f: sw.grad(sw.checkpoint(f, policy=sw.checkpoint_policies.everything_saveable)),
    "grad of grad of remat": lambda f: sw.grad(sw.grad(sw.checkpoint(f))),
    "grad in a cond": lambda f: lambda x: lax.cond(x > 0, sw.grad(f), lambda y: y, x),
    "vmap": lambda f: lambda x: sw.vmap(f)(x[None]),
}


@pytest.mark.parametrize("outer", [lambda f: f, sw.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", DERIVATIVES)
def test_a_callback_runs_once_an_iteration(name, outer):
    seen = []
    sw.block_until_ready(outer(DERIVATIVES[name](watched(seen)))(jnp.float32(0.5) * 1))
    assert sorted(seen) == [1, 2, 3]


def test_ordered_callbacks_keep_the_order_of_nested_loops():
    seen = []

    def f(x):
        def inner(c, y):
            sw.debug.callback(lambda v: seen.append(int(v)), c, ordered=True)
            return c + y, None

        def outer(c, _):
            c = lax.scan(inner, c, jnp.arange(3))[0]
            lax.cond(c > 5, lambda: sw.debug.callback(lambda v: seen.append(-int(v)), c, ordered=True), lambda: None)
            return c, None

        return lax.scan(outer, x, length=2)[0]

    sw.block_until_ready(sw.jit(f)(1))
    assert seen == [1, 1, 2, 4, 4, 5, -7]


def test_a_callback_in_a_while_condition_runs_each_time_that_it_is_asked():
    seen = []

    def goes_on(c):
        sw.debug.callback(lambda v: seen.append(int(v)), c)
        return c < 3

    for run in (lambda f: f, sw.jit):
        assert int(run(lambda c: lax.while_loop(goes_on, lambda c: c + 1, c))(0)) == 3
    assert sorted(seen) == [0, 0, 1, 1, 2, 2, 3, 3]
