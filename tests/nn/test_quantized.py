"""Compare scaled_dot_general with quantization by numpy and ml_dtypes.

JAX is no oracle here: it supports these products on some GPUs only.
"""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, nn
from tests.agreement import sharding_along

RNG = np.random.default_rng(0)
ROWS = (((2,), (2,)), ((0,), (0,)))
LHS, RHS = (RNG.normal(size=(2, rows, 64)).astype(np.float32) * np.float32(3) for rows in (32, 96))
LHS[0, 0] = 0  # blocks of zeros, whose maximum cannot be a scale
LHS[1, 1, 3] = 4e3


def mxfp8(x):
    """Quantize to mxfp8 and back: blocks of 32, scaled by the smallest power of two that keeps them below 448."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    with np.errstate(divide="ignore"):
        scale = 2.0 ** np.ceil(np.log2(np.abs(blocks).max(-1, keepdims=True) / 448))
    scale = np.where(scale == 0, 1, scale)
    return ((blocks / scale).astype(ml_dtypes.float8_e4m3fn).astype(float) * scale).reshape(x.shape)


def nvfp4(x, global_scale):
    """Quantize to nvfp4 and back: blocks of 16, scaled by their maximum over 6 in 8 bits."""
    blocks = x.reshape(*x.shape[:-1], -1, 16) / np.float32(global_scale)
    scale = np.clip(np.abs(blocks).max(-1, keepdims=True) / 6, 0, 448).astype(ml_dtypes.float8_e4m3fn)
    scale = scale.astype(np.float32)
    rounded = np.clip(blocks / np.where(scale == 0, 1, scale), -6, 6).astype(ml_dtypes.float4_e2m1fn)
    return (rounded.astype(float) * scale).reshape(x.shape) * global_scale


def configs(mode, *scales):
    return [nn.get_scaled_dot_general_config(mode, *scales)] * 3


def test_values_match_numpy():
    out = nn.scaled_dot_general(LHS, RHS, ROWS, configs=configs("mxfp8"))
    np.testing.assert_allclose(out, np.einsum("bmk,bnk->bmn", mxfp8(LHS), mxfp8(RHS)), rtol=1e-5, atol=1e-3)
    for global_scale in (1.0, 0.25):
        out = nn.scaled_dot_general(LHS, RHS, ROWS, configs=configs("nvfp4", jnp.array([global_scale], jnp.float32)))
        expected = np.einsum("bmk,bnk->bmn", nvfp4(LHS, global_scale), nvfp4(RHS, global_scale))
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-2)
    np.testing.assert_allclose(
        nn.scaled_dot_general(LHS, RHS, ROWS), np.einsum("bmk,bnk->bmn", LHS, RHS), rtol=1e-4, atol=1e-2
    )
    assert nn.scaled_dot_general(LHS, RHS, ROWS, jnp.bfloat16, configs("mxfp8")).dtype == jnp.bfloat16


def test_contracting_dims_are_flattened_into_one_row():
    """Blocks run along the flattened contracting dims, whatever the order of the dims."""
    x = RNG.normal(size=(4, 3, 8, 2)).astype(np.float32)
    y = RNG.normal(size=(2, 8, 4, 5)).astype(np.float32)
    out = nn.scaled_dot_general(x, y, (((0, 2), (2, 1)), ((3,), (0,))), configs=configs("mxfp8"))
    flat_x = mxfp8(x.transpose(3, 1, 0, 2).reshape(2, 3, 32))
    flat_y = mxfp8(y.transpose(0, 3, 2, 1).reshape(2, 5, 32))
    assert out.shape == (2, 3, 5)
    np.testing.assert_allclose(out, np.einsum("bmk,bnk->bmn", flat_x, flat_y), rtol=1e-5, atol=1e-5)


def test_gradients_match_numpy():
    weights = np.cos(np.arange(2 * 32 * 96)).reshape(2, 32, 96).astype(np.float32)

    def gradients(quantization):
        def total(x, y):
            return (nn.scaled_dot_general(x, y, ROWS, configs=quantization) * weights).sum()

        return sw.jit(sw.grad(total, (0, 1)))(LHS, RHS)

    grad_lhs, grad_rhs = gradients(configs("mxfp8"))
    cotangent = weights
    expected = np.einsum("bmn,bkn->bmk", mxfp8(cotangent), mxfp8(RHS.transpose(0, 2, 1)))
    np.testing.assert_allclose(grad_lhs, expected, rtol=1e-4, atol=1e-4)
    expected = np.einsum("bnm,bkm->bnk", mxfp8(cotangent.transpose(0, 2, 1)), mxfp8(LHS.transpose(0, 2, 1)))
    np.testing.assert_allclose(grad_rhs, expected, rtol=1e-4, atol=1e-2)
    grad_lhs, grad_rhs = gradients(configs("nvfp4"))
    expected = np.where(np.abs(LHS) <= 6 * 448, np.einsum("bmn,bnk->bmk", cotangent, RHS), 0)
    assert expected[1, 1, 3] == 0
    np.testing.assert_allclose(grad_lhs, expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(grad_rhs, np.einsum("bmn,bmk->bnk", cotangent, LHS), rtol=1e-4, atol=1e-2)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
def test_sharded_operands_match_one_device(mesh, which):
    run = sw.jit(
        lambda x, y: [
            nn.scaled_dot_general(x, y, (((1,), (1,)), ((), ())), configs=quantization)
            for quantization in (configs("mxfp8"), configs("nvfp4"))
        ]
    )
    arrays = [RNG.normal(size=(rows, 320)).astype(np.float32) for rows in (10, 13)]
    placed = [sw.device_put(x, sharding_along(mesh, 2, which)) for x in arrays]
    for sharded, expected in zip(run(*placed), run(*arrays), strict=True):
        np.testing.assert_allclose(sharded, expected, rtol=1e-4, atol=1e-3)


def test_configs_have_the_parameters_of_their_mode():
    config = nn.get_scaled_dot_general_config("nvfp4")
    assert (config.mode, config.block_size, config.infer_only) == ("nvfp4", 16, False)
    assert config.global_scale.tolist() == [1.0]
    assert nn.get_scaled_dot_general_config("mxfp8", jnp.ones(1)).global_scale is None


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: nn.get_scaled_dot_general_config("int8"),
            ValueError,
            "get_scaled_dot_general_config: mode must be 'nvfp4' or 'mxfp8', not 'int8'",
        ),
        (
            lambda: nn.scaled_dot_general(LHS[..., :40], RHS[..., :40], ROWS, configs=configs("mxfp8")),
            ValueError,
            "scaled_dot_general: the number of contracted elements, 40, is not a multiple of the block size 32",
        ),
        (
            lambda: nn.scaled_dot_general(LHS, RHS[..., :32], ROWS, configs=configs("mxfp8")),
            TypeError,
            "scaled_dot_general: f32[2,32,64] and f32[2,96,32] must have equal sizes along the contracting dims",
        ),
        (
            lambda: nn.scaled_dot_general(LHS, RHS, ROWS, jnp.int32, configs("mxfp8")),
            TypeError,
            "scaled_dot_general: preferred_element_type must be f32, bf16 or f16, not int32",
        ),
        (
            lambda: nn.scaled_dot_general(LHS, RHS, ROWS, configs=[*configs("mxfp8")[:1], *configs("nvfp4")[:1]]),
            ValueError,
            "scaled_dot_general: configs must be two or three configs of one mode",
        ),
        (
            lambda: sw.grad(lambda x: nn.scaled_dot_general(x, RHS, ROWS, configs=configs("mxfp8")[:2]).sum())(LHS),
            ValueError,
            "scaled_dot_general: differentiation needs a third config",
        ),
    ],
    ids=["mode", "blocks", "shapes", "dtype", "modes", "derivative"],
)
def test_invalid_arguments_raise(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_without_configs_it_is_dot_general():
    np.testing.assert_array_equal(
        nn.scaled_dot_general(LHS, RHS, ROWS), lax.dot_general(LHS, RHS, ROWS, preferred_element_type=np.float32)
    )
