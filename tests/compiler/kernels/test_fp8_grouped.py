"""fp8_grouped: grouped products with float8 numbers, their gradients and maxima, against a loop over groups."""

from itertools import pairwise

import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import NamedSharding, P
from shardwise.compiler.kernels.fp8_dot import Fp8Dot, quantize_operand
from shardwise.compiler.kernels.fp8_equations import Fp8Form
from shardwise.compiler.kernels.grouped_dot import GroupedDot
from shardwise.errors import HardwareError
from shardwise.strategies import FP8Policy, mixed_precision
from tests.compiler.kernels.test_fp8_dot import E4M3, E5M2, F32, SCALES, random, rounded

OFFSETS = np.array([0, 3, 3, 12, 17], np.int32)  # an empty group, and five rows in no group
X, W, CT = (22, 6), (4, 6, 8), (22, 8)
POLICY = FP8Policy(precision=None, history=4)


def product(op=GroupedDot(), measures=False):  # noqa: B008 - an op is a value
    form = Fp8Form(op, F32, measures=measures)
    return lambda x, w, scales: Fp8Dot.apply(
        form, x, w, scales, quantize_operand(form, x, scales[0]), [jnp.asarray(OFFSETS)]
    )


def gradients(x, w, ct):
    """The product of rounded numbers, the two gradients, and the largest magnitudes."""
    x8, w8, ct8 = rounded(x, E4M3, SCALES[0]), rounded(w, E4M3, SCALES[1]), rounded(ct, E5M2, SCALES[2])
    maxima = np.array([np.abs(z).max() for z in (x, w, ct)])
    result, x_ct, w_ct = np.zeros(ct.shape, F32), np.zeros(x.shape, F32), np.zeros(w.shape, F32)
    for group, (start, end) in enumerate(pairwise(OFFSETS)):
        rows = slice(start, end)
        result[rows], x_ct[rows] = x8[rows] @ w8[group], ct8[rows] @ w8[group].T
        w_ct[group] = x8[rows].T @ ct8[rows]
    return result, x_ct, w_ct, maxima


def test_gradients():
    x, w, ct = random(*X), random(*W), random(*CT)
    for transposed in (False, True):
        order = (0, 2, 1) if transposed else (0, 1, 2)
        function = product(GroupedDot(transposed=transposed))
        result, vjp = jax.vjp(function, *map(jnp.asarray, (x, w.transpose(order), SCALES)))
        x_ct, w_ct, maxima = vjp(jnp.asarray(ct))
        for ours, theirs in zip((result, x_ct, w_ct.transpose(order), maxima), gradients(x, w, ct), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_forward_mode_and_measuring():
    x, w, dx, dw = random(*X), random(*W), random(22, 6) + 1, random(4, 6, 8) - 1
    _, tangent = jax.jvp(lambda x, w: product()(x, w, jnp.asarray(SCALES)), (x, w), (dx, dw))
    x8, w8 = rounded(x, E4M3, SCALES[0]), rounded(w, E4M3, SCALES[1])
    expected = np.zeros(CT, F32)
    for group, (start, end) in enumerate(pairwise(OFFSETS)):
        expected[start:end] = dx[start:end] @ w8[group] + x8[start:end] @ dw[group]
    np.testing.assert_allclose(tangent, expected, rtol=1e-5, atol=1e-5)
    result, vjp = jax.vjp(product(measures=True), *map(jnp.asarray, (x, w, SCALES)))
    expected = jax.lax.ragged_dot(x, w, np.diff(OFFSETS))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    *_, maxima = vjp(jnp.full(CT, 3.0))
    np.testing.assert_array_equal(maxima, [np.abs(x).max(), np.abs(w).max(), 3])


@pytest.mark.parametrize("scales_dim", [None, 0])
def test_vmap(scales_dim):
    x, w, scales = random(2, *X), random(*W), SCALES if scales_dim is None else np.stack([SCALES, 2 * SCALES])

    def loss(x, w, scales):
        return jnp.sum(jax.vmap(product(), (0, None, scales_dim))(x, w, scales) * jnp.arange(8.0))

    ours = jax.grad(loss, (0, 1, 2))(*map(jnp.asarray, (x, w, scales)))

    def one(x, w, scales):
        return jnp.sum(product()(x, w, scales) * jnp.arange(8.0))

    theirs = [jax.grad(one, (0, 1, 2))(x[i], w, scales if scales_dim is None else scales[i]) for i in range(2)]
    np.testing.assert_allclose(ours[0], np.stack([row[0] for row in theirs]), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ours[1], theirs[0][1] + theirs[1][1], rtol=1e-4, atol=1e-4)
    maxima = np.stack([row[2] for row in theirs])
    rows = np.arange(22) < 17
    if scales_dim is None:
        expected = [np.abs(x[:, rows]).max(), np.abs(w).max(), 7]
        np.testing.assert_allclose(ours[2], expected, rtol=1e-6)
    else:
        np.testing.assert_allclose(ours[2], maxima, rtol=1e-6)


def loss(params, x):
    """A layer of experts, for rows that are sorted."""
    sizes = jnp.array([3, 0, 9, 5], np.int32)
    hidden = jax.nn.silu(jax.kernels.grouped_dot(x, params["gate"], sizes))
    hidden = hidden * jax.kernels.grouped_dot(x, params["up"], sizes)
    return jnp.mean(jax.kernels.grouped_dot(hidden, params["down"], sizes) ** 2)


PARAMS = {"gate": (4, 16, 32), "up": (4, 16, 32), "down": (4, 32, 16)}
STEP = jax.value_and_grad(mixed_precision(loss, POLICY), (0, 1))


def test_a_policy_selects_products_of_experts():
    params = {name: jnp.asarray(random(*shape)) / 4 for name, shape in PARAMS.items()}
    x = jnp.asarray(random(22, 16))
    rows = {row.name: row.reason for row in POLICY.products(loss, params, x)}
    assert rows == dict.fromkeys(PARAMS, "")
    (row,) = POLICY.products(lambda x, w: jax.kernels.grouped_dot(x, w, jnp.array([3])), x, x[None, :16])
    assert row.reason == "no operand is a parameter"
    scales = POLICY.create(loss, params, x)
    value, (grads, maxima) = jax.jit(STEP)(params, scales, x)
    expected, wide = jax.jit(jax.value_and_grad(loss))(params, x)
    np.testing.assert_allclose(value, expected, rtol=0.05)
    errors = jax.tree.map(lambda x, y: float(jnp.linalg.norm(x - y) / jnp.linalg.norm(y)), grads, wide)
    assert max(errors.values()) < 0.2
    for name, array in params.items():
        assert maxima.scales[name][1] == jnp.abs(array).max()
    text = jax.jit(STEP).trace(params, scales, x).lower(lowering_platforms=("cuda",)).as_text()
    # 2 inputs, 3 weights and 3 cotangents are quantized; 3 results and the cotangents of 1 input and 3 weights follow.
    # One kernel reads the 9 scales.
    assert text.count("__gpu$xla.gpu.triton") == 16


def test_experts_stay_where_they_are():
    mesh = jax.make_mesh((4, 2), ("expert", "model"))

    def placed(shape, *spec):
        return jax.ShapeDtypeStruct(shape, F32, sharding=NamedSharding(mesh, P(*spec)))

    params = {name: placed((8, *shape[1:]), "expert") for name, shape in PARAMS.items()}
    x = placed((22, 16))
    function = mixed_precision(big_loss, POLICY)
    scales = POLICY.create(big_loss, params, x)
    scales = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, P())), scales)

    def step(params, scales, x):
        grads, maxima = jax.grad(function, (0, 1))(params, scales, x)
        return jax.tree.map(jnp.subtract, params, grads), scales.update(maxima)

    plan = jax.explain(step, hardware="h100")(params, scales, x)
    assert plan.counts() == {"all_reduce": 5}  # the results, the cotangent of `hidden`, and the maxima
    assert [row.type for row in plan.collectives].count("f32[9]") == 1
    assert "matrix products: 7, of which 7 in float8" in str(plan)
    with pytest.raises(HardwareError, match="has no units for products of float8"):
        jax.explain(step, hardware="a100")(params, scales, x)


def big_loss(params, x):
    sizes = jnp.array([3, 0, 9, 5, 1, 1, 1, 1], np.int32)
    hidden = jnp.maximum(jax.kernels.grouped_dot(x, params["gate"], sizes), 0)
    hidden = hidden * jax.kernels.grouped_dot(x, params["up"], sizes)
    return jnp.mean(jax.kernels.grouped_dot(hidden, params["down"], sizes) ** 2)
