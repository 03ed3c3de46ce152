"""fp8_dot: products with float8 numbers, their gradients and maxima, against numpy with ml_dtypes."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise.compiler.kernels.fp8_dot import Fp8Dot, quantize_operand
from shardwise.compiler.kernels.fp8_equations import Fp8Form
from shardwise.compiler.ops.contract.dot import Dot

F32, BF16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
SCALES = np.array([2**-6, 2**-7, 2**-9], F32)

# The op, its einsum, and the shapes of x and of the weight.
CASES = [
    (Dot(((2,), (0,))), "btd,df->btf", (3, 5, 16), (16, 8)),
    (Dot(((1,), (1,))), "bd,fd->bf", (6, 16), (8, 16)),
    (Dot(((2, 3), (0, 1))), "bthd,hdf->btf", (2, 3, 4, 8), (4, 8, 6)),
    (Dot(((2,), (1,)), ((0,), (0,))), "ecd,edf->ecf", (3, 4, 8), (3, 8, 5)),
    (Dot(((0,), (0,))), "d,df->f", (16,), (16, 8)),
]


def random(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32)


def product(dot, dtype=F32, measures=False):
    form = Fp8Form(dot, np.dtype(dtype), measures=measures)
    return lambda x, w, scales: Fp8Dot.apply(form, x, w, scales, quantize_operand(form, x, scales[0]))


def rounded(x, dtype, scale):
    limit = float(ml_dtypes.finfo(dtype).max)
    return np.clip(x / scale, -limit, limit).astype(dtype).astype(F32) * scale


def gradients(text, x, w, ct):
    """The product of rounded numbers, the two gradients, and the largest magnitudes."""
    left, right = text.split("->")[0].split(",")
    out = text.split("->")[1]
    x8, w8, ct8 = rounded(x, E4M3, SCALES[0]), rounded(w, E4M3, SCALES[1]), rounded(ct, E5M2, SCALES[2])
    maxima = np.array([np.abs(z).max() for z in (x, w, ct)])
    pairs = (text, x8, w8), (f"{out},{right}->{left}", ct8, w8), (f"{left},{out}->{right}", x8, ct8)
    return [*(np.einsum(*pair) for pair in pairs), maxima]


@pytest.mark.parametrize(("dot", "text", "x_shape", "w_shape"), CASES, ids=str)
def test_gradients(dot, text, x_shape, w_shape):
    x, w = random(*x_shape), random(*w_shape)
    result, vjp = jax.vjp(product(dot), *map(jnp.asarray, (x, w, SCALES)))
    ct = random(*result.shape)
    for ours, theirs in zip([result, *vjp(jnp.asarray(ct))], gradients(text, x, w, ct), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_forward_mode_is_the_derivative_of_the_rounded_product():
    dot, text, x_shape, w_shape = CASES[0]
    x, w, dx, dw = random(*x_shape), random(*w_shape), random(*x_shape), random(*w_shape)
    _, tangent = jax.jvp(lambda x, w: product(dot)(x, w, jnp.asarray(SCALES)), (x, w), (dx, dw))
    expected = np.einsum(text, dx, rounded(w, E4M3, SCALES[1])) + np.einsum(text, rounded(x, E4M3, SCALES[0]), dw)
    np.testing.assert_allclose(tangent, expected, rtol=1e-5, atol=1e-5)


def test_measuring_computes_the_product_without_rounding():
    dot, text, x_shape, w_shape = CASES[0]
    x, w = random(*x_shape), random(*w_shape)
    result, vjp = jax.vjp(product(dot, measures=True), *map(jnp.asarray, (x, w, SCALES)))
    np.testing.assert_allclose(result, np.einsum(text, x, w), rtol=1e-5, atol=1e-5)
    *_, maxima = vjp(jnp.full(result.shape, 3.0))
    np.testing.assert_array_equal(maxima, [np.abs(x).max(), np.abs(w).max(), 3])


def test_a_vmapped_product_has_the_maxima_of_all_elements():
    dot, text, x_shape, w_shape = CASES[0]
    x, w = random(4, *x_shape), random(*w_shape)

    def loss(x, w, scales):
        return jnp.sum(jax.vmap(product(dot), (0, None, None))(x, w, scales) * 0.5)

    ours = jax.grad(loss, (0, 1, 2))(*map(jnp.asarray, (x, w, SCALES)))
    ct = np.full((4, *x_shape[:-1], w_shape[-1]), 0.5, F32)
    theirs = gradients("a" + text.replace("->", "->a"), x, w, ct)[1:]
    for result, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_vmapped_scales():
    dot, text, x_shape, w_shape = CASES[0]
    x, w = random(2, *x_shape), random(2, *w_shape)
    scales = np.stack([SCALES, 2 * SCALES])
    results = jax.vmap(product(dot))(*map(jnp.asarray, (x, w, scales)))
    for index in range(2):
        pair = (rounded(z[index], E4M3, scales[index, n]) for n, z in enumerate((x, w)))
        np.testing.assert_allclose(results[index], np.einsum(text, *pair), rtol=1e-5, atol=1e-5)


def test_a_second_derivative_is_an_error():
    dot, _, x_shape, w_shape = CASES[0]
    x, w, scales = map(jnp.asarray, (random(*x_shape), random(*w_shape), SCALES))
    with pytest.raises(TypeError, match="has first derivatives only"):
        jax.hessian(lambda w: (product(dot)(x, w, scales) ** 2).sum())(w)


def test_lowering_for_gpus():
    dot, _, x_shape, w_shape = CASES[0]
    types = [jax.ShapeDtypeStruct(shape, F32) for shape in (x_shape, w_shape, (3,))]

    def gradient(x, w, scales):
        return jax.grad(lambda x, w, scales: product(dot, BF16)(x, w, scales).sum(), (0, 1, 2))(x, w, scales)

    def text(platform):
        return jax.jit(gradient).trace(*types).lower(lowering_platforms=(platform,)).as_text()

    assert text("cuda").count("__gpu$xla.gpu.triton") == 3  # x, the weight and the cotangent
    assert "triton" not in text("cpu")
