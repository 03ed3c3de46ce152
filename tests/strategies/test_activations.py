"""Strategies for activations: collectives, memory and losses against one device."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P, parallel, strategies
from shardwise.errors import StrategyError
from tests.strategies.test_metadata import Partitioned, Variable

RNG = np.random.default_rng(0)
WIDTH, HIDDEN, LAYERS = 16, 64, 2
PARAMS = [
    {
        "up": (RNG.normal(size=(WIDTH, HIDDEN)) * 0.2).astype(np.float32),
        "down": (RNG.normal(size=(HIDDEN, WIDTH)) * 0.2).astype(np.float32),
    }
    for _ in range(LAYERS)
]
X = RNG.normal(size=(8, 16, WIDTH)).astype(np.float32)


def normalize(x):
    return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)


def loss_of(params, x, constrain=lambda x: x):
    for layer in params:
        x = constrain(x)
        x = x + jnp.tanh(normalize(x) @ layer["up"]) @ layer["down"]
    return jnp.mean(constrain(x) ** 2)


def close(found, expected):
    sw.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected)


def test_sequence_parallel_replaces_all_reduces_by_halves_of_them(mesh):
    rules = {"up": P(None, "model"), "down": P("model", None)}
    params = sw.device_put(PARAMS, strategies.tensor_parallel(PARAMS, mesh, rules))
    x = sw.device_put(X, sw.NamedSharding(mesh, P("data")))

    def constrained(params, x):
        return loss_of(params, x, lambda x: strategies.sequence_parallel(x, mesh))

    def along_model(plan):
        return [row for row in plan.collectives if row.axes == ("model",)]

    plain, parallel_plan = (sw.jit(step).lower(params, x).plan for step in (loss_of, constrained))
    assert [row.kind for row in along_model(plain)] == ["all_reduce"] * LAYERS
    kinds = sorted(row.kind for row in along_model(parallel_plan) if row.type != "f32[]")
    assert kinds == ["all_gather"] * LAYERS + ["reduce_scatter"] * LAYERS
    sent = [sum(row.sent for row in along_model(plan) if row.type != "f32[]") for plan in (plain, parallel_plan)]
    assert sent[0] == sent[1]
    gradients = sw.jit(sw.value_and_grad(constrained))(params, x)
    close(gradients, sw.value_and_grad(loss_of)(PARAMS, X))
    # The activations that are saved for the backward pass are sharded along the sequence.
    _, pullback = sw.jit(lambda x: sw.vjp(lambda x: constrained(params, x), x))(x)
    residuals = [leaf for leaf in sw.tree.leaves(pullback) if leaf.shape == X.shape]
    assert all(leaf.addressable_shards[0].data.nbytes == X.nbytes // 8 for leaf in residuals)


@pytest.mark.slow
def test_context_parallel_sends_keys_and_values_only():
    mesh = sw.make_mesh((2, 4), ("data", "sequence"))
    weights = {name: (RNG.normal(size=(WIDTH, 2, 8)) * 0.3).astype(np.float32) for name in "qkv"}
    batch = {"x": X, "segment_ids": np.repeat([[1, 2]], 8, 0).repeat(8, 1), "weight": np.ones(8, np.float32)}

    def loss(weights, batch, attend):
        q, k, v = (jnp.einsum("btd,dnh->btnh", batch["x"], weights[name]) for name in "qkv")
        return jnp.mean(attend(q, k, v, batch["segment_ids"]).mean((1, 2, 3)) ** 2 * batch["weight"])

    def ring(q, k, v, ids):
        return parallel.ring_attention(q, k, v, axis="sequence", causal=True, segment_ids=ids, mesh=mesh)

    def reference(q, k, v, ids):
        mask = (ids[:, :, None] == ids[:, None, :])[:, None]
        return sw.nn.dot_product_attention(q, k, v, mask=mask, is_causal=True)

    shardings = strategies.context_parallel(batch, mesh)
    specs = {"x": P("data", "sequence"), "segment_ids": P("data", "sequence"), "weight": P("data")}
    assert {name: sharding.spec for name, sharding in shardings.items()} == specs
    assert strategies.count_bytes(batch, shardings) == X.nbytes // 8 + batch["segment_ids"].nbytes // 8 + 16
    placed = sw.device_put(batch, shardings)
    params = sw.device_put(weights, strategies.data_parallel(weights, mesh))
    step = sw.jit(lambda w, b: loss(w, b, ring))
    plan = step.lower(params, placed).plan
    assert set(plan.counts()) == {"ppermute", "all_reduce"}  # of blocks, and of the loss
    close(
        sw.jit(sw.value_and_grad(lambda w, b: loss(w, b, ring)))(params, placed),
        sw.value_and_grad(lambda w, b: loss(w, b, reference))(weights, sw.tree.map(jnp.asarray, batch)),
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m: strategies.partition_metadata(
                {"w": Variable(np.zeros((8, 4)), {"out_sharding": ("modle",)})}, m, {"mlp": "model"}
            ),
            "a dim of 'w' is called 'modle', .* these are 'mlp', 'data', 'model'. Did you mean 'model'?",
        ),
        (
            lambda m: strategies.partition_metadata({"w": Partitioned(np.zeros(6), ("data",))}, m),
            "has size 6, which 4 devices along 'data' do not divide",
        ),
        (
            lambda m: strategies.tensor_parallel(PARAMS, m, {"up/w": P(), "0/donw": P()}),
            "(?s)the rule 'up/w' matches no parameter.*the rule '0/donw' matches no parameter.*'0/down'",
        ),
        (lambda m: strategies.context_parallel(X, m), "context_parallel: the mesh has no axis 'sequence'"),
        (lambda m: strategies.context_parallel({"x": X[:, :15]}, m, "model"), "dim 1 of 'x', .* has size 15, which 2"),
        (lambda m: strategies.context_parallel({"x": X[:6]}, m, "model"), "dim 0 of 'x', .* has size 6, which 4"),
        (
            lambda m: strategies.sequence_parallel(jnp.asarray(X[:, :15]), m),
            r"dim 1 of the array of shape .* has size 15, .* Change the size or the mesh\.\nSee ",
        ),
        (lambda m: strategies.sequence_parallel(jnp.asarray(X), m, dim=0), "sequence_parallel: dim must be at least 1"),
        (lambda m: strategies.remat(loss_of, names=["a"], offload=["a"]), "'a'. are in both names and offload"),
        (lambda m: strategies.remat(loss_of, "dot"), "save must be one of 'nothing', 'dots', .* not 'dot'"),
    ],
)
def test_errors(call, message, mesh):
    with pytest.raises(StrategyError, match=message):
        call(mesh)
