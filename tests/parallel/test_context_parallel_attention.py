"""ContextParallelAttention: the attention of an ordinary function as ring attention."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import nn
from shardwise.api.attention_calls import attention_calls
from shardwise.parallel.context_parallel_attention import ContextParallelAttention, SelfAttentionRecorder
from tests.parallel.attention_reference import Sizes

SIZES = Sizes(batch=2, rows=16, heads=4, key_heads=2, head_dim=8)


def recorded(function, *args):
    recorder = SelfAttentionRecorder()
    with attention_calls(recorder):
        sw.jit(function).trace(*args)
    return recorder


def test_calls_that_rings_support_are_recorded():
    q, k, v = SIZES.operands()[:3]
    causal = recorded(lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True), q, k, v)
    assert causal.lengths == {16} and causal.has_causal
    assert not recorded(nn.dot_product_attention, q, k, v).has_causal
    assert not recorded(nn.dot_product_attention, q[:, :8], k, v).lengths
    mask = np.ones((16, 16), np.bool_)
    assert not recorded(lambda q, k, v: nn.dot_product_attention(q, k, v, mask=mask), q, k, v).lengths
    windowed = recorded(lambda q, k, v: nn.dot_product_attention(q, k, v, local_window_size=(4, 0)), q, k, v)
    assert not windowed.lengths


def test_functions_have_the_values_of_one_device():
    """Calls that rings do not support run as usual: with a mask, and of a length that the axis does not divide."""
    q, k, v = SIZES.operands()[:3]
    mask = np.tril(np.ones((16, 16), np.bool_))

    def attend(q, k, v):
        out = nn.dot_product_attention(q, k, v, is_causal=True, scale=0.5)
        out = nn.dot_product_attention(out, k, v, mask=mask)
        return nn.dot_product_attention(out[:, :15], k[:, :15], v[:, :15], is_causal=True)

    mesh = sw.make_mesh((4,), ("context",), devices=sw.devices()[:4])
    ring = sw.jit(ContextParallelAttention(mesh, "context", balanced=True).applied(attend))
    assert ring.lower(q, k, v).plan.counts()["ppermute"] > 4
    np.testing.assert_allclose(ring(q, k, v), attend(q, k, v), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("balanced", [False, True])
def test_functions_have_the_gradients_of_one_device(balanced):
    q, k, v = SIZES.operands()[:3]

    def loss(q, k, v):
        out = nn.dot_product_attention(q, k, v, is_causal=True, scale=0.5)
        return jnp.sum(nn.dot_product_attention(out, k, v) ** 2)

    mesh = sw.make_mesh((2, 4), ("data", "context"))
    step = sw.value_and_grad(loss, argnums=(0, 1, 2))
    attention = ContextParallelAttention(mesh, "context", balanced)
    ring = sw.jit(attention.applied(step), in_shardings=sw.NamedSharding(mesh, sw.P("data", "context")))
    assert ring.lower(q, k, v).plan.counts()["ppermute"]
    for value, expected in zip(sw.tree.leaves(ring(q, k, v)), sw.tree.leaves(step(q, k, v)), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)
