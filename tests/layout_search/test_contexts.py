"""Context parallelism in autoshard: sequences are sharded if the devices do not divide the rows of the batch."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import nn
from shardwise.layout_search.evaluate import BALANCED_RING, RING, Variant
from shardwise.layout_search.source import StepSource
from shardwise.models import Decoder, train_state, train_step

WEIGHTS = sw.ShapeDtypeStruct((4, 128, 4, 128), jnp.bfloat16)


def step(weights, x):
    """Attention whose queries are keys and values too, and its gradients."""

    def loss(weights):
        heads = jnp.einsum("btnh,nhmk->btmk", x, weights)
        out = nn.dot_product_attention(heads, heads, heads, is_causal=True)
        return jnp.mean((x + out).astype(jnp.float32) ** 2)

    value, gradient = sw.value_and_grad(loss)(weights)
    return weights - 0.1 * gradient, value


def searched(rows, length=65536, count=16):
    """Return the result for this many sequences."""
    x = sw.ShapeDtypeStruct((rows, length, 4, 128), jnp.bfloat16)
    return sw.autoshard(step, hardware="h100", count=count)(WEIGHTS, x)


def test_long_sequences_are_sharded():
    """With one sequence for 16 chips, context parallelism is the fastest plan; with 16, it is not tried."""
    result = searched(1)
    assert "context parallel" in result.best.name and result.mesh.shape["context"] > 1
    assert "context" in result.in_shardings[1].spec[1]
    assert {plan.variant.attention for plan in result.alternatives} == {"", RING, BALANCED_RING}
    assert f" {BALANCED_RING} " in str(result)
    times = {plan.variant.attention: plan.seconds for plan in reversed(result.alternatives)}
    assert times[BALANCED_RING] < times[RING]
    assert all("context" not in plan.mesh.shape for plan in searched(16).alternatives)


def test_an_exhausted_search_with_an_answer_ends(monkeypatch):
    monkeypatch.setattr("shardwise.layout_search.evaluate._MAX_EQUATIONS", 0)
    plans = [plan for plan in searched(1).alternatives if "context" in plan.mesh.shape]
    assert len(plans) == 1 and plans[0].variant.attention == ""


def test_lengths_that_devices_do_not_divide():
    result = searched(1, length=8 * 17, count=8)
    assert {plan.variant.attention for plan in result.alternatives} == {"", RING}
    assert all("context" not in plan.mesh.shape for plan in searched(1, length=131, count=8).alternatives)


def state_and_tokens(sizes, rows, length=64):
    rng = np.random.default_rng(0)

    def start(path, leaf):
        is_weight = path[0].key == "weights"
        return (0.1 * rng.normal(size=leaf.shape) if is_weight else np.zeros(leaf.shape)).astype(leaf.dtype)

    state = sw.tree_util.tree_map_with_path(start, train_state(sizes))
    return state, rng.integers(0, sizes.vocabulary, (rows, length + 1)).astype(np.int32)


def assert_losses_of_one_device(run, sizes, state, tokens):
    expected, one = sw.jit(train_step(sizes)), state
    for _ in range(3):
        state, loss = run(state, tokens)
        one, other = expected(one, tokens)
        np.testing.assert_allclose(loss, other, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("attention", [BALANCED_RING, RING])
def test_a_decoder_with_rings_has_the_losses_of_one_device(attention):
    sizes = Decoder(2, 32, 4, 2, 8, 64, 96)
    state, tokens = state_and_tokens(sizes, 2)
    mesh = sw.make_mesh((2, 4), ("data", "context"))
    source = StepSource(sw.jit(train_step(sizes)), (state, tokens), {}, ())
    run = source.bind(Variant(mesh=mesh.abstract, attention=attention), mesh)
    assert "collective_permute" in run.lower(state, tokens).as_text()
    assert_losses_of_one_device(run, sizes, state, tokens)


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "key_heads"), [(8, 4), (3, 1)])
def test_chosen_plans_have_the_losses_of_one_device(heads, key_heads):
    """Two sequences on 2 × 4 devices, which divide the heads or do not."""
    sizes = Decoder(2, 32, heads, key_heads, 8, 64, 96)
    state, tokens = state_and_tokens(sizes, 2)
    mesh = sw.make_mesh((2, 4), ("data", "context"))
    result = sw.autoshard(train_step(sizes), mesh=mesh)(state, tokens)
    assert {plan.variant.attention for plan in result.alternatives} == {"", RING, BALANCED_RING}
    assert_losses_of_one_device(result.jit(), sizes, state, tokens)
