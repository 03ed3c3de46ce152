"""Calls, loops, branches, and functions with rules of their own."""

from functools import partial

import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.scheduling_groups import scheduling_group
from jax.experimental.xla_metadata import set_xla_metadata

from tests.inside_jax.primitives.cases import NamedSharding, P, case, inside_jax, jax, jnp, like_jax, mesh, place

lax = jax.lax

pytestmark = pytest.mark.jax

X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)


@jax.custom_jvp
def with_jvp(x):
    return x**2


with_jvp.defjvp(lambda primals, tangents: (with_jvp(*primals), 5.0 * tangents[0]))


@jax.custom_vjp
def with_vjp(x):
    return x**2


with_vjp.defvjp(lambda x: (with_vjp(x), x), lambda x, ct: (3.0 * ct * x,))


@jax.custom_batching.custom_vmap
def with_vmap(x):
    return jnp.sin(x)


with_vmap.def_vmap(lambda size, batched, x: (jnp.sin(x), batched[0]))


@partial(lax.composite, name="shardwise.twice")
def twice(x, *, factor):
    return x * np.float32(factor)


@jax.remat
def remat(x):
    return jnp.sin(jnp.sin(x))


def diagonal_solve(x):
    diagonal = 2 + x**2

    def matvec(y):
        return diagonal * y

    return lax.custom_linear_solve(matvec, x, lambda _, b: b / diagonal, symmetric=True)


def linear_call(x):
    return jax.custom_derivatives.linear_call(
        lambda r, x: r * x, lambda r, ct: 3 * r * ct, jnp.cos(lax.stop_gradient(x)), x
    )


def platform(x):
    return lax.platform_dependent(x, cpu=jnp.sin, tpu=jnp.cos, default=jnp.tan)


@jax.custom_vjp
def with_optimized_remat(x):
    return jnp.sin(x)


with_optimized_remat.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (2 * ct * jnp.cos(x),), optimize_remat=True)


def accumulate(x):
    total = jax.new_ref(jnp.zeros_like(x[0]))

    def body(i, _):
        total[...] += jnp.sin(x[i])

    lax.fori_loop(0, 8, body, None)
    return jax.freeze(total)


def scan_of(reverse, unroll=1):
    def run(x):
        def body(carry, row):
            carry = jnp.tanh(carry + row)
            return carry, carry * 2

        return lax.scan(body, jnp.zeros(6), x, reverse=reverse, unroll=unroll)

    return run


CASES = [
    case("jit", jax.jit(jnp.sin), X),
    case("cond", lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), X),
    case("switch", lambda x, i: lax.switch(i, [jnp.sin, jnp.cos, jnp.tanh], x), X, np.int32(7)),
    case("scan", scan_of(reverse=False), X),
    case("scan_reverse", scan_of(reverse=True, unroll=3), X),
    case("scan_without_inputs", lambda x: lax.scan(lambda c, _: (jnp.sin(c), c), x, None, length=3), X),
    case("fori_loop", lambda x: lax.fori_loop(0, 3, lambda i, x: jnp.sin(x) + i, x), X),
    case(
        "while",
        lambda x: lax.while_loop(lambda x: jnp.sum(x) < 50, lambda x: x + jnp.abs(x[:1]), x),
        X,
        no_grad="JAX has none",
    ),
    case(
        "while with a weakly typed condition",
        lambda x: lax.while_loop(lambda carry: carry[0] < 3, lambda carry: (carry[0] + 1, jnp.sin(carry[1])), (0, x)),
        X,
        no_grad="JAX has none",
    ),
    case("associative_scan", lambda x: lax.associative_scan(jnp.add, x), X),
    case("map", lambda x: lax.map(jnp.cumsum, x), X),
    case("custom_jvp", with_jvp, X),
    case("custom_vjp", with_vjp, X),
    case("custom_vmap", with_vmap, X, no_grad="JAX needs a rule"),
    case("custom_vmap_batched", jax.vmap(with_vmap), X, no_grad="JAX needs a rule"),
    case("custom_gradient", jax.custom_gradient(lambda x: (x**2, lambda ct: 7 * ct * x)), X),
    case("composite", partial(twice, factor=3.0), X, no_grad="JAX has none"),
    case("checkpoint", remat, X),
    case(
        "checkpoint_policy",
        jax.checkpoint(
            lambda x: jnp.sin(checkpoint_name(jnp.sin(x), "inner")),
            policy=jax.checkpoint_policies.save_only_these_names("inner"),
        ),
        X,
    ),
    case("optimization_barrier", lambda x: lax.optimization_barrier((x, 2 * x))[1], X),
    case("custom_linear_solve", diagonal_solve, X),
    case(
        "custom_root",
        lambda x: lax.custom_root(
            lambda y: y**3 - x, jnp.ones_like(x), lambda f, y: jnp.cbrt(x), lambda g, y: y / g(jnp.ones_like(y))
        ),
        X + 4,
    ),
    case("linear_call", linear_call, X),
    case("platform_dependent", platform, X),
    case("dce_sink", lambda x: (lax.dce_sink(jnp.sin(x)), x + 1)[1] if hasattr(lax, "dce_sink") else x, X),
    case("scheduling_group", scheduling_group("one")(jnp.sin), X, no_grad="JAX has none"),
    case("metadata_of_a_value", lambda x: set_xla_metadata(jnp.sin(x), group="first"), X),
    case("stage", lambda x: lax.stage(x) * lax.stage(2.0), X),
    case("optimized_remat", with_optimized_remat, X),
    case("ref", accumulate, X),
    case(
        "nested_jit_with_shardings",
        jax.jit(
            jnp.sin, in_shardings=NamedSharding(mesh(), P("model")), out_shardings=NamedSharding(mesh(), P("data"))
        ),
        X,
    ),
    case("named_scope", jax.named_call(jnp.sin, name="inner"), X),
    case("after_all", lambda x: (lax.after_all(lax.create_token()), x)[1], X),
]


@like_jax(CASES)
def test_like_jax(check, case):
    check(case)


def test_metadata_of_xla_are_kept():
    def function(x):
        with set_xla_metadata(group="first"):
            return jnp.sin(x)

    assert 'mhlo.frontend_attributes = {group = "first"}' in inside_jax.jit(function).lower(X).as_text()


@pytest.mark.parametrize("shardings", [{}, {"in_shardings": NamedSharding(mesh(), P("model"))}], ids=["none", "some"])
def test_nested_planned_functions_are_one_program(shardings):
    inner = inside_jax.jit(jnp.sin, **shardings)
    result = inside_jax.jit(lambda x: inner(x) + 1)(place(X))
    np.testing.assert_allclose(result, np.sin(X) + 1, rtol=1e-6)
