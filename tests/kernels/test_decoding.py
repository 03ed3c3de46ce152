"""kernels.paged_attention: against a loop in numpy, its Triton IR, and shardings."""

import re

import ml_dtypes
import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import NamedSharding, P
from shardwise.base._jaxlib import parse_module
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.paged_attention import PagedAttention
from shardwise.compiler.trace.build import rewrite
from tests.compiler.kernels.run_kernel import run_kernel

F32, BF16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)


def arguments(sequences=3, heads=6, key_heads=2, width=20, pages=11, size=8, listed=5, dtype=F32):
    rng = np.random.default_rng(0)
    q = rng.standard_normal((sequences, heads, width)).astype(dtype)
    k, v = (rng.standard_normal((key_heads, pages, size, width)).astype(dtype) for _ in range(2))
    tables = rng.integers(0, pages, (sequences, listed)).astype(np.int32)
    lengths = np.array([size * listed, 0, 13, 1, 26, 40, 3, 39][:sequences], np.int32)
    return [q, k, v, tables, np.minimum(lengths, size * listed)]


def loop(q, k, v, tables, lengths, scale):
    result = np.zeros(q.shape, np.float64)
    group = q.shape[1] // k.shape[0]
    for b, length in enumerate(lengths):
        for h in range(q.shape[1] if length else 0):
            keys, values = (x[h // group, tables[b]].reshape(-1, q.shape[2])[:length].astype(float) for x in (k, v))
            scores = keys @ q[b, h].astype(float) * scale
            weights = np.exp(scores - scores.max())
            result[b, h] = weights / weights.sum() @ values
    return result


CASES = [
    {},
    {"sequences": 5, "heads": 3, "key_heads": 3, "width": 16, "size": 1, "listed": 40},
    {"heads": 8, "key_heads": 1, "width": 64, "size": 32, "listed": 20, "dtype": BF16},
    {"sequences": 8, "heads": 34, "key_heads": 2, "width": 3, "size": 16, "listed": 7},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_meaning_and_ir(case):
    operands = arguments(**case)
    op = PagedAttention(0.3)
    expected = loop(*operands, 0.3)
    parts = run_kernel(op, *operands)
    combine = rewrite("combine", [ArrayType(x.shape, x.dtype) for x in parts], op.combine)
    tolerance = 2e-2 if operands[0].dtype == BF16 else 1e-5
    for (result,) in (op.reference(*operands), evaluate(combine, parts)):
        np.testing.assert_allclose(result.astype(float), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("specs", [(P("data"), P()), (P(), P("model")), (P("data", "model"), P("model"))], ids=str)
def test_sequences_and_heads_are_sharded(specs):
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    operands = arguments(sequences=5, heads=6, key_heads=3)
    shardings = [NamedSharding(mesh, spec) for spec in specs]

    def step(q, k, v, *rest):
        q, k = (jax.lax.with_sharding_constraint(x, s) for x, s in zip((q, k), shardings, strict=True))
        return jax.kernels.paged_attention(q, k, v, *rest, scale=0.3)

    on_mesh = [jax.device_put(x, NamedSharding(mesh, P())) for x in operands]
    result = jax.jit(step)(*on_mesh)
    np.testing.assert_allclose(result, loop(*operands, 0.3), rtol=1e-5, atol=1e-5)
    assert "all_gather" not in jax.explain(step)(*on_mesh).counts()


def test_lowering_vmap_and_gradient():
    for dtype in (BF16, F32):
        types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arguments(dtype=dtype)]
        text = jax.jit(jax.kernels.paged_attention).trace(*types).lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("__gpu$xla.gpu.triton") == 1
        parse_module(text)  # verifies it
    q, k, v, tables, lengths = arguments()
    scale = 1 / np.sqrt(q.shape[2])
    batched = jax.vmap(jax.kernels.paged_attention, (0, None, None, 0, 0))(
        q[:, None], k, v, tables[:, None], lengths[:, None]
    )
    np.testing.assert_allclose(batched[:, 0], loop(q, k, v, tables, lengths, scale), rtol=1e-5, atol=1e-5)
    gradient = jax.grad(lambda v: jax.kernels.paged_attention(q, k, v, tables, lengths).sum())(v)
    np.testing.assert_allclose(gradient.sum(), 2 * q.shape[1] * q.shape[2], rtol=1e-4)  # two sequences have keys


def test_gradients_ignore_what_pages_hold_after_the_keys_of_a_sequence():
    q, k, v, tables, lengths = arguments(sequences=2, heads=4, key_heads=2, width=5, pages=4, size=2, listed=2)
    tables, lengths = np.array([[0, 3], [1, 3]], np.int32), np.array([2, 1], np.int32)
    grad = jax.grad(lambda *args: jnp.sum(jnp.sin(jax.kernels.paged_attention(*args, tables, lengths))), (0, 1, 2))
    expected = grad(q, k, v)
    k[:, 3], v[:, 3] = np.nan, np.inf
    k[:, 1, 1] = np.inf
    for actual, value in zip(grad(q, k, v), expected, strict=True):
        np.testing.assert_array_equal(actual, value)


def test_wide_integers_do_not_wrap():
    q, k, v, *_ = arguments(sequences=1, heads=2, key_heads=2, width=5, pages=4, size=2, listed=1)
    expected = jax.kernels.paged_attention(q, k, v, np.array([[3]]), np.array([2]))
    with jax.enable_x64(True):
        for page in (np.int64(2**32), np.uint32(2**32 - 1)):
            result = jax.kernels.paged_attention(q, k, v, np.full((1, 1), page), np.full(1, page))
            np.testing.assert_array_equal(result, expected)


def test_heads_without_elements():
    pages = jnp.ones((2, 3, 4, 0))
    assert (
        jax.kernels.paged_attention(jnp.ones((1, 2, 0)), pages, pages, jnp.zeros((1, 1), int), jnp.ones(1, int)).size
        == 0
    )


def test_second_derivatives():
    q, k, v, tables, lengths = arguments(sequences=3, heads=4, key_heads=2, width=5, pages=7, size=3, listed=4)
    lengths = np.array([12, 1, 7], np.int32)

    def plain(q, k, v):
        keys, values = (jnp.repeat(x[:, tables].reshape(2, 3, 12, 5), 2, 0) for x in (k, v))  # [heads, sequences, …]
        scores = jnp.einsum("bhd,hbkd->bhk", q, keys) * 0.3
        weights = jax.nn.softmax(jnp.where(np.arange(12) < lengths[:, None, None], scores, -jnp.inf))
        return jnp.einsum("bhk,hbkd->bhd", weights, values)

    def kernel(q, k, v):
        return jax.kernels.paged_attention(q, k, v, tables, lengths, scale=0.3)

    def second(function):
        def slope(*args):
            grads = jax.grad(lambda *args: jnp.sum(jnp.sin(function(*args))), (0, 1, 2))(*args)
            return sum(jnp.vdot(grad, jnp.cos(x)) for grad, x in zip(grads, args, strict=True))

        return jax.jit(jax.grad(slope, (0, 1, 2)))(q, k, v)

    for actual, expected in zip(second(kernel), second(plain), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)


def test_wrong_operands_are_errors():
    q, k, v, tables, lengths = arguments()
    for operands, expected in (
        ((q[0], k, v, tables, lengths), "needs queries [B, H, D]"),
        ((q[:, :5], k, v, tables, lengths), "a number of query heads that is a multiple"),
        ((q, k, v[:1], tables, lengths), "needs queries [B, H, D]"),
        ((q, k, v, tables[0], lengths), "tables and lengths must be i32[B, N] and i32[B]"),
        ((q, k, v, tables, lengths[:2]), "have different numbers of sequences"),
        ((1.0, k, v, tables, lengths), "needs queries [B, H, D]"),
        ((q, k[:, :0], v[:, :0], tables, lengths), "list pages, and"),
        ((q, k, v, tables * 0.5, lengths), "page_tables must be integers"),
        ((q, k, v, tables, lengths > 0), "lengths must be integers"),
    ):
        with pytest.raises(TypeError, match=re.escape(expected)):
            jax.kernels.paged_attention(*operands)
    wide = [ArrayType(shape, F32) for shape in ((1, 2, 257), (2, 3, 4, 257), (2, 3, 4, 257))]
    assert "heads of 257 elements do not fit" in PagedAttention(1.0).obstacle(
        *wide, *[ArrayType((1, 1), np.dtype(np.int32))] * 2
    )
