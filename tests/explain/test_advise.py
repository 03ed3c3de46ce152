"""The advice of `explain` states what the plan with that constraint costs."""

import re

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.explain.arguments import shaped


def attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(scores - scores.max(-1, keepdims=True)), v)


def mlp(x, w1, w2):
    return jnp.maximum(x @ w1, 0) @ w2


def mlp_arguments(mesh, spec):
    return (
        shaped(mesh, P("data"), 4096, 1024),
        shaped(mesh, P(None, "model"), 1024, 4096),
        shaped(mesh, spec, 4096, 1024),
    )


def test_the_advice_states_what_the_plan_with_it_costs(mesh):
    """Attention sharded along the sequence: with the keys sharded along heads, two all-gathers become all-to-alls."""
    q = shaped(mesh, P(None, "data"), 2, 512, 8, 32)
    found = sw.explain(attention)(q, q, q)
    advice = found.advice
    assert advice.what == "`k`" and str(advice.layout) == "P(None, None, 'data', None)"
    assert 0 < advice.tried <= 12
    heads = NamedSharding(mesh, P(None, None, "data"))
    taken = sw.explain(lambda q, k, v: attention(q, lax.with_sharding_constraint(k, heads), v))(q, q, q).plan
    assert taken.wire_bytes == advice.sent < found.plan.wire_bytes == advice.before_sent
    assert taken.seconds == pytest.approx(advice.seconds)
    assert found.plan.seconds == pytest.approx(advice.before_seconds)
    assert advice.outputs == (f"`output` would then have sharding {taken.outputs[0].layout}",)
    assert "pinning `k` to P(None, None, 'data', None) with lax.with_sharding_constraint would save" in str(found)


def test_data_that_an_op_exchanges_by_its_own_rule_gets_advice_too(mesh):
    x = sw.ShapeDtypeStruct((1024, 512), np.complex64, sharding=NamedSharding(mesh, P("data")))
    found = sw.explain(lambda x: jnp.fft.fft(x, axis=0))(x)
    assert all("needs data from other shards along" in row.reason for row in found.collectives)
    assert str(found.advice.layout) == "P(None, 'data')"
    where = NamedSharding(mesh, P(None, "data"))
    taken = sw.explain(lambda x: jnp.fft.fft(lax.with_sharding_constraint(x, where), axis=0))(x).plan
    assert taken.wire_bytes == found.advice.sent == found.plan.wire_bytes / 2


def test_advice_inside_a_loop(mesh):
    """The constraint goes into the body; the results are pinned, so their sharding does not change."""
    rows = NamedSharding(mesh, P(None, "data"))

    def layers(x, pin=lambda h: h):
        def layer(h, _):
            h = pin(h)
            return attention(h, h * 2, h), None

        return lax.scan(layer, x, None, length=3)[0]

    x = shaped(mesh, P(None, "data"), 2, 512, 8, 32)
    found = sw.explain(sw.jit(layers, out_shardings=rows))(x)
    advice = found.advice
    assert advice.layout is not None and advice.outputs == ()
    assert re.fullmatch(r"the f32\[2,512,8,32\] input of the body of scan at test_advise.py:\d+", advice.what)
    heads = NamedSharding(mesh, P(*(axes[0] if axes else None for axes in advice.layout.dims)))
    taken = sw.explain(
        sw.jit(lambda x: layers(x, lambda h: lax.with_sharding_constraint(h, heads)), out_shardings=rows)
    )(x).plan
    assert taken.wire_bytes == advice.sent < found.plan.wire_bytes / 2
    assert taken.seconds == pytest.approx(advice.seconds)


def test_the_advice_says_if_no_constraint_helps(mesh):
    def step(w, x):
        return w - 0.1 * sw.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)

    found = sw.explain(step)(shaped(mesh, P("data"), 64, 64), shaped(mesh, P("data"), 256, 64))
    assert found.collectives and found.advice.layout is None
    assert (
        f"none of {found.advice.tried} constraints tried around the costliest collective makes the plan cheaper"
        in str(found)
    )


def test_constraints_that_need_more_memory_are_not_advised(mesh):
    """Gathering all layers at once before the loop would have less latency."""

    def layers(w, x):
        return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)[0]

    found = sw.explain(layers, hardware="h100")(
        shaped(mesh, P(None, "data"), 6, 64, 64), shaped(mesh, P("data"), 8, 64)
    )
    assert found.collectives[0].times == 6
    assert found.advice.layout is None and found.advice.tried


def test_no_advice_without_collectives_or_with_advise_false(mesh):
    x = shaped(mesh, P("data"), 64, 64)
    assert str(sw.explain(jnp.sin)(x).advice) == ""
    quiet = sw.explain(lambda x: x.sum(), advise=False)(x)
    assert quiet.collectives and quiet.advice.tried == 0 and "constraint" not in str(quiet)


def test_layouts_along_parts_of_an_axis_are_not_advised(mesh):
    """A reshape can split an axis into parts, which a constraint cannot name."""
    line = sw.make_mesh((8,), ("data",))
    found = sw.explain(lambda x: (x.reshape(4, 8, 16) * 2).sum(1) @ jnp.ones((16, 4)))(shaped(line, P("data"), 32, 16))
    assert found.mesh.axis_names == ("data:(1)4", "data:(4)2")
    assert found.advice.layout is None or set(found.advice.layout.axes) <= {"data"}


def test_advice_finds_a_better_layout_of_an_argument(mesh):
    found = sw.explain(mlp, hardware="h100")(*mlp_arguments(mesh, P(None, "model")))
    advice = found.argument_advice
    assert advice.what == "`w2`" and 0 < advice.tried <= 12
    assert (str(advice.layout), str(advice.old_layout)) == ("P('model', None)", "P(None, 'model')")
    taken = sw.explain(mlp, hardware="h100")(*mlp_arguments(mesh, P("model", None)))
    assert taken.plan.wire_bytes == advice.sent == found.plan.wire_bytes / 2
    assert taken.plan.seconds == pytest.approx(advice.seconds)
    assert "passing `w2` in P('model', None) instead of P(None, 'model') would save" in str(found)
    assert "Passing <code>w2</code> in P(&#x27;model&#x27;, None)" in found.to_html()
    assert taken.argument_advice.layout is None and "passing" not in str(taken)


def test_advice_on_an_argument_with_in_shardings(mesh):
    x, w1, w2 = mlp_arguments(mesh, P(None, "model"))
    plain = sw.ShapeDtypeStruct(w2.shape, w2.dtype)
    step = sw.jit(mlp, in_shardings=(x.sharding, w1.sharding, w2.sharding))
    advice = sw.explain(step, hardware="h100")(x, w1, plain).argument_advice
    assert (advice.what, str(advice.layout)) == ("`w2`", "P('model', None)")


def test_arguments_with_the_same_last_key_change_together(mesh):
    layers = [
        {"w1": shaped(mesh, P(None, "model"), 256, 1024), "w2": shaped(mesh, P(None, "model"), 1024, 256)}
        for _ in range(2)
    ]

    def step(params, moments, x):
        def loss(params):
            h = x
            for layer in params:
                h = jnp.tanh(h @ layer["w1"]) @ layer["w2"] + h
            return (h**2).mean()

        grads = sw.grad(loss)(params)
        moments = sw.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        return sw.tree.map(lambda p, m: p - m, params, moments), moments

    found = sw.explain(step, hardware="h100")(layers, layers, shaped(mesh, P("data"), 1024, 256))
    advice = found.argument_advice
    assert advice.what == "`params[*]['w2']`, `moments[*]['w2']`" and str(advice.layout) == "P('model', None)"
    assert advice.outputs == ("`output[*][*]['w2']` would then have sharding P('model', None)",)


@pytest.mark.parametrize("shape", [(1, 2), (2, 2)])
@pytest.mark.parametrize("spec", [P("a", "b"), P(None, "b"), P("b")])
def test_advice_on_the_operands_of_a_shard_map(shape, spec):
    """No constraint inside the body is tried. An argument that needs no more memory in another layout is the remedy."""
    mesh = sw.make_mesh(shape, ("a", "b"), devices=sw.devices()[: shape[0] * shape[1]])
    x = sw.ShapeDtypeStruct((64, 64), np.float32, sharding=NamedSharding(mesh, spec))
    doubled = sw.shard_map(lambda x: x * 2, mesh=mesh, in_specs=P("a"), out_specs=P("a"))
    found = sw.explain(doubled)(x)
    assert found.wire_bytes and found.advice.tried and found.advice.layout is None
    if spec == P("b") and shape == (2, 2):
        assert str(found.argument_advice.layout) == "P('a', None)" and found.argument_advice.sent == 0
