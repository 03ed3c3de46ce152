"""Derivatives, vmap and out_sharding together, on meshes with Explicit axes."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.errors import ShardingTypeError
from shardwise.sharding import PartitionSpec as P
from shardwise.sharding import reshard
from tests.explicit.typed_arrays import put, type_text

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)
W = RNG.normal(size=(4, 6)).astype(np.float32)


@pytest.mark.parametrize("under_jit", [True, False])
@pytest.mark.parametrize("derivative", [sw.grad, sw.value_and_grad, sw.jacrev])
def test_out_sharding_decides_under_derivatives_too(explicit_mesh, derivative, under_jit):
    def loss(w, x):
        return (jnp.dot(x, w, out_sharding=P("X", None)) ** 2).sum()

    x, w = put(X, "X", "Y"), put(W, "Y", None)
    call = derivative(loss)
    result = (sw.jit(call) if under_jit else call)(w, x)
    gradient = result[1] if derivative is sw.value_and_grad else result
    assert type_text(gradient) == "f32[4@Y,6]"
    np.testing.assert_allclose(gradient, 2 * X.T @ (X @ W), rtol=1e-4)


def test_out_sharding_decides_under_jvp_and_linearize(explicit_mesh):
    x, w = put(X, "X", "Y"), put(W, "Y", None)
    product = lambda w: jnp.dot(x, w, out_sharding=P("X", None))  # noqa: E731
    _, tangent = sw.jvp(product, (w,), (w,))
    _, linear = sw.linearize(product, w)
    for result in (tangent, linear(w)):
        assert type_text(result) == "f32[8@X,6]"
        np.testing.assert_allclose(result, X @ W, rtol=1e-5)


def test_out_sharding_decides_under_vmap(explicit_mesh):
    x = put(np.stack([X] * 3), None, None, "Y")
    w = put(W, "Y", None)
    result = sw.jit(sw.vmap(lambda x: jnp.dot(x, w, out_sharding=P(None, None))))(x)
    assert type_text(result) == "f32[3,8,6]"
    np.testing.assert_allclose(result, np.stack([X @ W] * 3), rtol=1e-5)


def test_vmap_over_the_axis_of_another_operand_is_an_error(explicit_mesh):
    with pytest.raises(ShardingTypeError, match="axis 'X' would shard dims 0 and 1 of the result"):
        sw.vmap(lambda row: row + put(X[0], "X"))(put(X, "X", None))


def test_zero_cotangents_have_the_type_of_the_table(explicit_mesh):
    seen = []

    def zeros(x):
        cotangent = sw.grad(lambda x: jnp.floor(x).sum())(x)
        seen.append(type_text(cotangent))
        return reshard(cotangent, P())

    sw.jit(zeros)(put(X, "X", None))
    sw.jit(lambda x: zeros(reshard(x, P("X", reduced={"Y"}))))(put(X, "X", None))
    assert seen == ["f32[8@X,4]", "f32[8@X,4]{U:Y}"]
    assert type_text(sw.grad(lambda x, y: y.sum())(put(X, "X", "Y"), 1.0 * X)) == "f32[8@X,4@Y]"


def test_the_cotangent_of_an_unreduced_result_is_reduced(explicit_mesh):
    seen = []

    def f(x, w):
        product = lambda w: jnp.dot(x, w, out_sharding=P("X", None, unreduced={"Y"}))  # noqa: E731
        value, pull = sw.vjp(product, w)
        (cotangent,) = pull(jnp.ones(value.shape, out_sharding=P("X", None)))
        seen.append((type_text(value), type_text(cotangent)))
        return cotangent

    result = sw.jit(f)(put(X, "X", "Y"), put(W, "Y", None))
    assert seen == [("f32[8@X,6]{U:Y}", "f32[4@Y,6]")]
    np.testing.assert_allclose(result, X.T @ np.ones((8, 6), np.float32), rtol=1e-5)


def test_an_unreduced_value_times_a_reduced_one_is_unreduced_only(explicit_mesh):
    seen = []

    def f(x, w, scale):
        partial = jnp.dot(x, w, out_sharding=P("X", None, unreduced={"Y"}))
        scaled = partial * reshard(scale, P(None, reduced={"Y"}))
        seen.append(type_text(scaled))
        return reshard(scaled, P("X", None))

    scale = np.arange(6, dtype=np.float32)
    result = sw.jit(f)(put(X, "X", "Y"), put(W, "Y", None), put(scale))
    assert seen == ["f32[8@X,6]{U:Y}"]
    np.testing.assert_allclose(result, X @ W * scale, rtol=1e-4, atol=1e-5)


def test_a_dim_of_size_one_may_be_sharded(explicit_mesh):
    x = put(X[:1], "X", None)
    assert type_text(sw.jit(lambda x: x.reshape(4))(x)) == "f32[4]"
    np.testing.assert_array_equal(sw.jit(lambda x: x.reshape(4))(x), X[0])


def test_a_reshape_that_keeps_all_shards_moves_nothing(explicit_mesh):
    lowered = sw.jit(lambda x: x.reshape(4, 2, 4)).lower(put(X, ("X", "Y"), None))
    assert str(lowered.out_info.sharding.spec) == "P('X', 'Y', None)"
    assert not lowered.plan.collectives


def test_vmap_of_loops_keeps_the_sharding_of_the_mapped_dim(explicit_mesh):
    def f(row):
        total, _ = lax.scan(lambda total, x: (total + x, None), jnp.zeros(()), row)
        count = lax.while_loop(lambda n: n < total, lambda n: n + 1.0, -9.0)
        return total, count

    total, count = sw.jit(sw.vmap(f))(put(X, "X", None))
    assert (type_text(total), type_text(count).replace("~", "")) == ("f32[8@X]", "f32[8@X]")
    np.testing.assert_allclose(total, X.sum(1), rtol=1e-5)
    np.testing.assert_allclose(count, np.maximum(-9, np.ceil(X.sum(1))), rtol=1e-6)


@pytest.mark.parametrize("weight_spec", [P(), P(reduced={"X"})], ids=["replicated", "reduced"])
def test_the_gradient_of_a_broadcast_weight_is_summed_where_its_shards_are(explicit_mesh, weight_spec):
    def step(x, scale):
        scale = reshard(scale, weight_spec)
        gradient = sw.grad(lambda scale: (jnp.sin(x) * scale).sum())(scale)
        return reshard(gradient, P())

    x, scale = put(X, "X", None), put(np.ones(4, np.float32))
    (collective,) = sw.jit(step).lower(x, scale).plan.collectives
    assert (collective.kind, collective.type) == ("all_reduce", "f32[4]")
    np.testing.assert_allclose(sw.jit(step)(x, scale), np.sin(X).sum(0), rtol=1e-5)
