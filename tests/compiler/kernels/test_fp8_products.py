"""fp8_products: which products of a program are computed with float8 numbers, and why others are not."""

import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import lax, strategies

POLICY = strategies.FP8Policy(precision=None)
W, X = jax.ShapeDtypeStruct((16, 16), np.float32), jax.ShapeDtypeStruct((4, 16), np.float32)
STACKED = jax.ShapeDtypeStruct((3, 16, 16), np.float32)


def products(function, params=W, x=X, policy=POLICY):
    return [(row.name, row.reason) for row in policy.products(function, params, x)]


HEAD = "'head' is the name of a head, which `head=True` selects"
EMBEDDING = "'embed' is the name of an embedding, which `embedding=True` selects"


@jax.custom_vjp
def with_rules(w, x):
    return x @ w


with_rules.defvjp(lambda w, x: (x @ w, (w, x)), lambda saved, ct: (saved[1].T @ ct, ct @ saved[0].T))


def in_scan(params, x):
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params)[0]


def in_while(w, x):
    return lax.while_loop(lambda x: x.sum() < 1, lambda x: x @ w, x)


def in_shard_map(w, x):
    mesh = jax.make_mesh((2,), ("data",))
    spec = jax.P("data")
    return jax.shard_map(lambda w, x: x @ w, mesh=mesh, in_specs=(jax.P(), spec), out_specs=spec)(w, x)


@pytest.mark.parametrize(
    ("function", "params", "expected"),
    [
        (lambda w, x: x @ w, W, [("params", "")]),
        (lambda w, x: w @ x.T, W, [("params", "")]),
        (lambda w, x: x @ w["a"].T.reshape(16, 16)[:, :8], {"a": W}, [("a", "")]),
        (lambda w, x: (x @ w.astype(jnp.bfloat16).astype(jnp.float32)) @ w, W, [("params", ""), ("params:2", "")]),
        (lambda w, x: x @ jnp.concatenate([w["a"], w["b"]], 1), {"a": W, "b": W}, [("a+b", "")]),
        (lambda w, x: jax.jit(jax.checkpoint(lambda x: x @ w))(x), W, [("params", "")]),
        (in_scan, STACKED, [("params", "")]),
        (lambda w, x: lax.cond(x.sum() > 0, lambda: x @ w["a"], lambda: x @ w["b"]), {"a": W, "b": W}, None),
        (lambda w, x: (x + w[0]) @ x.T, W, [("", "no operand is a parameter")]),
        (lambda w, x: x @ w["head"], {"head": W}, [("head", HEAD)]),
        (lambda w, x: x @ w["embed"].T, {"embed": W}, [("embed", EMBEDDING)]),
        (lambda w, x: jnp.dot(x, w, precision="highest"), W, [("params", "its precision is HIGHEST")]),
        (lambda w, x: jnp.outer(x[0], w[0]), W, []),
        (with_rules, W, [("params", "it is in a function with derivative rules of its own (custom_vjp)")]),
        (in_while, W, [("params", "it is in a while, which runs it an unknown number of times")]),
        (in_shard_map, W, [("params", "it is in a shard_map, which has no scales of its own")]),
    ],
)
def test_products(function, params, expected):
    expected = [("a", ""), ("b", "")] if expected is None else expected
    assert sorted(products(function, params)) == expected


def test_integers_and_float64_are_not_selected():
    ints = jax.ShapeDtypeStruct((16, 16), np.int32), jax.ShapeDtypeStruct((4, 16), np.int32)
    ((_, reason),) = products(lambda w, x: x @ w, *ints)
    assert reason == "operands of i32[4,16] and i32[16,16] are not floats of 16 or 32 bits"


def random(*shape):
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def loss_and_maxima(function, params, x, policy=POLICY):
    scales = policy.create(function, params, x)
    value, (grads, maxima) = jax.jit(jax.value_and_grad(strategies.mixed_precision(function, policy), (0, 1)))(
        params, scales, x
    )
    return value, grads, maxima, scales


def test_each_layer_of_a_scan_has_scales_of_its_own():
    """A scan, the same layers unrolled, and both rematerialized are equal."""
    params, x = random(3, 16, 16) * np.exp2(np.arange(3, dtype=np.float32))[:, None, None] / 4, random(4, 16)

    def loss(body, params, x):
        return jnp.mean(lax.scan(lambda x, w: (body(x, w), None), x, params)[0] ** 2)

    def unrolled(params, x):
        for index in range(3):
            x = jnp.maximum(x @ params[index], 0)
        return jnp.mean(x**2)

    def body(x, w):
        return jnp.maximum(x @ w, 0)

    value, grads, maxima, scales = loss_and_maxima(lambda params, x: loss(body, params, x), params, x)
    assert scales.scales["params"].shape == maxima.scales["params"].shape == (3, 3)
    np.testing.assert_array_equal(maxima.scales["params"][:, 1], jnp.abs(params).max((1, 2)))
    other = loss_and_maxima(unrolled, params, x)
    remat = loss_and_maxima(lambda params, x: loss(jax.checkpoint(body), params, x), params, x)
    for results in (other, remat):
        # XLA sums in another order in each program, which rounding to float8 magnifies for some elements.
        np.testing.assert_allclose(results[0], value, rtol=1e-3)
        assert jnp.linalg.norm(results[1] - grads) < 0.05 * jnp.linalg.norm(grads)
    np.testing.assert_allclose(remat[2].scales["params"], maxima.scales["params"], rtol=0.1)
    rows = [other[2].scales[name] for name in ("params", "params:2", "params:3")]
    np.testing.assert_allclose(rows, maxima.scales["params"], rtol=0.1)


def test_products_of_a_branch_that_does_not_run_measure_nothing():
    params, x = {"a": random(16, 16), "b": random(16, 16)}, random(4, 16)

    def loss(params, x):
        return lax.cond(x.sum() > 1e6, lambda: x @ params["a"], lambda: 2 * (x @ params["b"])).sum()

    *_, maxima, scales = loss_and_maxima(loss, params, x)
    np.testing.assert_array_equal(maxima.scales["a"], 0)
    assert (maxima.scales["b"] > 0).all()
    np.testing.assert_array_equal(scales.update(maxima).scales["a"], scales.scales["a"])


def test_products_of_one_array_quantize_it_once():
    params, x = {"a": W, "b": W}, X
    loss = strategies.mixed_precision(lambda p, x: (x @ p["a"]).sum() + (x @ p["b"]).sum(), POLICY)
    scales = POLICY.create(lambda p, x: (x @ p["a"]).sum() + (x @ p["b"]).sum(), params, x)
    text = jax.jit(loss).trace(params, scales, x).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__gpu$xla.gpu.triton") == 3  # x and two weights


def test_the_policy_dots_saves_the_products():
    def products_in(policy):
        def function(w, x):
            return jnp.sum(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x) @ w) @ w, policy=policy)(x) ** 2)

        scales = POLICY.create(function, W, X)
        gradient = jax.grad(strategies.mixed_precision(function, POLICY), (0, 1))
        return str(jax.make_jaxpr(gradient)(W, scales, X)).count("scaled_dot")

    assert products_in(jax.checkpoint_policies.dots_saveable) < products_in(None)
