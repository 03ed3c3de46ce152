"""scaled_dot_general: the numbers that its formats mean, by numpy and ml_dtypes. JAX has them on some GPUs alone."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, nn
from tests.agreement import layouts_of

RNG = np.random.default_rng(0)
ROWS = (((2,), (2,)), ((0,), (0,)))
LHS, RHS = (RNG.normal(size=(2, rows, 64)).astype(np.float32) * np.float32(3) for rows in (32, 96))
LHS[0, 0] = 0  # a block without a scale
LHS[1, 1, 3] = 4e3


def eight_bits(x):
    """Blocks of 32, with the least power of two as scale by which none is above 448; back in f32."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    with np.errstate(divide="ignore"):
        scale = 2.0 ** np.ceil(np.log2(np.abs(blocks).max(-1, keepdims=True) / 448))
    scale = np.where(scale == 0, 1, scale)
    return ((blocks / scale).astype(ml_dtypes.float8_e4m3fn).astype(float) * scale).reshape(x.shape)


def four_bits(x, every):
    """Blocks of 16, with the largest over 6 as scale, in 8 bits; back in f32."""
    blocks = x.reshape(*x.shape[:-1], -1, 16) / np.float32(every)
    scale = np.clip(np.abs(blocks).max(-1, keepdims=True) / 6, 0, 448).astype(ml_dtypes.float8_e4m3fn)
    scale = scale.astype(np.float32)
    rounded = np.clip(blocks / np.where(scale == 0, 1, scale), -6, 6).astype(ml_dtypes.float4_e2m1fn)
    return (rounded.astype(float) * scale).reshape(x.shape) * every


def configs(mode, *scales):
    return [nn.get_scaled_dot_general_config(mode, *scales)] * 3


def test_values():
    found = nn.scaled_dot_general(LHS, RHS, ROWS, configs=configs("mxfp8"))
    np.testing.assert_allclose(found, np.einsum("bmk,bnk->bmn", eight_bits(LHS), eight_bits(RHS)), rtol=1e-5, atol=1e-3)
    for every in (1.0, 0.25):
        found = nn.scaled_dot_general(LHS, RHS, ROWS, configs=configs("nvfp4", jnp.array([every], jnp.float32)))
        wanted = np.einsum("bmk,bnk->bmn", four_bits(LHS, every), four_bits(RHS, every))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-2)
    np.testing.assert_allclose(
        nn.scaled_dot_general(LHS, RHS, ROWS), np.einsum("bmk,bnk->bmn", LHS, RHS), rtol=1e-4, atol=1e-2
    )
    assert nn.scaled_dot_general(LHS, RHS, ROWS, jnp.bfloat16, configs("mxfp8")).dtype == jnp.bfloat16


def test_any_dims():
    """What is contracted is one row, whose dims may lie anywhere."""
    x = RNG.normal(size=(4, 3, 8, 2)).astype(np.float32)
    y = RNG.normal(size=(2, 8, 4, 5)).astype(np.float32)
    found = nn.scaled_dot_general(x, y, (((0, 2), (2, 1)), ((3,), (0,))), configs=configs("mxfp8"))
    flat_x = eight_bits(x.transpose(3, 1, 0, 2).reshape(2, 3, 32))
    flat_y = eight_bits(y.transpose(0, 3, 2, 1).reshape(2, 5, 32))
    assert found.shape == (2, 3, 5)
    np.testing.assert_allclose(found, np.einsum("bmk,bnk->bmn", flat_x, flat_y), rtol=1e-5, atol=1e-5)


def test_gradients():
    weights = np.cos(np.arange(2 * 32 * 96)).reshape(2, 32, 96).astype(np.float32)

    def slopes(rounding):
        def total(x, y):
            return (nn.scaled_dot_general(x, y, ROWS, configs=rounding) * weights).sum()

        return sw.jit(sw.grad(total, (0, 1)))(LHS, RHS)

    for_lhs, for_rhs = slopes(configs("mxfp8"))
    flowing = weights
    wanted = np.einsum("bmn,bkn->bmk", eight_bits(flowing), eight_bits(RHS.transpose(0, 2, 1)))
    np.testing.assert_allclose(for_lhs, wanted, rtol=1e-4, atol=1e-4)
    wanted = np.einsum("bnm,bkm->bnk", eight_bits(flowing.transpose(0, 2, 1)), eight_bits(LHS.transpose(0, 2, 1)))
    np.testing.assert_allclose(for_rhs, wanted, rtol=1e-4, atol=1e-2)
    for_lhs, for_rhs = slopes(configs("nvfp4"))
    wanted = np.where(np.abs(LHS) <= 6 * 448, np.einsum("bmn,bnk->bmk", flowing, RHS), 0)
    assert wanted[1, 1, 3] == 0
    np.testing.assert_allclose(for_lhs, wanted, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(for_rhs, np.einsum("bmn,bmk->bnk", flowing, LHS), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("which", ["first", "last"])
def test_on_a_mesh(mesh, which):
    run = sw.jit(
        lambda x, y: [
            nn.scaled_dot_general(x, y, (((1,), (1,)), ((), ())), configs=rounding)
            for rounding in (configs("mxfp8"), configs("nvfp4"))
        ]
    )
    arrays = [RNG.normal(size=(rows, 320)).astype(np.float32) for rows in (10, 13)]
    placed = [sw.device_put(x, layouts_of(mesh, 2, which)) for x in arrays]
    for found, wanted in zip(run(*placed), run(*arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


def test_settings():
    config = nn.get_scaled_dot_general_config("nvfp4")
    assert (config.mode, config.block_size, config.infer_only) == ("nvfp4", 16, False)
    assert config.global_scale.tolist() == [1.0]
    assert nn.get_scaled_dot_general_config("mxfp8", jnp.ones(1)).global_scale is None


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda: nn.get_scaled_dot_general_config("int8"),
            ValueError,
            "get_scaled_dot_general_config: mode must be 'nvfp4' or 'mxfp8', not 'int8'",
        ),
        (
            lambda: nn.scaled_dot_general(LHS[..., :40], RHS[..., :40], ROWS, configs=configs("mxfp8")),
            ValueError,
            "scaled_dot_general: 40 elements that are contracted do not fall into blocks of 32",
        ),
        (
            lambda: nn.scaled_dot_general(LHS, RHS[..., :32], ROWS, configs=configs("mxfp8")),
            TypeError,
            "scaled_dot_general: f32[2,32,64] and f32[2,96,32] must agree in the dims of",
        ),
        (
            lambda: nn.scaled_dot_general(LHS, RHS, ROWS, jnp.int32, configs("mxfp8")),
            TypeError,
            "scaled_dot_general: preferred_element_type must be f32, bf16 or f16, not int32",
        ),
        (
            lambda: nn.scaled_dot_general(LHS, RHS, ROWS, configs=[*configs("mxfp8")[:1], *configs("nvfp4")[:1]]),
            ValueError,
            "scaled_dot_general: configs must be two or three of one mode",
        ),
        (
            lambda: sw.grad(lambda x: nn.scaled_dot_general(x, RHS, ROWS, configs=configs("mxfp8")[:2]).sum())(LHS),
            ValueError,
            "scaled_dot_general: a derivative needs a third config",
        ),
    ],
    ids=["mode", "blocks", "shapes", "dtype", "modes", "derivative"],
)
def test_what_is_refused(call, kind, message):
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_lax_and_nn_agree_without_rounding():
    np.testing.assert_array_equal(
        nn.scaled_dot_general(LHS, RHS, ROWS), lax.dot_general(LHS, RHS, ROWS, preferred_element_type=np.float32)
    )
