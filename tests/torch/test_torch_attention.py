"""scaled_dot_product_attention against PyTorch's, for the forms of masks that it accepts."""

import numpy as np
import pytest
import torch
from torch import nn

import shardwise as jax
from shardwise.torch import functional

pytestmark = pytest.mark.filterwarnings("default")

_RNG = np.random.default_rng(0)
_ROW_WITHOUT_KEYS = np.array([[True, False, True, True, False], [False] * 5, [True] * 5])
# name: shapes of query, key and value, mask, keywords
CASES = {
    "plain": ((2, 4, 3, 8), (2, 4, 5, 8), None, None, {}),
    "causal": ((2, 4, 5, 8), (2, 4, 5, 8), None, None, {"is_causal": True}),
    "causal, more keys": ((2, 4, 3, 8), (2, 4, 5, 8), None, None, {"is_causal": True}),
    "scale": ((2, 4, 3, 8), (2, 4, 5, 8), None, None, {"scale": 0.3}),
    "three dims": ((4, 3, 8), (4, 5, 8), None, None, {}),
    "five dims": ((2, 3, 4, 3, 8), (2, 3, 4, 5, 8), None, None, {}),
    "grouped heads": ((2, 6, 3, 8), (2, 2, 5, 8), None, None, {"enable_gqa": True}),
    "mask of two dims": ((2, 4, 3, 8), (2, 4, 5, 8), None, _ROW_WITHOUT_KEYS, {}),
    "mask per sequence": ((2, 4, 3, 8), (2, 4, 5, 8), None, _RNG.random((2, 1, 1, 5)) > 0.4, {}),
    "mask of five dims": ((2, 3, 4, 3, 8), (2, 3, 4, 5, 8), None, _RNG.random((3, 1, 3, 5)) > 0.4, {}),
    "bias per head": ((2, 4, 3, 8), (2, 4, 5, 8), None, _RNG.standard_normal((4, 3, 5), np.float32), {}),
    "bias of -inf": (
        (2, 4, 3, 8),
        (2, 4, 5, 8),
        None,
        np.where(_ROW_WITHOUT_KEYS, np.float32(0), np.float32(-np.inf)),
        {},
    ),
    "values of another width": ((2, 4, 3, 8), (2, 4, 5, 8), (2, 4, 5, 6), None, {}),
    "batch dims that broadcast": ((2, 4, 3, 8), (1, 4, 5, 8), None, None, {}),
}


class Attention(nn.Module):
    def __init__(self, keywords):
        super().__init__()
        self.keywords = keywords

    def forward(self, q, k, v, mask):
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.keywords)


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_equal_those_of_pytorch(name):
    query, key, value, mask, keywords = CASES[name]
    arrays = [_RNG.standard_normal(shape, np.float32) for shape in (query, key, value or key)]
    module = Attention(keywords)
    function, params, buffers = functional(module)
    out, vjp = jax.vjp(lambda *arrays: function(params, buffers, *arrays, mask)[0], *arrays)
    weights = _RNG.standard_normal(out.shape, np.float32)

    tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
    expected = module(*tensors, None if mask is None else torch.tensor(mask))
    expected.backward(torch.tensor(weights))
    np.testing.assert_allclose(out, expected.detach(), rtol=1e-5, atol=1e-6)
    for gradient, tensor in zip(vjp(jax.numpy.asarray(weights)), tensors, strict=True):
        np.testing.assert_allclose(gradient, tensor.grad, rtol=1e-4, atol=1e-5)


def test_dropout_of_the_weights_needs_a_key():
    function, params, buffers = functional(Attention({"dropout_p": 0.5}))
    x = _RNG.standard_normal((1, 2, 64, 8), np.float32)
    dropped, _ = function(params, buffers, x, x, np.ones_like(x), None, key=jax.random.key(0))
    assert np.std(dropped) > 0.01  # rows of ones stay ones without dropout
    np.testing.assert_allclose(np.mean(dropped), 1, atol=0.1)


def test_long_sequences_have_no_matrix_of_scores():
    function, params, buffers = functional(Attention({"is_causal": True}))
    x = jax.ShapeDtypeStruct((1, 2, 4096, 16), np.float32)
    jaxpr = str(jax.make_jaxpr(lambda x: function(params, buffers, x, x, x, None)[0])(x))
    assert "4096,4096" not in jaxpr.replace(" ", "")
