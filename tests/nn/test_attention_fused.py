"""dot_product_attention by the fused kernel that GPUs use."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


class TestFusedKernel:
    """On CPU the fused op runs its reference program instead of cuDNN's kernel."""

    @pytest.fixture(autouse=True)
    def trace_for_gpu(self):
        with sw.config.override("target_platform", "gpu"):
            yield

    @pytest.mark.table(default=1)
    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("key_heads", [4, 2])
    def test_values_and_gradients_match_xla(self, causal, key_heads):
        rng = np.random.default_rng(0)
        q = rng.normal(size=(2, 12, 4, 8)).astype(ml_dtypes.bfloat16)
        k, v = (rng.normal(size=(2, 12, key_heads, 8)).astype(ml_dtypes.bfloat16) for _ in range(2))

        def total(implementation):
            def function(q, k, v):
                out = sw.nn.dot_product_attention(q, k, v, is_causal=causal, implementation=implementation)
                return (out.astype(np.float32) * np.cos(np.arange(8))).sum(), out

            return sw.jit(sw.value_and_grad(function, (0, 1, 2), has_aux=True))

        fused, unfused = total("cudnn"), total("xla")
        assert "fused_attention[" in str(fused.trace(q, k, v))
        assert "fused_attention[" not in str(unfused.trace(q, k, v))
        for x, y in zip(sw.tree.leaves(fused(q, k, v)), sw.tree.leaves(unfused(q, k, v)), strict=True):
            np.testing.assert_allclose(np.asarray(x, np.float32), np.asarray(y, np.float32), rtol=0.03, atol=0.03)

    def test_mask_and_window_match_xla(self):
        rng = np.random.default_rng(0)
        q, k, v = (rng.normal(size=(2, 8, 2, 8)).astype(ml_dtypes.bfloat16) for _ in range(3))
        mask = rng.random((2, 1, 1, 8)) < 0.7
        for keywords in ({"mask": mask}, {"is_causal": True, "local_window_size": (2, 0)}):
            both = [
                sw.nn.dot_product_attention(q, k, v, implementation=name, **keywords).astype(np.float32)
                for name in ("cudnn", "xla")
            ]
            np.testing.assert_allclose(*both, rtol=0.03, atol=0.03)

    def test_residual_matches_xla(self):
        x = np.ones((1, 4, 2, 8), ml_dtypes.bfloat16)
        both = [
            sw.nn.dot_product_attention(x, x, x, implementation=name, return_residual=True) for name in ("cudnn", "xla")
        ]
        for fused, unfused in zip(*both, strict=True):
            np.testing.assert_allclose(np.asarray(fused, np.float32), np.asarray(unfused, np.float32), rtol=0.02)

    @pytest.mark.parametrize(
        ("dtype", "width", "keywords", "reason"),
        [
            (np.float32, 8, {}, "it computes in bf16 and f16"),
            (ml_dtypes.bfloat16, 12, {}, "a multiple of 8 up to 256, not 12"),
            (ml_dtypes.bfloat16, 8, {"bias": np.zeros((1, 1, 4, 4), ml_dtypes.bfloat16)}, "bias is not supported"),
            (ml_dtypes.bfloat16, 8, {"local_window_size": 2}, "a window must be causal"),
        ],
    )
    def test_unsupported_arguments_raise_only_if_cudnn_is_requested(self, dtype, width, keywords, reason):
        x = np.ones((1, 4, 2, width), dtype)
        with pytest.raises(NotImplementedError, match=reason):
            sw.nn.dot_product_attention(x, x, x, implementation="cudnn", **keywords)
        sw.nn.dot_product_attention(x, x, x, **keywords)

    def test_sharded_batch_and_heads_need_no_communication(self, mesh):
        x = np.ones((8, 4, 4, 8), ml_dtypes.bfloat16)
        placed = sw.device_put(x, NamedSharding(mesh, P("data", None, "model")))

        def loss(x):
            return sw.nn.dot_product_attention(x, x, x, implementation="cudnn")

        assert sw.explain(loss)(placed).collectives == []

    @pytest.mark.parametrize("platform", ["gpu", "cuda"])
    def test_the_kernel_is_lowered_where_there_is_no_gpu(self, platform):
        x = sw.ShapeDtypeStruct((2, 16, 2, 8), ml_dtypes.bfloat16)
        traced = sw.jit(lambda x: sw.nn.dot_product_attention(x, x, x, implementation="cudnn")).trace(x)
        assert "__cudnn$fmha" in traced.lower(lowering_platforms=(platform,)).as_text()
        assert "__cudnn$fmha" not in traced.lower(lowering_platforms=("cpu",)).as_text()

    def test_wide_heads_are_fused_where_programs_are_planned(self):
        x = sw.ShapeDtypeStruct((1, 512, 2, 192), ml_dtypes.bfloat16)
        run = sw.simulate(lambda x: sw.nn.dot_product_attention(x, x, x, is_causal=True), hardware="h100")(x)
        assert "fused_attention" in {step.op for step in run.plan.timeline.steps}

    def test_gradients_are_lowered_to_the_backward_kernel(self):
        x = sw.ShapeDtypeStruct((2, 16, 2, 8), ml_dtypes.bfloat16)

        def total(q, k, v):
            out = sw.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
            return out.astype(np.float32).sum()

        text = sw.jit(sw.grad(total, (0, 1, 2))).trace(x, x, x).lower(lowering_platforms=("cuda",)).as_text()
        (call,) = [line for line in text.splitlines() if "__cudnn$fmhaSoftmaxBackward" in line]
        operands, _, results = call.rpartition("}> : (")[2].partition(") -> ")
        assert operands.count("tensor<2x16x2x8xbf16>") == 5  # q, k, v, the result and its cotangent
        assert results.count("tensor<2x2x16x8xbf16>") == 3  # the cotangents of q, k and v, heads first
