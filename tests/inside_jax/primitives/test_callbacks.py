"""Callbacks: the function on the host is called as without Shardwise, and as often."""

import numpy as np
import pytest

from tests.inside_jax.primitives.cases import P, case, inside_jax, jax, jnp, like_jax, mesh, place

pytestmark = pytest.mark.jax

X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
LIKE_X = jax.ShapeDtypeStruct(X.shape, X.dtype)
HOST = "JAX has none"


def pure(x):
    return jax.pure_callback(np.sin, LIKE_X, x) * 2


@jax.custom_jvp
def host_sin(x):
    return jax.pure_callback(np.sin, LIKE_X, x)


host_sin.defjvp(lambda primals, tangents: (host_sin(*primals), jnp.cos(primals[0]) * tangents[0]))


def in_loop(x):
    return jax.lax.fori_loop(0, 3, lambda _, x: pure(x), x)


CASES = [
    case("pure_callback", pure, X, no_grad=HOST),
    case("pure_callback_with_rule", host_sin, X),
    case("pure_callback_in_loop", in_loop, X, no_grad=HOST),
    case(
        "pure_callback_batched",
        jax.vmap(lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((6,), X.dtype), x, vmap_method="sequential")),
        X,
        no_grad=HOST,
    ),
    case(
        "two_results",
        lambda x: jax.pure_callback(lambda x: (x + 1, x.sum()), (LIKE_X, jax.ShapeDtypeStruct((), X.dtype)), x),
        X,
        no_grad=HOST,
    ),
    case("io_callback", lambda x: jax.experimental.io_callback(lambda x: x + 1, LIKE_X, x), X, no_grad=HOST),
    case("debug_callback", lambda x: (jax.debug.callback(lambda x: None, x), jnp.sin(x))[1], X),
    case("debug_print", lambda x: (jax.debug.print("{}", x[0, 0] * 0), jnp.sin(x))[1], X),
]


@like_jax(CASES)
def test_like_jax(check, case):
    check(case)


@pytest.mark.parametrize("sharded", [False, True])
def test_effects_happen_once_per_call(sharded):
    seen = []

    @inside_jax.jit
    def function(x):
        jax.debug.callback(lambda x: seen.append(np.array(x)), x)
        jax.experimental.io_callback(lambda x: seen.append(np.array(x)), None, 2 * x)
        return x + 1

    x = place(X) if sharded else jnp.asarray(X)
    for count in (1, 2):
        function(x).block_until_ready()
        jax.effects_barrier()
        assert len(seen) == 2 * count
    sums = sorted(float(np.abs(value).sum()) for value in seen)
    np.testing.assert_allclose(sums, np.abs(X).sum() * np.array([1, 1, 2, 2]), rtol=1e-5)


def test_effects_of_a_differentiated_call_happen_once():
    seen = []

    @inside_jax.jit
    def function(x):
        jax.debug.callback(lambda x: seen.append(np.array(x)), x)
        return jnp.sum(jnp.sin(x))

    np.testing.assert_allclose(jax.grad(function)(jnp.asarray(X)), np.cos(X), rtol=1e-5)
    jax.effects_barrier()
    assert len(seen) == 1


def test_a_region_calls_the_function_on_every_device():
    seen = []

    def region(x):
        jax.debug.callback(lambda x: seen.append(x.shape), x)
        return x

    mapped = jax.shard_map(region, mesh=mesh(), in_specs=P("data", "model"), out_specs=P("data", "model"))
    inside_jax.jit(mapped)(place(X)).block_until_ready()
    jax.effects_barrier()
    assert seen == [(2, 3)] * 8


def test_an_exception_of_the_function_is_raised():
    def fail(x):
        raise ValueError("no luck")

    with pytest.raises(Exception, match="no luck"):
        inside_jax.jit(lambda x: jax.pure_callback(fail, LIKE_X, x))(X).block_until_ready()


def test_ordered_callbacks_happen_in_order(capfd):
    seen = []

    @inside_jax.jit
    def function(x):
        jax.experimental.io_callback(lambda x: seen.append(("first", float(x))), None, x, ordered=True)

        def body(i, x):
            jax.experimental.io_callback(lambda i: seen.append(("loop", int(i))), None, i, ordered=True)
            return x + 1

        x = jax.lax.fori_loop(0, 2, body, x)
        jax.debug.print("at {}", x, ordered=True)
        return jax.experimental.io_callback(lambda x: seen.append(("last", float(x))) or x, X[0, 0], x, ordered=True)

    for x in range(3):
        function(np.float32(x))
    jax.effects_barrier()
    assert seen == [item for x in range(3) for item in (("first", x), ("loop", 0), ("loop", 1), ("last", x + 2))]
    assert capfd.readouterr().out == "at 2.0\nat 3.0\nat 4.0\n"


def test_ordered_callbacks_on_a_mesh_are_the_error_of_jax():
    def function(x):
        jax.debug.callback(lambda x: None, x, ordered=True)
        return x

    with pytest.raises(ValueError, match="ordered effects are not supported for more than 1 device"):
        inside_jax.jit(function)(place(X))
