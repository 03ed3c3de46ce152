"""Transformations along Explicit axes: types of derivatives, loops and branches; values equal those of one device."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.errors import ShardingTypeError
from shardwise.sharding import AxisType, reshard
from shardwise.sharding import PartitionSpec as P
from tests.explicit.typed_arrays import put, type_text

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)
W = RNG.normal(size=(4, 4)).astype(np.float32)


def layer(x, w):
    return jnp.tanh(x @ w)


@sw.custom_jvp
def softsign(x):
    return x / (1 + jnp.abs(x))


@softsign.defjvp
def softsign_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return softsign(x), dx / (1 + jnp.abs(x)) ** 2


@sw.custom_vjp
def scaled(x, w):
    return x * w


scaled.defvjp(lambda x, w: (x * w, (x, w)), lambda saved, ct: (ct * saved[1], (ct * saved[0])), optimize_remat=True)

SAVE_DOTS = sw.checkpoint_policies.dots_saveable
FUNCTIONS = {
    "nested jit": sw.jit(layer),
    "remat": sw.checkpoint(layer),
    "remat with a policy": sw.checkpoint(layer, policy=SAVE_DOTS),
    "cond": lambda x, w: lax.cond(x.sum() > 0, layer, lambda x, w: x @ w, x, w),
    "switch": lambda x, w: lax.switch(1, [layer, lambda x, w: x @ w], x, w),
    "scan": lambda x, w: lax.scan(lambda c, _: (layer(c, w), None), x, length=3)[0],
    "scan with stacked results": lambda x, w: lax.scan(lambda c, _: (layer(c, w), c * 2), x, length=3)[1].sum(0),
    "fori_loop": lambda x, w: lax.fori_loop(0, 3, lambda _, c: layer(c, w), x),
    "map": lambda x, w: lax.map(lambda column: column * 2, layer(x, w).T).T,
    "associative_scan": lambda x, w: lax.associative_scan(jnp.add, layer(x, w), axis=1),
    "custom_jvp": lambda x, w: softsign(x @ w),
    "custom_vjp": lambda x, w: layer(scaled(x, jnp.ones_like(x)), w),
    "vmap": sw.vmap(layer, in_axes=(0, None)),
    "vmap of the other dim": lambda x, w: sw.vmap(jnp.cumsum, in_axes=1, out_axes=1)(x @ w),
}


@pytest.mark.table(default=10)
@pytest.mark.parametrize("under_jit", [True, False], ids=["jit", "eager"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_have_the_types_of_their_primals(explicit_mesh, name, under_jit):
    function = FUNCTIONS[name]

    def loss(x, w):
        return (function(x, w) ** 2).sum()

    def derivatives(x, w):
        value, pullback = sw.vjp(function, x, w)
        linear = sw.linearize(function, x, w)[1]
        return {
            "value": value,
            "grad": sw.grad(loss, argnums=(0, 1))(x, w),
            "jvp": sw.jvp(function, (x, w), (x, w))[1] if name != "custom_vjp" else value,
            "vjp": pullback(value),
            "linearize": linear(x, w) if name != "custom_vjp" else value,
        }

    stage = sw.jit if under_jit else lambda f: f
    results = stage(derivatives)(put(X, "X", None), put(W))
    row, weights = "f32[8@X,4]", "f32[4,4]"
    assert {key: sw.tree.map(type_text, value) for key, value in results.items()} == {
        "value": row,
        "grad": (row, weights),
        "jvp": row,
        "vjp": (row, weights),
        "linearize": row,
    }
    with sw.set_mesh(sw.make_mesh((1,), ("X",), axis_types=(AxisType.Explicit,))):
        expected = sw.jit(derivatives)(X, W)
    for result, reference in zip(sw.tree.leaves(results), sw.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(result, np.asarray(reference), rtol=1e-4, atol=1e-4)


@pytest.mark.table(default=6)
@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"map", "vmap of the other dim"}))
def test_gradients_of_reduced_weights_are_unreduced(explicit_mesh, name):
    function = FUNCTIONS[name]

    def loss(w, x):
        return (function(x, w) ** 2).sum()

    def step(w, x):
        gradient = sw.grad(loss)(reshard(w, P(reduced={"X"})), x)
        assert type_text(gradient) == "f32[4,4]{U:X}"
        return reshard(gradient, P())

    result = sw.jit(step)(put(W), put(X, "X"))
    with sw.set_mesh(sw.make_mesh((1,), ("X",), axis_types=(AxisType.Explicit,))):
        expected = np.asarray(sw.jit(sw.grad(loss))(W, X))
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_values_that_are_reduced_have_unreduced_cotangents(explicit_mesh):
    @sw.jit
    def f(x):
        reduced = reshard(x, P(reduced={"X"}))
        value, pullback = sw.vjp(sw.jit(lambda x: jnp.sin(x) * 2), reduced)
        assert type_text(value) == "f32[8,4]{R:X}"
        (cotangent,) = pullback(reshard(jnp.ones_like(x), P(unreduced={"X"})))
        assert type_text(cotangent) == "f32[8,4]{U:X}"
        return reshard(cotangent, P())

    np.testing.assert_allclose(f(put(X)), 2 * np.cos(X), rtol=1e-5)


def test_a_batch_dim_that_is_sharded_differently_is_an_error(explicit_mesh):
    x, y = put(X, "X", None), put(X, "Y", None)
    with pytest.raises(ShardingTypeError, match=r"mapped dims of f32\[8@X,4\] and f32\[8@Y,4\].*reshard"):
        sw.vmap(jnp.add)(x, y)
    with pytest.raises(ShardingTypeError, match=r"spmd_axis_name is \('Y',\), but .* f32\[8@X,4\].*Leave out"):
        sw.vmap(jnp.sin, spmd_axis_name="Y")(x)
    np.testing.assert_allclose(sw.vmap(jnp.sin, spmd_axis_name="X")(x), np.sin(X), rtol=1e-6)


def test_an_axis_of_the_batch_dim_cannot_shard_another_dim(explicit_mesh):
    x, w = put(X, "X", None), put(np.ones((4, 4), np.float32), "X", None)
    with pytest.raises(ShardingTypeError, match=r"add: axis 'X' would shard dims 0 and 1"):
        sw.jit(lambda x, w: sw.vmap(lambda row: row + w[:, 0])(x))(x, w)
    with pytest.raises(ShardingTypeError, match=r"P\('X'\) uses axis 'X', which shards the mapped dim"):
        sw.jit(sw.vmap(lambda row: reshard(row, P("X"))))(x)


def test_spmd_axis_name_shards_the_batch_dim_of_a_reshard(explicit_mesh):
    f = sw.vmap(lambda row: reshard(row * 2, P("Y")), spmd_axis_name="X")
    result = sw.jit(f)(put(X))
    assert type_text(result) == "f32[8@X,4@Y]"
    np.testing.assert_array_equal(result, 2 * X)


def test_conflicts_in_custom_rules_are_errors(explicit_mesh):
    @sw.custom_vjp
    def f(x):
        return x * 2

    f.defvjp(lambda x: (x * 2, None), lambda _, ct: (ct + reshard(ct, P("Y", None)),))
    with pytest.raises(ShardingTypeError, match=r"add: operands are sharded differently"):
        sw.jit(sw.grad(lambda x: f(x).sum()))(put(X, "X", None))


def test_results_of_vmap_that_depend_on_no_argument_have_the_sharding_of_the_batch_dim(explicit_mesh):
    f = sw.vmap(lambda row: jnp.arange(3.0), out_axes=-1)
    for function in (f, sw.jit(f)):
        result = function(put(X, "X"))
        assert type_text(result) == "f32[3,8@X]"
        np.testing.assert_array_equal(result, np.broadcast_to(np.arange(3.0)[:, None], (3, 8)))


def test_results_have_specs_with_one_entry_per_dim(explicit_mesh):
    x = put(X.reshape(8, 2, 2), "X")
    for result in (x * 2, sw.jit(lambda x: x * 2)(x), sw.grad(lambda x: (x * x).sum())(x)):
        assert tuple(result.sharding.spec) == ("X", None, None)
