"""Jaxprs: equations with JAX's names and parameters, evaluation under transformations, and interpreters of users."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.core import ClosedJaxpr, DropVar, Literal, eval_jaxpr, jaxpr_as_fun
from shardwise.extend.core import primitives

X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)


def network(x, w):
    y = jnp.tanh(x @ w) * 2.0 + 1
    y = jnp.where(y > 1, y, -y)
    total, rows = lax.scan(lambda c, row: (c + row.sum(), row**3), 0.0, y)
    total = lax.while_loop(lambda c: c < 100, lambda c: c * 2 + 50, total)
    total = lax.cond(total > 0, jnp.sin, jnp.cos, total)
    return sw.checkpoint(lambda r: jnp.sin(r).sum())(rows) + sw.jit(jnp.exp)(total) + sw.nn.relu(rows).max()


def test_names_and_parameters_are_those_of_jax():
    closed = sw.make_jaxpr(network)(X, W)
    names = [eqn.primitive.name for eqn in closed.eqns]
    for name in (
        "dot_general",
        "tanh",
        "mul",
        "gt",
        "select_n",
        "scan",
        "while",
        "cond",
        "checkpoint",
        "jit",
        "reduce_max",
    ):
        assert name in names
    by_name = {eqn.primitive.name: eqn for eqn in closed.eqns}
    assert by_name["dot_general"].params["dimension_numbers"] == (((1,), (0,)), ((), ()))
    assert by_name["reduce_max"].params["axes"] == (0, 1)
    assert isinstance(by_name["scan"].params["jaxpr"], ClosedJaxpr) and by_name["scan"].params["num_carry"] == 1
    assert by_name["jit"].params["inline"] is False
    assert by_name["tanh"].primitive is lax.tanh_p
    assert [var.aval.str_short() for var in closed.jaxpr.invars] == ["float32[4,3]", "float32[3,5]"]


@pytest.mark.parametrize("rebuilt", [False, True])
def test_evaluation_equals_the_function(rebuilt):
    closed = sw.make_jaxpr(network)(X, W)
    if rebuilt:  # as a library does that changes equations
        closed = ClosedJaxpr(closed.jaxpr.replace(eqns=[eqn.replace() for eqn in closed.eqns]), closed.consts)
    np.testing.assert_allclose(eval_jaxpr(closed.jaxpr, closed.consts, X, W)[0], network(X, W), rtol=1e-6)
    evaluate = jaxpr_as_fun(closed)
    np.testing.assert_allclose(sw.jit(evaluate)(X, W)[0], network(X, W), rtol=1e-6)
    xs = np.stack([X, 2 * X])
    np.testing.assert_allclose(sw.vmap(evaluate, (0, None))(xs, W)[0], sw.vmap(network, (0, None))(xs, W), rtol=1e-5)


def test_slices_at_traced_positions_have_parameters_of_jax():
    def shift(x, i):
        return lax.dynamic_update_slice(x, lax.dynamic_slice(x, (i, 0), (2, 3)), (0, 0))

    closed = sw.make_jaxpr(shift)(X, 1)
    by_name = {eqn.primitive.name: eqn for eqn in closed.eqns}
    assert by_name["dynamic_slice"].params == {"slice_sizes": (2, 3)}
    assert by_name["dynamic_update_slice"].primitive is lax.dynamic_update_slice_p
    np.testing.assert_array_equal(lax.dynamic_slice_p.bind(X, 1, 0, slice_sizes=[2, 3]), X[1:3])
    expected = np.concatenate([X[1:3], X[2:]])
    rebuilt = closed.jaxpr.replace(eqns=[eqn.replace() for eqn in closed.eqns])
    np.testing.assert_array_equal(eval_jaxpr(rebuilt, closed.consts, X, 1)[0], expected)


SQUARE = np.array([[4, 1, 0], [1, 5, 2], [0, 2, 6]], np.float32)


@pytest.mark.parametrize(
    ("function", "x", "name", "params"),
    [
        (lambda x: x.T, X, "transpose", {"permutation": (1, 0)}),
        (lambda x: lax.rev(x, (1,)), X, "rev", {"dimensions": (1,)}),
        (lambda x: lax.pad(x, 1.0, ((1, 2, 0), (0, -1, 1))), X, "pad", {"padding_config": ((1, 2, 0), (0, -1, 1))}),
        (lambda x: lax.argmax(x, 1, np.int32), X, "argmax", {"axes": (1,), "index_dtype": np.int32}),
        (lambda x: lax.argmin(x, 0, np.int32), X, "argmin", {"axes": (0,), "index_dtype": np.int32}),
        (lambda x: jnp.all(x > 0, 1), X, "reduce_and", {"axes": (1,), "out_sharding": None}),
        (lambda x: jnp.any(x > 0, 0), X, "reduce_or", {"axes": (0,), "out_sharding": None}),
        (lambda x: lax.cumsum(x, 1, reverse=True), X, "cumsum", {"axis": 1, "reverse": True}),
        (lambda x: lax.cumlogsumexp(x, 0), X, "cumlogsumexp", {"axis": 0, "reverse": False}),
        (lambda x: lax.bitcast_convert_type(x, np.int32), X, "bitcast_convert_type", {"new_dtype": np.int32}),
        (lambda x: lax.linalg.cholesky(x, symmetrize_input=False), SQUARE, "cholesky", {}),
        (
            lambda x: lax.linalg.triangular_solve(x, x, left_side=True, lower=True),
            SQUARE,
            "triangular_solve",
            {"left_side": True, "lower": True, "transpose_a": False, "conjugate_a": False, "unit_diagonal": False},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ops_that_jax_names_otherwise(function, x, name, params):
    closed = sw.make_jaxpr(sw.jit(function, inline=True))(x)
    by_name = {eqn.primitive.name: eqn for eqn in closed.eqns}
    assert by_name[name].params == params
    assert by_name[name].primitive is getattr(lax, f"{name}_p")
    rebuilt = closed.jaxpr.replace(eqns=[eqn.replace() for eqn in closed.eqns])
    np.testing.assert_array_equal(eval_jaxpr(rebuilt, closed.consts, x)[0], function(x))


def test_derivatives_of_an_evaluated_jaxpr():
    def f(x):
        return jnp.sum(jnp.sin(x) ** 2) + sw.nn.relu(x).sum()

    closed = sw.make_jaxpr(f)(X)
    np.testing.assert_allclose(sw.grad(lambda x: jaxpr_as_fun(closed)(x)[0])(X), sw.grad(f)(X), rtol=1e-6)


def test_captured_arrays_are_consts():
    captured = jnp.arange(3.0)
    closed = sw.make_jaxpr(lambda x: x + captured)(X)
    assert len(closed.consts) == len(closed.jaxpr.constvars) == 1 and closed.consts[0] is captured
    np.testing.assert_allclose(eval_jaxpr(closed.jaxpr, [jnp.ones(3)], X)[0], X + 1)
    with pytest.raises(ValueError, match="has 1 constants and 1 arguments, but 0 and 1 were passed"):
        eval_jaxpr(closed.jaxpr, [], X)


def test_literals_and_unused_results():
    closed = sw.make_jaxpr(lambda x: (x + 2, lax.top_k(jnp.ones(4), 2)[0])[0])(1.0)
    assert any(isinstance(atom, Literal) and atom.val == 2 for eqn in closed.eqns for atom in eqn.invars)
    assert any(isinstance(var, DropVar) for eqn in closed.eqns for var in eqn.outvars)


def test_an_interpreter_that_inverts_a_function():
    """Run a jaxpr backwards, as an example in JAX's documents does."""
    inverse_of = {lax.exp_p: jnp.log, lax.tanh_p: jnp.arctanh, lax.neg_p: lambda y: -y}

    def inverse(function):
        def run(y):
            jaxpr = sw.make_jaxpr(function)(y).jaxpr
            values = {jaxpr.outvars[0]: y}
            for eqn in reversed(jaxpr.eqns):
                values[eqn.invars[0]] = inverse_of[eqn.primitive](values[eqn.outvars[0]])
            return values[jaxpr.invars[0]]

        return run

    y = jnp.exp(jnp.tanh(-jnp.float32(0.3)))
    np.testing.assert_allclose(inverse(lambda x: jnp.exp(jnp.tanh(-x)))(y), 0.3, rtol=1e-5)
    np.testing.assert_allclose(sw.grad(inverse(jnp.exp))(2.0), 0.5, rtol=1e-6)


def test_constants_are_literals_of_elementwise_equations():
    def f(x):
        return 2 * x + 3, jnp.full(3, 2.0), (jnp.ones(3) + 1) @ x

    closed = sw.make_jaxpr(f)(jnp.arange(3.0))
    mul, add, *rest = closed.eqns
    assert (mul.primitive.name, float(mul.invars[0].val)) == ("mul", 2) and mul.invars[0].aval.shape == ()
    assert (add.primitive.name, float(add.invars[1].val)) == ("add", 3)
    assert {eqn.primitive.name for eqn in rest} == {"broadcast_in_dim", "add", "dot_general"}
    for result, expected in zip(
        eval_jaxpr(closed.jaxpr, closed.consts, np.arange(3.0)), f(jnp.arange(3.0)), strict=True
    ):
        np.testing.assert_array_equal(result, expected)


def test_primitives_of_elementwise_functions_accept_scalars():
    mul = primitives.mul_p.bind(2.0, jnp.arange(3.0))
    np.testing.assert_array_equal(mul, [0, 2, 4])
    np.testing.assert_array_equal(primitives.lt_p.bind(jnp.arange(3.0), jnp.float32(1)), [True, False, False])


def test_a_closed_jaxpr_and_its_parts_print_and_are_replaced():
    captured = jnp.arange(3.0)
    closed = sw.make_jaxpr(lambda x: x * captured + 1.0)(jnp.ones(3))
    assert [str(type) for type in closed.out_avals] == [str(type) for type in closed.jaxpr.out_avals] == ["f32[3]"]
    assert closed.effects == closed.jaxpr.effects == frozenset()
    assert closed.literals is closed.consts
    assert repr(closed.jaxpr.invars[0]) == "Var(f32[3])"
    literals = [atom for eqn in closed.eqns for atom in eqn.invars if isinstance(atom, Literal)]
    assert list(map(repr, literals)) == ["Literal(1.0)"]
    assert "mul" in str(closed.jaxpr)
    other = closed.replace(consts=[captured * 2])
    assert other.jaxpr is closed.jaxpr
    np.testing.assert_array_equal(eval_jaxpr(other.jaxpr, other.consts, jnp.ones(3))[0], np.arange(3.0) * 2 + 1)
    assert len(closed.map_jaxpr(lambda jaxpr: jaxpr.replace(eqns=jaxpr.eqns[:1])).eqns) == 1
