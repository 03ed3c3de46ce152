"""A mixture of experts equals a dense layer in which each token goes through its k experts, in value and gradient."""

import jax
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P, parallel
from shardwise.errors import StrategyError
from shardwise.sharding import NamedSharding

TOKENS, FEATURES, HIDDEN, EXPERTS, K = 48, 6, 10, 8, 2
RESULT_WEIGHTS = np.random.default_rng(5).normal(size=(TOKENS, FEATURES)).astype(np.float32)


@pytest.fixture(scope="module")
def mesh():
    """Two groups of devices with a part of the batch each, four devices of experts, in each."""
    return sw.make_mesh((2, 4), ("data", "expert"))


def operands():
    rng = np.random.default_rng(0)

    def normal(*shape, scale=1.0):
        return (rng.normal(size=shape) * scale).astype(np.float32)

    weights = {
        "gate": normal(EXPERTS, FEATURES, HIDDEN),
        "up": normal(EXPERTS, FEATURES, HIDDEN),
        "down": normal(EXPERTS, HIDDEN, FEATURES, scale=0.3),
    }
    return normal(TOKENS, FEATURES), normal(FEATURES, EXPERTS), weights


def kept_assignments(logits, shards, places):
    """Which expert each token goes to, [tokens, experts], if each shard of tokens has so many places per expert."""
    kept = np.zeros(logits.shape, bool)
    order = np.argsort(-logits, -1, kind="stable")[:, :K]
    for tokens in np.array_split(np.arange(len(logits)), shards):
        used = np.zeros(logits.shape[1], int)
        for choice in range(K):  # all first choices come first
            for token in tokens:
                expert = order[token, choice]
                kept[token, expert] = used[expert] < places
                used[expert] += 1
    return kept


def dense(x, router, weights, kept=None, normalize=True):
    """The layer by JAX, with all experts applied to all tokens; the balance loss and the z-loss."""
    np_ = jax.numpy
    logits = x @ router
    probabilities = jax.nn.softmax(logits)
    chosen = jax.nn.one_hot(jax.lax.top_k(probabilities, K)[1], EXPERTS).sum(1) > 0
    mixing = np_.where(chosen, probabilities, 0)
    mixing = mixing / mixing.sum(-1, keepdims=True) if normalize else mixing
    mixing = mixing if kept is None else np_.where(kept, mixing, 0)
    gate, up = (np_.einsum("td,edf->etf", x, weights[name]) for name in ("gate", "up"))
    results = np_.einsum("etf,efd->etd", jax.nn.silu(gate) * up, weights["down"])
    balance = EXPERTS * (chosen.mean(0) / K * probabilities.mean(0)).sum()
    return np_.einsum("te,etd->td", mixing, results), balance, (jax.nn.logsumexp(logits, -1) ** 2).mean()


def dense_loss(x, router, weights, kept=None):
    result, balance, z_loss = dense(x, router, weights, kept)
    return (result * RESULT_WEIGHTS).sum() + 3 * balance + 0.1 * z_loss


def our_loss(x, router, weights, **options):
    result, aux = parallel.mixture_of_experts(x, x @ router, weights, k=K, **options)
    return (result * RESULT_WEIGHTS).sum() + 3 * aux.balance_loss + 0.1 * aux.z_loss


def assert_equal(ours, expected):
    for result, value in zip(sw.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(result, value, rtol=2e-4, atol=2e-4)


def put(mesh, x, router, weights):
    shardings = NamedSharding(mesh, P(("data", "expert"))), NamedSharding(mesh, P()), NamedSharding(mesh, P("expert"))
    return tuple(
        sw.device_put(value, sharding) for value, sharding in zip((x, router, weights), shardings, strict=True)
    )


@pytest.mark.table(default=1)
@pytest.mark.parametrize("capacity_factor", [None, 0.75, 8.0], ids=["dropless", "some dropped", "none dropped"])
def test_one_device_equals_the_dense_layer(capacity_factor):
    args = operands()
    kept = None
    if capacity_factor == 0.75:
        kept = kept_assignments(args[0] @ args[1], 1, 9)
        assert kept.sum() < TOKENS * K
    expected = jax.jit(jax.value_and_grad(dense_loss, (0, 1, 2)))(*args, kept)
    step = sw.jit(sw.value_and_grad(lambda *args: our_loss(*args, capacity_factor=capacity_factor), (0, 1, 2)))
    assert_equal(step(*args), expected)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("capacity_factor", [None, 1.0], ids=["dropless", "capacity"])
def test_sharded_experts_equal_the_dense_layer(capacity_factor, mesh):
    args = operands()
    kept = None if capacity_factor is None else kept_assignments(args[0] @ args[1], 8, 2)
    expected = jax.jit(jax.value_and_grad(dense_loss, (0, 1, 2)))(*args, kept)
    options = {"axis": "expert", "batch_axes": "data", "mesh": mesh, "capacity_factor": capacity_factor}
    step = sw.jit(sw.value_and_grad(lambda *args: our_loss(*args, **options), (0, 1, 2)))
    value, gradients = step(*put(mesh, *args))
    assert_equal((value, gradients), expected)
    assert gradients[2]["up"].sharding.spec == P("expert")
    layer = sw.jit(lambda x, router, weights: parallel.mixture_of_experts(x, x @ router, weights, k=K, **options))
    result, aux = layer(*put(mesh, *args))
    logits = args[0] @ args[1]
    np.testing.assert_array_equal(aux.load, kept_assignments(logits, 1, TOKENS).sum(0))
    assert aux.dropped == (0 if kept is None else TOKENS * K - kept.sum())
    assert capacity_factor is None or aux.dropped > 0
    assert result.sharding.spec == P(("data", "expert"))


def test_capacity_exchanges_blocks_of_one_size(mesh):
    args = put(mesh, *operands())
    options = {"axis": "expert", "batch_axes": "data", "mesh": mesh, "capacity_factor": 1.0}
    forward = sw.jit(lambda *args: our_loss(*args, **options)).lower(*args).plan
    places = 2  # 1.0 · k · 6 tokens per device / 8 experts, rounded up
    exchanges = [c for c in forward.collectives if c.kind == "all_to_all"]
    assert len(exchanges) == 2
    assert sum(c.sent for c in exchanges) == 2 * EXPERTS * places * FEATURES * 4 * 3 / 4
    # The counts and sums of the router, and the loss.
    assert {c.kind for c in forward.collectives} == {"all_to_all", "all_reduce"}
    both = sw.jit(sw.grad(lambda *args: our_loss(*args, **options), (0, 1, 2))).lower(*args).plan
    assert both.counts()["all_to_all"] == 4
    assert "all_gather" not in both.counts()
    # Gradients of the experts' weights are summed over the batch's axis alone.
    over_experts = [c for c in both.collectives if "expert" in c.axes and c.kind == "all_reduce"]
    assert all(c.sent < EXPERTS * FEATURES * 4 * 4 for c in over_experts)


def test_dropless_exchanges_slices_and_counts(mesh):
    args = put(mesh, *operands())
    options = {"axis": "expert", "batch_axes": "data", "mesh": mesh}
    forward = sw.jit(lambda *args: our_loss(*args, **options)).lower(*args).plan
    assert forward.counts()["ragged_all_to_all"] == 2
    (counts,) = [c for c in forward.collectives if c.kind == "all_gather"]
    assert counts.type == f"i32[1,{EXPERTS}]" and counts.axes == ("expert",)
    both = sw.jit(sw.grad(lambda *args: our_loss(*args, **options), (0, 1, 2))).lower(*args).plan
    assert both.counts()["ragged_all_to_all"] == 4
    assert both.counts()["all_gather"] == 1 and "all_to_all" not in both.counts()


@pytest.mark.table(default=1)
@pytest.mark.parametrize("capacity_factor", [1.0, None], ids=["capacity", "dropless"])
def test_planner_shards_the_experts_along_other_axes(capacity_factor):
    mesh = sw.make_mesh((4, 2), ("expert", "model"))
    args = operands()
    kept = None if capacity_factor is None else kept_assignments(args[0] @ args[1], 4, 3)
    expected = jax.jit(jax.value_and_grad(dense_loss, (0, 1, 2)))(*args, kept)
    hidden_last, hidden_first = P("expert", None, "model"), P("expert", "model")
    specs = P("expert"), P(), {"gate": hidden_last, "up": hidden_last, "down": hidden_first}
    put_args = [
        sw.device_put(value, sw.tree.map(lambda spec: NamedSharding(mesh, spec), spec))
        for value, spec in zip(args, specs, strict=True)
    ]
    options = {"axis": "expert", "mesh": mesh, "capacity_factor": capacity_factor}
    step = sw.jit(sw.value_and_grad(lambda *args: our_loss(*args, **options), (0, 1, 2)))
    value, gradients = step(*put_args)
    assert_equal((value, gradients), expected)
    assert gradients[2]["up"].sharding.spec == hidden_last
    # As in tensor parallelism: one sum over the hidden dim in the forward pass, one of gradients in the backward pass.
    over_model = [c for c in step.lower(*put_args).plan.collectives if "model" in c.axes]
    assert [(c.kind, c.times) for c in over_model] == [("all_reduce", 1)] * 2


@pytest.mark.slow
def test_inside_a_users_shard_map(mesh):
    args = operands()
    expected = jax.jit(jax.value_and_grad(dense_loss, (0, 1, 2)))(*args)

    def loss(x, router, weights, result_weights):
        result, aux = parallel.mixture_of_experts(x, x @ router, weights, k=K, axis="expert", batch_axes=("data",))
        total = sw.lax.psum((result * result_weights).sum(), ("data", "expert"))
        return total + 3 * aux.balance_loss + 0.1 * aux.z_loss

    tokens = P(("data", "expert"))
    specs = tokens, P(), P("expert"), tokens
    mapped = sw.shard_map(loss, mesh=mesh, in_specs=specs, out_specs=P())
    assert_equal(sw.jit(sw.value_and_grad(mapped, (0, 1, 2)))(*args, RESULT_WEIGHTS), expected)


@pytest.mark.slow
def test_experts_of_the_user_with_biases(mesh):
    x, router, _ = operands()
    rng = np.random.default_rng(3)
    weights = {"w": rng.normal(size=(EXPERTS, FEATURES, 4)), "b": rng.normal(size=(EXPERTS, 4))}
    weights = sw.tree.map(lambda array: array.astype(np.float32), weights)

    def experts(weights, rows, product):
        return jnp.tanh(product(rows, weights["w"]) + product.select(weights["b"]))

    every = np.tanh(np.einsum("td,edf->tef", x, weights["w"]) + weights["b"])
    logits = x @ router
    chosen = kept_assignments(logits, 1, TOKENS)
    mixing = np.where(chosen, np.exp(logits), 0)
    expected = np.einsum("te,tef->tf", mixing / mixing.sum(-1, keepdims=True), every)
    for capacity_factor in (None, 100.0):
        options = {"k": K, "experts": experts, "capacity_factor": capacity_factor, "axis": "expert", "mesh": mesh}
        result, _ = parallel.mixture_of_experts(x, logits, weights, **options)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_weights_of_experts_need_not_be_normalized():
    x, router, weights = operands()
    expected, _, _ = jax.jit(lambda *args: dense(*args, normalize=False))(x, router, weights)

    @sw.jit
    def layer(x, weights):  # tokens may have any number of dims
        return parallel.mixture_of_experts(x, x @ router, weights, k=K, normalize=False)[0]

    result = layer(x.reshape(4, -1, FEATURES), weights)
    np.testing.assert_allclose(result.reshape(TOKENS, FEATURES), expected, rtol=1e-4, atol=1e-5)


def test_sigmoid_scores_with_a_bias_choose_experts_on_a_mesh(mesh):
    x, router, weights = operands()
    bias = np.linspace(-1, 1, EXPERTS, dtype=np.float32)
    options = {"k": K, "scores": "sigmoid", "capacity_factor": 100.0, "axis": "expert", "mesh": mesh}
    logits = x @ router
    result, aux = sw.jit(
        lambda x, bias: parallel.mixture_of_experts(x, logits, weights, selection_bias=bias, **options)
    )(x, bias)
    score = 1 / (1 + np.exp(-logits))
    chosen = np.argsort(-(score + bias), -1)[:, :K]
    assert aux.load.tolist() == np.bincount(chosen.reshape(-1), minlength=EXPERTS).tolist()
    mixing = np.where(np.eye(EXPERTS, dtype=bool)[chosen].any(1), score, 0)
    gate, up = (np.einsum("td,edf->etf", x, weights[name]) for name in ("gate", "up"))
    every = np.einsum("etf,efd->ted", gate / (1 + np.exp(-gate)) * up, weights["down"])
    expected = np.einsum("te,ted->td", mixing / mixing.sum(-1, keepdims=True), every)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_bad_operands_are_errors(mesh):
    x, router, weights = operands()
    logits = x @ router

    def check(message, x=x, logits=logits, weights=weights, **options):
        options = {"k": K, "axis": "expert", "mesh": mesh, **options}
        with pytest.raises(StrategyError, match=message):
            parallel.mixture_of_experts(x, logits, weights, **options)

    few = sw.tree.map(lambda array: array[:6], weights)
    check("there are 6 experts, which the 4 devices along 'expert' do not divide", logits=logits[:, :6], weights=few)
    check("k must be from 1 to 8, the number of experts, not 9", k=9)
    check("k must be from 1 to 8, the number of experts, not 0", k=0)
    check("the mesh has no axis 'experts'; it has 'data', 'expert'. Did you mean 'expert'", axis="experts")
    check("capacity_factor must be a positive number or None, not 0", capacity_factor=0)
    check(r"router_logits f32\[48,8\] must be .* with the dims \(47,\) of x", x=x[:47])
    check("the first dim of x is 47, which the 4 devices along 'expert' do not divide", x=x[:47], logits=logits[:47])
    check(r"weights\['down'\] f32\[6,10,6\] must have 8 experts", weights={**weights, "down": weights["down"][:6]})
    check(r"must have 7 experts along its first dim, as router_logits f32\[48,7\]", logits=logits[:, :7])
    check("default experts need a dict of weights with 'gate', .* not .*up", weights={"up": weights["up"]})
    check(r"'down' \[experts, hidden, features\] with 2 features", x=x[:, :2])
    check("x must be floating-point tokens", x=np.ones((TOKENS, 2), np.int32))
    check("scores must be one of 'softmax', 'sigmoid', not 'relu'", scores="relu")
    check(
        r"selection_bias must be one number per expert, f32\[8\], not f32\[7\]", selection_bias=np.zeros(7, np.float32)
    )
    check("batch_axes=.* needs an axis of the experts", axis=None, batch_axes="data")
