"""dot_product_attention by one kernel, as GPUs have it."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
from shardwise.nn import attention
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


class TestOneKernel:
    """What GPUs use cuDNN for, here by its meaning on CPU: equal to the plain form, with gradients."""

    @pytest.fixture(autouse=True)
    def as_on_a_gpu(self, monkeypatch):
        monkeypatch.setattr(attention, "default_backend", lambda: "gpu")

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("shared", [4, 2])
    def test_like_the_plain_form(self, causal, shared):
        rng = np.random.default_rng(0)
        q = rng.normal(size=(2, 12, 4, 8)).astype(ml_dtypes.bfloat16)
        k, v = (rng.normal(size=(2, 12, shared, 8)).astype(ml_dtypes.bfloat16) for _ in range(2))

        def total(implementation):
            def function(q, k, v):
                found = sw.nn.dot_product_attention(q, k, v, is_causal=causal, implementation=implementation)
                return (found.astype(np.float32) * np.cos(np.arange(8))).sum(), found

            return sw.jit(sw.value_and_grad(function, (0, 1, 2), has_aux=True))

        fused, plain = total("cudnn"), total("xla")
        assert "fused_attention[" in str(fused.trace(q, k, v))
        assert "fused_attention[" not in str(plain.trace(q, k, v))
        for x, y in zip(sw.tree.leaves(fused(q, k, v)), sw.tree.leaves(plain(q, k, v)), strict=True):
            np.testing.assert_allclose(np.asarray(x, np.float32), np.asarray(y, np.float32), rtol=0.03, atol=0.03)

    def test_mask_and_window(self):
        rng = np.random.default_rng(0)
        q, k, v = (rng.normal(size=(2, 8, 2, 8)).astype(ml_dtypes.bfloat16) for _ in range(3))
        seen = rng.random((2, 1, 1, 8)) < 0.7
        for keywords in ({"mask": seen}, {"is_causal": True, "local_window_size": (2, 0)}):
            both = [
                sw.nn.dot_product_attention(q, k, v, implementation=way, **keywords).astype(np.float32)
                for way in ("cudnn", "xla")
            ]
            np.testing.assert_allclose(*both, rtol=0.03, atol=0.03)

    def test_residual(self):
        x = np.ones((1, 4, 2, 8), ml_dtypes.bfloat16)
        both = [
            sw.nn.dot_product_attention(x, x, x, implementation=way, return_residual=True) for way in ("cudnn", "xla")
        ]
        for ours, plain in zip(*both, strict=True):
            np.testing.assert_allclose(np.asarray(ours, np.float32), np.asarray(plain, np.float32), rtol=0.02)

    @pytest.mark.parametrize(
        ("dtype", "width", "keywords", "why"),
        [
            (np.float32, 8, {}, "it computes in bf16 and f16"),
            (ml_dtypes.bfloat16, 12, {}, "a multiple of 8 up to 128, not 12"),
            (ml_dtypes.bfloat16, 8, {"bias": np.zeros((1, 1, 4, 4), ml_dtypes.bfloat16)}, "it takes no bias here"),
            (ml_dtypes.bfloat16, 8, {"local_window_size": 2}, "a window must be causal"),
        ],
    )
    def test_what_it_cannot_do_is_refused_where_it_is_asked_for(self, dtype, width, keywords, why):
        x = np.ones((1, 4, 2, width), dtype)
        with pytest.raises(NotImplementedError, match=why):
            sw.nn.dot_product_attention(x, x, x, implementation="cudnn", **keywords)
        sw.nn.dot_product_attention(x, x, x, **keywords)

    def test_batch_and_heads_are_cut(self, mesh):
        x = np.ones((8, 4, 4, 8), ml_dtypes.bfloat16)
        placed = sw.device_put(x, NamedSharding(mesh, P("data", None, "model")))

        def loss(x):
            return sw.nn.dot_product_attention(x, x, x, implementation="cudnn")

        assert sw.explain(loss)(placed).collectives == []
