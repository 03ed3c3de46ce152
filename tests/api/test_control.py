"""Control flow functions: values, derivatives, vmap, callbacks, layouts, memory, and all error texts."""

from collections import Counter

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, tree
from shardwise.compiler.control.cond import Cond
from shardwise.compiler.control.scan import Scan
from shardwise.compiler.control.while_loop import While
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline
from shardwise.execute.executor import compile_request
from shardwise.execute.request import partition_request
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
    """Return the program of a function, with calls inlined and without dead equations."""
    return dce(inline(sw.make_jaxpr(function)(*args).program))


def ops(program):
    """Count the equations of each op, including those inside loops and branches."""
    return Counter(equation.op.name for equation in program.walk())


def loops(program):
    """Return the scans of a program in order, including nested ones."""
    return [equation.op for equation in program.walk() if isinstance(equation.op, Scan)]


# Values, compared with Python loops.


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
def test_scan_over_pytrees_matches_a_python_loop(reverse, unroll):
    init = {"a": np.float32(1), "b": np.float32(2)}
    xs = (XS[:, 0], {"n": np.arange(5, dtype=np.float32)})
    close(
        lax.scan(swap, init, xs, reverse=reverse, unroll=unroll, _split_transpose=True),
        python_scan(swap, init, xs, reverse=reverse),
    )


def test_nested_control_flow_matches_python():
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


def test_while_loop_matches_a_python_loop():
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


def test_switch_clamps_its_index():
    branches = [lambda x: x, lambda x: x * 2, lambda x: -x]
    expected = {-(2**31): 3, -1: 3, 0: 3, 1: 6, 2: -3, 3: -3, 2**31 - 1: -3}
    for index, value in expected.items():
        assert int(lax.switch(index, branches, 3)) == value
        assert int(sw.jit(lambda i: lax.switch(i, branches, 3))(index)) == value
    assert sw.vmap(lambda i: lax.switch(i, branches, 3))(jnp.array(list(expected))).tolist() == [*expected.values()]


def test_switch_index_dtype_can_be_narrower_than_the_number_of_branches():
    many = [lambda number=number: number for number in range(300)]
    for index in (np.int8(127), np.int8(-128), np.uint8(255), np.uint16(299), np.uint32(2**32 - 1)):
        expected = min(max(int(index), 0), 299)
        (found,) = evaluate(sw.make_jaxpr(lambda i: lax.switch(i, many))(index).program, [index])
        assert int(found) == expected


def test_only_one_branch_runs():
    seen = []
    tell = {name: lambda x, name=name: sw.debug.callback(lambda v: seen.append((name, float(v))), x) for name in "ab"}
    choose = sw.jit(lambda p, x: lax.cond(p, lambda: (tell["a"](x), x)[1], lambda: (tell["b"](x), -x)[1]))
    assert [float(choose(p, 2.0)) for p in (True, False)] == [2, -2]
    assert seen == [("a", 2.0), ("b", 2.0)]


def test_result_is_weakly_typed_if_the_first_branch_is():
    assert not lax.cond(True, lambda: 1.0, lambda: jnp.float32(2)).weak_type  # the first branch is false_fun
    assert lax.cond(True, lambda: jnp.float32(2), lambda: 1.0).weak_type
    assert lax.switch(1, [lambda: 1.0, lambda: jnp.float32(2), lambda: 3.0]).weak_type
    assert not lax.switch(0, [lambda: jnp.float32(2), lambda: 1.0]).weak_type
    assert lax.cond(True, lambda: 1.0, lambda: 2.0).weak_type


def test_weak_types_of_a_scan():
    """As in JAX, what is stacked is weak if it is weak for the weak carry at the start."""
    carry, (stacked, sums, halves) = lax.scan(lambda c, x: (c + x, (c, c + x, c.astype(np.float16))), 0.0, X)
    assert not carry.weak_type and stacked.weak_type and not sums.weak_type and not halves.weak_type
    carry, stacked = lax.scan(lambda c, x: (c + x, c), 0, X)  # the carry becomes a float
    assert (carry.dtype, carry.weak_type, stacked.dtype, stacked.weak_type) == (np.float32, False, np.float32, False)
    carry, stacked = lax.scan(lambda c, _: (c * 2, c), 1.0, length=3)
    assert carry.weak_type and stacked.weak_type


def test_weak_carry_is_promoted():
    half = X.astype(jnp.bfloat16)
    assert lax.scan(lambda c, x: (c + x, None), 0.0, half)[0].dtype == jnp.bfloat16
    assert lax.scan(lambda c, x: (c + x, None), 0, half)[0].dtype == jnp.bfloat16
    assert lax.fori_loop(0, 3, lambda i, c: c + i * 0.5, 0).dtype == np.float32
    # The second leaf is promoted to f16 through the first, one trace later.
    chain = lax.scan(lambda c, x: ((c[1], c[0] + x), None), (0, 0), X.astype(np.float16))[0]
    assert [x.dtype for x in chain] == [np.float16] * 2


def test_loop_index_is_promoted_with_its_bounds():
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


DEBUGGED = {
    "scan": lambda: lax.scan(swap, {"a": 1.0, "b": 2.0}, (XS[:, 0], {"n": X[:1] * np.ones(5, "f4")}), reverse=True),
    "fori": lambda: [lax.fori_loop(a, 3, lambda i, c: c + i, X) for a in (0, 5)],
    "grad of fori": lambda: sw.grad(lambda x: lax.fori_loop(0, 3, lambda i, c: c * x + i, x).sum())(X),
    "while": lambda: lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2, X),
    "vmap of while": lambda: sw.vmap(lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2 + 1, x))(XS),
    "vmap of fori": lambda: sw.vmap(lambda n: lax.fori_loop(0, n, lambda i, c: c + i, 0))(jnp.array([1, 3])),
    "cond": lambda: [lax.cond(p, lambda x: x * 2, lambda x: x, X) for p in (True, False)],
    "vmap of cond": lambda: sw.vmap(lambda x: lax.cond(x.sum() > 0, lambda: x * 2, lambda: x))(XS),
    "switch": lambda: [lax.switch(i, [lambda: X, lambda: X * 2]) for i in (-1, 1, 7)],
    "map": lambda: [lax.map(lambda row: row.sum() * X, XS, batch_size=size) for size in (None, 3)],
}


@pytest.mark.parametrize("name", DEBUGGED)
def test_disable_jit_gives_the_same_results(name):
    with sw.disable_jit():
        found = DEBUGGED[name]()
    close(found, DEBUGGED[name]())


# Derivatives, compared with finite differences in 64 bits.


@pytest.fixture
def x64(monkeypatch):
    monkeypatch.setattr(sw.config, "enable_x64", True)


MATRICES = RNG.uniform(-0.5, 0.5, (3, 4, 4))
SMOOTH = {
    "cond": lambda x: lax.cond(x.sum() > 0, lambda y: jnp.exp(y).sum(), lambda y: (y * y).sum(), x),
    "switch": lambda x: lax.switch(jnp.int32(1), [lambda: x[0] * 2, lambda: jnp.exp(x) @ x, lambda: 0.0]),
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
    "while": lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.exp(0.3 * c[1]) * x), (0, x))[
        1
    ].sum(),
    "while of x": lambda x: lax.while_loop(lambda c: c.sum() < 20, lambda c: c * (1 + x) + 0.1, x).sum(),
}


def slopes(f, x, step=1e-6):
    """Compute the gradient by finite differences."""
    moved = np.eye(len(x)) * step
    return np.array([(np.asarray(f(x + row)) - np.asarray(f(x - row))) / (2 * step) for row in moved])


OFTEN = ("cond", "scan of carry", "scan of ys", "while of x")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in (*SMOOTH, *FORWARD_ONLY)],
)
def test_derivatives_match_finite_differences(name, x64):
    f = {**SMOOTH, **FORWARD_ONLY}[name]
    x, v = X.astype(np.float64), np.array([0.5, -1.0, 2.0, 0.25])

    @sw.jit
    def forward(x):
        pushed = sw.jvp(f, (x,), (v,))[1], sw.linearize(f, x)[1](v)
        return f(x), sw.jacfwd(f)(x), sw.jacfwd(sw.jacfwd(f))(x), pushed

    first, second = slopes(lambda x: forward(x)[0], x), slopes(lambda x: forward(x)[1], x)
    close(forward(x)[1:], (first, second, (first @ v,) * 2), rtol=1e-5, atol=1e-7)

    @sw.jit
    def backward(x):
        return sw.grad(f)(x), sw.vjp(f, x)[1](2.0)[0], sw.hessian(f)(x), sw.jacrev(sw.grad(f))(x)

    if name in SMOOTH:
        close(backward(x), (first, 2 * first, second, second), rtol=1e-5, atol=1e-7)


def test_gradients_of_closed_over_values():
    def f(a, b):
        def step(c, x):
            return lax.cond(x > 0, lambda: c * a + x, lambda: c * sw.jit(lambda y: y * b)(a)), b * c

        return lax.scan(step, b, jnp.array([1.0, -1.0, 1.0]))[0]

    def plain(a, b):
        return (((b * a + 1) * a * b) * a) + 1

    np.testing.assert_allclose(f(0.5, 2.0), plain(0.5, 2.0))
    ours, expected = sw.grad(f, (0, 1))(0.5, 2.0), sw.grad(plain, (0, 1))(0.5, 2.0)
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


@pytest.mark.parametrize("outer", [lambda f: f, sw.checkpoint, sw.vmap], ids=["plain", "remat", "vmap"])
def test_custom_vjp_rules_are_used_inside_control_flow(outer):
    @sw.custom_vjp
    def f(x):
        return jnp.exp(x)

    f.defvjp(lambda x: (jnp.exp(x), x), lambda x, ct: (ct * 10.0 * jnp.exp(x),))  # ten times the slope

    def loss(x):
        def step(c, y):
            return lax.cond(y > 0, lambda: outer(f)(c), lambda: outer(lambda z: z * 2)(c)), None

        return lax.scan(step, x, jnp.array([1.0, -1.0, 1.0]))[0].sum()

    x = np.array([-1.0, -0.5], np.float32)
    inner = 2 * np.exp(x)
    np.testing.assert_allclose(sw.grad(loss)(x), 200 * np.exp(inner) * np.exp(x), rtol=1e-5)
    with pytest.raises(TypeError, match=r"custom_vjp: `(vmap_)?f` has a rule for reverse mode only"):
        sw.jvp(loss, (x,), (x,))


@pytest.mark.parametrize("policy", ["nothing_saveable", "dots_saveable", "everything_saveable"])
def test_checkpoint_policies_apply_inside_nested_loops(policy):
    w = MATRICES[0].astype(np.float32)

    def loss(x):
        def row(c, y):
            return lax.scan(lambda d, z: (jnp.exp(0.1 * (d @ w)) * z, d), c, jnp.array([1.0, 2.0]) * y)

        return lax.scan(row, x, jnp.array([0.5, 1.5]))[0].sum()

    saved = sw.checkpoint(loss, policy=getattr(sw.checkpoint_policies, policy))
    np.testing.assert_allclose(sw.grad(saved)(X), sw.grad(loss)(X), rtol=1e-5)
    counts = {"nothing_saveable": (3, 2), "dots_saveable": (2, 2), "everything_saveable": (2, 1)}
    found = ops(traced(sw.value_and_grad(saved), X))
    assert (found["dot"], found["exp"]) == counts[policy]


def test_reverse_mode_of_while_loop_raises():
    text = (
        r"`while` at test_control.py:\d+ cannot be differentiated in reverse mode: the trip count of a "
        r"while_loop is not known before it runs, so its residuals cannot be saved. Use scan, or fori_loop with bounds "
        r"that are Python integers; forward mode \(jvp, jacfwd\) works."
    )
    for f in (
        lambda x: lax.while_loop(lambda c: c < 3, lambda c: c * 2, x),
        lambda x: lax.scan(lambda c, y: (lax.while_loop(lambda d: d < y, lambda d: d * 2, c), None), x, X)[0],
        sw.jit(lambda x: lax.while_loop(lambda c: c < 3, lambda c: c * 2, x)),
    ):
        with pytest.raises(ValueError, match=text):
            sw.grad(f)(1.0)
    with pytest.raises(ValueError, match=text):
        sw.jit(sw.grad(lambda x, n: lax.fori_loop(0, n, lambda i, c: c * 2, x)))(1.0, 3)


def test_while_loop_without_tangents_is_allowed_in_reverse_mode():
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


def test_linear_transpose_of_a_loop_inside_a_call():
    def f(x):
        return lax.scan(lambda c, _: (sw.jit(lambda n, v: (n + 1, v * 2))(*c), c[0] * c[1]), (1, x), length=3)[1]

    (back,) = sw.linear_transpose(f, X)(np.ones((3, 4), np.float32))
    np.testing.assert_allclose(back, [1 * 1 + 2 * 2 + 3 * 4] * 4)


# Residuals: the structure of differentiated programs.


def test_grad_of_scan_stacks_only_varying_residuals():
    def loss(scale, x, xs):
        def step(c, row):
            return c * jnp.exp(scale) + row, jnp.exp(row)

        carry, stacked = lax.scan(step, x, xs)
        return carry.sum() + jnp.square(stacked).sum()

    program = traced(sw.grad(loss, (0, 1, 2)), X, X, XS)
    forward, backward = loops(program)
    # exp(scale) is loop-invariant and computed before the loop; exp(row) is a result anyway. Only c is stacked.
    assert ops(program)["exp"] == 2 and ops(forward.program)["exp"] == 1
    assert len(forward.program.outputs) == 3 and forward.carried == 1
    assert backward.reverse and ops(backward.program)["exp"] == 0


def test_linear_loop_has_no_residuals():
    program = traced(sw.grad(lambda x: lax.scan(lambda c, y: (c * 2 + y, c), x.sum(), x)[1].sum()), X)
    (backward,) = loops(program)
    assert backward.reverse and not backward.consts


def test_existing_slices_are_not_stacked_again():
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
        return lax.switch(jnp.int32(1), [lambda: jnp.exp(x) @ x, lambda: jnp.exp(2 * x) @ jnp.exp(x), lambda: x @ x])

    program = traced(sw.grad(loss), X)
    first, *_ = [equation.op for equation in program.walk() if isinstance(equation.op, Cond)]
    assert len(first.branches[0].outputs) == 2  # the maximum over the branches, not the sum
    assert [ops(branch)["exp"] for branch in first.branches] == [1, 2, 0]


# vmap: the structure of batched programs.


def test_vmap_does_not_batch_unmapped_carries():
    def f(x, w):
        carry, stacked = lax.scan(lambda c, row: ((c[0] * row, c[1] + x), row * 2), (w[0], x), w)
        n = lax.while_loop(lambda n: n < 3, lambda n: n + 1, 0)
        return carry, stacked, lax.cond(n > 1, lambda: x, lambda: -x), n

    program = traced(sw.vmap(f, (0, None)), XS, MATRICES[0].astype("f4"))
    (loop,) = loops(program)
    assert list(map(str, loop.program.out_types)) == ["f32[4]", "f32[5,4]", "f32[4]"]
    kinds = {type(equation.op): equation.op for equation in program.equations}
    assert list(map(str, kinds[While].body.out_types)) == ["i32[]~"]
    assert list(map(str, kinds[Cond].branches[0].out_types)) == ["f32[5,4]"]
    assert "select" not in ops(program)


def test_mapped_condition_stops_each_element_separately():
    f = sw.vmap(lambda x, y: lax.while_loop(lambda c: c < x, lambda c: c * 2 + y, 1.0), (0, None))
    assert f(jnp.array([0.0, 3.0, 20.0]), 1.0).tolist() == [1.0, 3.0, 31.0]
    program = traced(f, X, 1.0)
    (loop,) = [equation.op for equation in program.equations if isinstance(equation.op, While)]
    assert str(loop.cond.out_types[0]) == "bool[]"  # runs while any element does


def test_stopped_elements_do_not_affect_others():
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


# Callbacks: once each time that the program reaches them.


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
def test_callback_runs_once_per_iteration(name, outer):
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


def test_callback_in_a_while_condition_runs_once_per_evaluation():
    seen = []

    def goes_on(c):
        sw.debug.callback(lambda v: seen.append(int(v)), c)
        return c < 3

    for run in (lambda f: f, sw.jit):
        assert int(run(lambda c: lax.while_loop(goes_on, lambda c: c + 1, c))(0)) == 3
    assert sorted(seen) == [0, 0, 1, 1, 2, 2, 3, 3]


# Layouts.


def stages_of(function, *args):
    request, _ = sw.jit(function).request(args, {})
    return partition_request(request, request.target())[0]


def moves(local):
    """Count the collectives of a local program by type, outside and inside its loops."""
    outside = [equation for equation in local.collectives() if equation in local.program.equations]
    inside = [equation for equation in local.collectives() if equation not in local.program.equations]
    return [dict(Counter(equation.op.name for equation in found)) for found in (outside, inside)]


@pytest.mark.parametrize("rows", [8, 10])
@pytest.mark.parametrize("kind", ["scan", "while", "fori", "cond"])
def test_sharded_carry_stays_sharded(kind, rows, mesh):
    def turn(c):
        return jnp.exp(c * 0.1) + 1

    loop = {
        "scan": lambda x: lax.scan(lambda c, _: (turn(c), None), x, length=3)[0],
        "while": lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, turn(c[1])), (0, x))[1],
        "fori": lambda x: lax.fori_loop(0, 3, lambda i, c: turn(c) + i, x),
        "cond": lambda x: lax.cond(True, turn, lambda c: c, x),
    }[kind]
    x = RNG.normal(size=(rows, 6)).astype(np.float32)
    sharding = NamedSharding(mesh, P("data", "model"))
    placed = sw.device_put(x, sharding)
    assert moves(stages_of(loop, placed).local) == [{}, {}]
    found = sw.jit(loop)(placed)
    np.testing.assert_allclose(found, loop(x), rtol=1e-5)
    assert found.sharding == sharding


def test_carry_is_resharded_once_before_the_loop(mesh):
    # The carry starts replicated and the body shards it: it is sliced once, before the loop.
    x = np.ones((8, 4), np.float32)
    ys = sw.device_put(RNG.normal(size=(3, 8, 4)).astype(np.float32), NamedSharding(mesh, P(None, "data")))

    def f(x, ys):
        return lax.scan(lambda c, y: (c * y, c + y), x, ys)

    placed = sw.device_put(x, NamedSharding(mesh, P()))
    assert moves(stages_of(f, placed, ys).local) == [{}, {}]
    close(sw.jit(f)(placed, ys), f(x, np.asarray(ys)))


@pytest.mark.parametrize("rows", [8, 10])
def test_gradients_of_microbatches_are_reduced_once(rows, mesh):
    w = RNG.normal(size=(6, 5)).astype(np.float32)
    batches = RNG.normal(size=(4, rows, 6)).astype(np.float32)

    def total(w, batches):
        def step(sums, batch):
            gradient = sw.grad(lambda w: jnp.square(jnp.exp(0.1 * (batch @ w))).sum())(w)
            return sums + gradient, None

        return lax.scan(step, jnp.zeros_like(w), batches)[0]

    args = sw.device_put(w, NamedSharding(mesh, P())), sw.device_put(batches, NamedSharding(mesh, P(None, "data")))
    assert moves(stages_of(total, *args).local) == [{"all_reduce": 1}, {}]
    np.testing.assert_allclose(sw.jit(total)(*args), total(w, batches), rtol=1e-4)


@pytest.mark.parametrize("rows", [16, 10])
def test_megatron_layers_in_a_scan(rows, mesh):
    up, down = (RNG.normal(size=shape).astype(np.float32) / 4 for shape in ((3, 8, 16), (3, 16, 8)))
    x = RNG.normal(size=(rows, 8)).astype(np.float32)

    def model(up, down, x):
        return lax.scan(lambda h, w: (h + jnp.maximum(h @ w[0], 0.0) @ w[1], None), x, (up, down))[0]

    def loss(up, down, x):
        return jnp.square(model(up, down, x)).sum()

    specs = (P(None, None, "model"), P(None, "model", None), P("data"))
    args = [sw.device_put(a, NamedSharding(mesh, spec)) for a, spec in zip((up, down, x), specs, strict=True)]
    assert moves(stages_of(model, *args).local) == [{}, {"all_reduce": 1}]
    np.testing.assert_allclose(sw.jit(model)(*args), model(up, down, x), rtol=1e-4, atol=1e-5)
    gradient = sw.jit(sw.grad(loss, (0, 1)))
    # In the backward pass each layer reduces the cotangent of its input over model; weights are reduced over data.
    outside, inside = moves(stages_of(sw.grad(loss, (0, 1)), *args).local)
    assert inside["all_reduce"] + outside.get("all_reduce", 0) == 4 and set(inside) == {"all_reduce"}
    close(gradient(*args), sw.grad(loss, (0, 1))(up, down, x), rtol=1e-3, atol=1e-4)


def test_loop_invariant_values_are_gathered_before_the_loop(mesh):
    w = RNG.normal(size=(64, 64)).astype(np.float32) / 16
    x = RNG.normal(size=(512, 64)).astype(np.float32)

    def f(w, x):
        return lax.scan(lambda c, _: (jnp.exp(0.1 * (c @ w)), None), x, length=8)[0]

    args = sw.device_put(w, NamedSharding(mesh, P("data"))), sw.device_put(x, NamedSharding(mesh, P("data")))
    assert moves(stages_of(f, *args).local) == [{"all_gather": 1}, {}]
    np.testing.assert_allclose(sw.jit(f)(*args), f(w, x), rtol=1e-4)


@pytest.mark.parametrize("width", [64, 320])
def test_gradients_of_sharded_weights_are_reduce_scattered(width, mesh):
    ws = RNG.normal(size=(3, width, width)).astype(np.float32) / width
    x = RNG.normal(size=(8 * width, width)).astype(np.float32)

    def loss(ws, x):
        return lax.scan(lambda c, w: (sw.checkpoint(lambda c, w: jnp.exp(0.1 * (c @ w)))(c, w), None), x, ws)[0].sum()

    args = sw.device_put(ws, NamedSharding(mesh, P(None, "data"))), sw.device_put(x, NamedSharding(mesh, P("data")))
    gradient = sw.jit(sw.grad(loss), out_shardings=NamedSharding(mesh, P(None, "data")))
    request, _ = gradient.request(args, {})
    outside, inside = moves(partition_request(request, request.target())[0].local)
    # Weights stay sharded and are all-gathered one layer at a time, forward and backward. Small gradients are
    # reduce-scattered after the loop, large ones in it: the unreduced stack has the size of all gathered weights.
    if width == 64:
        assert (outside, inside) == ({"reduce_scatter": 1}, {"all_gather": 2})
    else:
        assert (outside, inside) == ({}, {"all_gather": 2, "reduce_scatter": 1})
    np.testing.assert_allclose(gradient(*args), sw.grad(loss)(ws, x), rtol=1e-3, atol=1e-4)


def test_condition_is_the_same_on_all_devices(mesh):
    x = RNG.normal(size=(10, 6)).astype(np.float32)
    placed = sw.device_put(x, NamedSharding(mesh, P("data", "model")))

    def f(x):
        grown = lax.while_loop(lambda c: c.sum() < 100.0, lambda c: c + 1, x)
        return lax.cond(x.sum() > grown.mean(), lambda: grown * 2, lambda: grown - 1)

    np.testing.assert_allclose(sw.jit(f)(placed), f(x), rtol=1e-5)


# Memory.

LAYERS, BATCH, WIDTH = 16, 64, 64


def temporary_bytes(wrap):
    def layer(x, w):
        return jnp.exp(-jnp.square(x @ w)) @ w

    def loss(ws, x):
        return lax.scan(lambda c, w: (wrap(layer)(c, w), None), x, ws)[0].sum()

    ws, x = np.zeros((LAYERS, WIDTH, WIDTH), np.float32), np.zeros((BATCH, WIDTH), np.float32)
    request, traced_program = sw.jit(sw.grad(loss)).request((ws, x), {})
    assert not traced_program.captured
    loaded = compile_request(request, []).executable.loaded
    return loaded.get_compiled_memory_stats().temp_size_in_bytes


def test_remat_saves_what_its_policy_selects():
    policies = sw.checkpoint_policies
    stack = LAYERS * BATCH * WIDTH * 4
    plain = temporary_bytes(lambda f: f)
    nothing = temporary_bytes(sw.checkpoint)
    dots = temporary_bytes(lambda f: sw.checkpoint(f, policy=policies.dots_saveable))
    everything = temporary_bytes(lambda f: sw.checkpoint(f, policy=policies.everything_saveable))
    # Each layer's input; then also the first product (the second is the next input); then also the result of `exp`.
    assert stack <= nothing < 1.5 * stack
    assert dots - nothing == pytest.approx(stack, rel=0.05)
    assert plain - dots == pytest.approx(stack, rel=0.05)
    assert everything == pytest.approx(plain, rel=0.05)


# Errors.


def a_pair(c, x):
    return c, x


def changes(c, x):
    return {"a": c["a"], "b": [c["b"][0].astype(np.int32)]}, x


def forgets(c, x):
    return {"a": c["a"]}, x


CARRY = {"a": 1.0, "b": [np.ones(2, np.float32)]}
THREE = np.ones(3, np.float32)
HERE = r"\(test_control.py:\d+\)"
ERRORS = {
    "scan changes a type": (
        lambda: lax.scan(changes, CARRY, THREE),
        rf"scan: `changes` {HERE} must return a carry of the types that it accepts:\n"
        r"  carry\['b'\]\[0\] is f32\[2\] before and i32\[2\] after an iteration\n"
        r"  Convert or reshape the returned carry, or start with a carry of that type.",
    ),
    "scan changes the tree": (
        lambda: lax.scan(forgets, CARRY, THREE),
        rf"scan: `forgets` {HERE} must return a carry of the pytree structure that it accepts; they differ "
        rf"at the root: "
        r"dict with keys {'a', 'b'} against dict with keys {'a'}: missing 'b'",
    ),
    "scan grows the tree": (
        lambda: lax.scan(lambda c, x: ((c, c), x), 1.0, THREE),
        r"of the pytree structure that it accepts; they differ at the root: one array against tuple of length 2",
    ),
    "scan returns no pair": (
        lambda: lax.scan(lambda c, x: c, 1.0, THREE),
        rf"scan: `<lambda>` {HERE} must return a pair \(carry, y\), not f32\[\]~",
    ),
    "scan returns a list": (
        lambda: lax.scan(lambda c, x: [c, x], 1.0, THREE),
        r"must return a pair \(carry, y\), not \[f32\[\]~, f32\[\]\]",
    ),
    "scan of unequal lengths": (
        lambda: lax.scan(a_pair, 1.0, {"a": THREE, "b": np.ones(2)}),
        rf"scan: all arrays of xs for `a_pair` {HERE} must have the same size along axis 0:\n  xs\['a'\] "
        rf"has 3\n  xs\['b'\] has 2",
    ),
    "scan of another length": (lambda: lax.scan(a_pair, 1.0, THREE, length=4), r"xs has 3\n  length has 4"),
    "scan of a scalar": (
        lambda: lax.scan(a_pair, 1.0, {"a": THREE, "b": 2.0}),
        rf"scan: xs\['b'\] for `a_pair` {HERE} is f32\[\]~: a scalar has no axis 0 to iterate over",
    ),
    "scan of nothing": (
        lambda: lax.scan(a_pair, 1.0),
        rf"scan: xs for `a_pair` {HERE} has no arrays: pass `length`",
    ),
    "scan of negative length": (lambda: lax.scan(a_pair, 1.0, length=-1), "scan: length must not be negative: -1"),
    "scan of a fraction": (
        lambda: lax.scan(a_pair, 1.0, length=2.5),
        r"scan: length must be a Python integer, not 2\.5",
    ),
    "scan of a traced length": (
        lambda: sw.jit(lambda n: lax.scan(a_pair, 1.0, length=n))(3),
        r"scan: length must be a Python integer, not Traced<i32\[\]~",
    ),
    "scan of no function": (lambda: lax.scan(3, 1.0, THREE), "scan: f must be a function, not 3"),
    "scan unrolled -1 times": (
        lambda: lax.scan(a_pair, 1.0, THREE, unroll=-1),
        "unroll must be a bool or an integer of at least 0, not -1",
    ),
    "scan unrolled by halves": (
        lambda: lax.scan(a_pair, 1.0, THREE, unroll=1.5),
        r"scan: unroll must be a Python integer, not 1\.5",
    ),
    "scan from a string": (
        lambda: lax.scan(a_pair, {"q": "text"}, THREE),
        rf"argument `c\['q'\]` of `a_pair` {HERE} is 'text' of type str",
    ),
    "scan over strings": (
        lambda: lax.scan(a_pair, 1.0, ["text"]),
        rf"argument `x\[0\]` of `a_pair` {HERE} is 'text' of type str",
    ),
    "scan to a string": (
        lambda: lax.scan(lambda c, x: (c, "text"), 1.0, THREE),
        "returned 'text' of type str as result",
    ),
    "while changes a type": (
        lambda: lax.while_loop(lambda c: c["n"] < 3, lambda c: {"n": c["n"] + 0.5}, {"n": jnp.int32(1)}),
        r"while_loop: .* must return a carry of .*:\n  carry\['n'\] is i32\[\] before and f32\[\]~ after",
    ),
    "while asks for a number": (
        lambda: lax.while_loop(lambda c: c, lambda c: c, 1.0),
        rf"while_loop: `<lambda>` {HERE} must return one boolean scalar, not f32\[\]~",
    ),
    "while asks for two": (
        lambda: lax.while_loop(lambda c: (c > 0, c > 1), lambda c: c, 1.0),
        r"must return one boolean scalar, not bool\[\], bool\[\]",
    ),
    "while asks for an array": (
        lambda: lax.while_loop(lambda c: c > 0, lambda c: c, THREE),
        r"must return one boolean scalar, not bool\[3\]",
    ),
    "while asks for nothing": (
        lambda: lax.while_loop(lambda c: None, lambda c: c, 1.0),
        "must return one boolean scalar, not nothing",
    ),
    "while of no condition": (
        lambda: lax.while_loop(3, a_pair, 1.0),
        "while_loop: cond_fun must be a function, not 3",
    ),
    "while of no body": (lambda: lax.while_loop(a_pair, 4, 1.0), "while_loop: body_fun must be a function, not 4"),
    "fori changes a type": (
        lambda: lax.fori_loop(0, 3, lambda i, c: {"a": c["a"] * THREE}, {"a": 1.0}),
        rf"fori_loop: `<lambda>` {HERE} must return a carry of the types that it accepts:\n"
        r"  carry\['a'\] is f32\[\]~ before and f32\[3\] after an iteration",
    ),
    "fori changes a type, to a traced bound": (
        lambda: sw.jit(lambda n: lax.fori_loop(0, n, lambda i, c: c * THREE, 1.0))(3),
        r"fori_loop: .*\n  carry is f32\[\]~ before and f32\[3\] after an iteration",
    ),
    "fori changes the tree": (
        lambda: lax.fori_loop(0, 3, lambda i, c: {"a": (c["a"],)}, {"a": 1.0}),
        r"fori_loop: .* they differ at \['a'\]: one array against tuple of length 1",
    ),
    "fori of floats": (
        lambda: lax.fori_loop(0.0, 3, a_pair, 1.0),
        r"fori_loop: lower must be an integer scalar, not f32\[\]~",
    ),
    "fori of arrays": (
        lambda: lax.fori_loop(0, np.ones(2, np.int32), a_pair, 1.0),
        r"fori_loop: upper must be an integer scalar, not i32\[2\]",
    ),
    "fori of two types": (
        lambda: lax.fori_loop(np.int16(0), np.int32(3), a_pair, 1.0),
        r"fori_loop: lower is i16\[\] and upper is i32\[\], but both must have the same dtype",
    ),
    "fori to a narrow bound": (
        lambda: sw.jit(lambda n: lax.fori_loop(300, n, a_pair, 1.0))(np.uint8(3)),
        r"fori_loop: lower=300 does not fit the dtype of the other bound, u8\[\]",
    ),
    "fori of no function": (lambda: lax.fori_loop(0, 3, 4, 1.0), "fori_loop: body_fun must be a function, not 4"),
    "fori from a string": (
        lambda: lax.fori_loop(0, 3, lambda i, c: c, "text"),
        rf"argument `c` of `<lambda>` {HERE} is 'text' of type str",
    ),
    "fori unrolled to a traced bound": (
        lambda: sw.jit(lambda n: lax.fori_loop(0, n, lambda i, c: c, 1.0, unroll=2))(3),
        "fori_loop: unroll needs concrete bounds, such as Python integers",
    ),
    "map of a scalar": (
        lambda: lax.map(lambda x: x, 3.0),
        rf"map: xs for `<lambda>` {HERE} is f32\[\]~: a scalar has no axis 0 to iterate over",
    ),
    "map of nothing": (
        lambda: lax.map(lambda x: x, None),
        "map: xs for .* has no arrays: the number of iterations is unknown",
    ),
    "map of no function": (lambda: lax.map(3, THREE), "map: f must be a function, not 3"),
    "map in empty batches": (
        lambda: lax.map(lambda x: x, THREE, batch_size=0),
        "map: batch_size must be at least 1, not 0",
    ),
    "cond by an array": (
        lambda: lax.cond(np.array([True, False]), lambda: 1, lambda: 2),
        r"cond: pred must be a scalar, not bool\[2\]",
    ),
    "cond by a string": (lambda: lax.cond("p", lambda: 1, lambda: 2), "cond: needs an array or a number, not 'p'"),
    "cond of no function": (lambda: lax.cond(True, lambda: 1, 2), "cond: false_fun must be a function, not 2"),
    "cond of two types": (
        lambda: lax.cond(True, lambda x: {"a": x, "b": x}, lambda x: {"a": x, "b": x.sum()}, THREE),
        rf"cond: all branches must return the same types:\n"
        rf"  result\['b'\]: f32\[3\] in `<lambda>` {HERE}, f32\[\] in `<lambda>` {HERE}",
    ),
    "cond of two trees": (
        lambda: lax.cond(True, lambda x: {"a": x, "b": x}, lambda x: {"a": x}, THREE),
        rf"cond: all branches must return the same pytree structure:\n"
        rf"  true_fun, `<lambda>` {HERE}, returns {{'a': f32\[3\], 'b': f32\[3\]}}\n"
        rf"  false_fun, `<lambda>` {HERE}, returns {{'a': f32\[3\]}}\n"
        r"  They differ at the root: dict with keys {'a', 'b'} against dict with keys {'a'}: missing 'b'.",
    ),
    "cond of a leaf and a tree": (
        lambda: lax.cond(True, lambda x: {"a": x}, lambda x: {"a": [x]}, THREE),
        r"They differ at \['a'\]: one array against list of length 1.",
    ),
    "cond of an array and a tuple": (
        lambda: lax.cond(True, lambda x: (x, x), lambda x: x, THREE),
        rf"true_fun, `<lambda>` {HERE}, returns \(f32\[3\], f32\[3\]\)\n"
        rf"  false_fun, `<lambda>` {HERE}, returns f32\[3\]\n"
        r"  They differ at the root: tuple of length 2 against one array.",
    ),
    "switch of two trees": (
        lambda: lax.switch(0, [lambda x: x, lambda x: x, lambda x: [x]], THREE),
        rf"branches\[0\], `<lambda>` {HERE}, returns f32\[3\]\n  branches\[2\], `<lambda>` {HERE}, returns \[f32",
    ),
    "cond with two ways to give operands": (
        lambda: lax.cond(True, lambda x: x, lambda x: x, 1.0, operand=2.0),
        "cond: pass the arguments of the branches by position or as `operand`, not both",
    ),
    "switch by a float": (
        lambda: lax.switch(1.0, [lambda: 1]),
        "switch: index must be an integer scalar, not f32",
    ),
    "switch of no branches": (lambda: lax.switch(0, []), "switch: branches must have at least one function"),
    "switch of no list": (lambda: lax.switch(0, 3), "switch: branches must be a sequence of functions, not 3"),
    "switch of no functions": (lambda: lax.switch(0, [lambda: 1, 3]), "switch: branches must be functions, not 3"),
    "switch of two types": (
        lambda: lax.switch(0, [lambda: 1, lambda: 2, lambda: 3.0]),
        r"switch: all branches must return the same types:\n  result: i32\[\]~ in .*, f32\[\]~ in",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    wrong, text = ERRORS[name]
    with pytest.raises((TypeError, ValueError, OverflowError), match=text):
        wrong()


@pytest.mark.parametrize("outer", [lambda f: f, sw.jit, sw.grad], ids=["eager", "jit", "grad"])
def test_leaked_tracer_of_a_loop_names_its_line(outer):
    kept = []

    def step(c, x):
        kept.append(c * x)
        return c + x, None

    line = step.__code__.co_firstlineno + 1
    text = (
        r"a traced f32\[\].* of `step` is used after `step` returned.\n"
        rf"  It was created at test_control.py:{line} by mul"
    )
    with pytest.raises(sw.errors.UnexpectedTracerError, match=text):
        outer(lambda x: (lax.scan(step, x, THREE), kept[0] + x)[1])(1.0)


@pytest.mark.parametrize("outer", [lambda f: f, sw.jit, sw.grad], ids=["eager", "jit", "grad"])
def test_python_if_on_a_carry_raises(outer):
    def step(c, x):
        return (c if c > 0 else x), None

    text = (
        r"Python needs True or False here .* but the value of this bool\[\] is not known while `step` is traced.\n"
        r"  It was created at"
    )
    with pytest.raises(sw.errors.TracerBoolConversionError, match=text):
        outer(lambda x: lax.scan(step, x, THREE)[0])(1.0)


def count_traces(call):
    """Return how often a function is traced in three eager calls of a control flow function with it."""
    traces = []

    def body(*args):
        traces.append(args)
        return (args[0] + 1.0, None) if len(args) == 2 else args[0] + 1.0

    results = [call(body) for _ in range(3)]
    close(results[0], results[2])
    return len(traces)


@pytest.mark.parametrize(
    "call",
    [
        lambda body: lax.scan(body, X, XS)[0],
        lambda body: lax.while_loop(lambda x: x[0] < 3, body, X),
        lambda body: lax.cond(True, body, lambda x: x, X),
        lambda body: lax.switch(1, [body, body], X),
    ],
)
def test_bodies_are_traced_once(call):
    assert count_traces(call) == 1


def test_bodies_are_traced_again_where_it_matters(mesh):
    traces = []

    def body(x, _):
        traces.append(x.type)
        return x * 2, sw.config.enable_x64

    lax.scan(body, X, None, 2)
    lax.scan(body, X[:2], None, 2)  # another type
    lax.scan(body, X, None, 2)
    assert len(traces) == 2
    with sw.set_mesh(mesh):
        lax.scan(body, X, None, 2)
    with sw.enable_x64(True):
        lax.scan(body, X, None, 2)
    assert len(traces) == 4
    sw.clear_caches()
    lax.scan(body, X, None, 2)
    assert len(traces) == 5


def test_a_body_that_closes_over_a_tracer_is_traced_again():
    """The tracer belongs to one trace; a cached body must not bring it into another one."""
    scale = None

    def body(x, _):
        return x * scale, None

    @sw.jit
    def scaled(factor, x):
        nonlocal scale
        scale = factor
        return lax.scan(body, x, None, 2)[0]

    close(scaled(2.0, X), X * 4)
    close(scaled(3.0, X[:2]), X[:2] * 9)
    close(sw.grad(lambda factor: scaled(factor, X).sum())(2.0), np.float32(4 * X.sum()))


def test_a_body_that_reads_a_ref_sees_its_new_value():
    ref = sw.new_ref(jnp.float32(2.0))

    def body(x, _):
        return x * ref[...], None

    close(lax.scan(body, X, None, 2)[0], X * 4)
    ref[...] = 3.0
    close(lax.scan(body, X, None, 2)[0], X * 9)


def test_a_body_with_unhashable_static_data():
    """A pytree node whose static data is a numpy array cannot be a key of a cache."""

    class Node:
        def __init__(self, x, static):
            self.x, self.static = x, static

    sw.tree_util.register_pytree_node(Node, lambda n: ((n.x,), n.static), lambda static, x: Node(x[0], static))
    node = Node(X, [1, 2])
    out, _ = lax.scan(lambda n, _: (Node(n.x + 1, n.static), None), node, None, 2)
    close(out.x, X + 2)
