"""kernels.grouped_dot: against a loop over groups, its Triton IR, gradients, and shardings of rows and groups."""

import re
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import NamedSharding, P
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.grouped_dot import GroupedDot, GroupedOuter
from tests.compiler.kernels.run_kernel import run_kernel

F32, BF16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
RNG = np.random.default_rng(0)


def random(*shape, dtype=F32):
    return (RNG.integers(-8, 9, shape) / 8).astype(dtype)


def loop(x, weights, offsets):
    result = np.zeros((len(x), weights.shape[2]), F32)
    for group, (start, end) in enumerate(pairwise(offsets)):
        result[max(start, 0) : end] = x[max(start, 0) : end].astype(F32) @ weights[group].astype(F32)
    return result


def outer_loop(x, y, offsets):
    bounds = [(max(start, 0), end) for start, end in pairwise(offsets)]
    return np.stack([x[start:end].astype(F32).T @ y[start:end].astype(F32) for start, end in bounds])


# Empty groups, rows before and after all groups, groups of more than a tile, sizes that are no multiples of a tile
CASES = [
    (37, 20, 24, [0, 5, 5, 30, 37], F32),
    (50, 70, 16, [3, 20, 41], BF16),
    (300, 33, 130, [0, 0, 150, 290], F32),
    (16, 16, 16, [-4, 6, 20], BF16),
    (5, 3, 2, [2, 2], F32),
]


@pytest.mark.parametrize(("rows", "inner", "columns", "offsets", "dtype"), CASES)
def test_meaning_and_ir(rows, inner, columns, offsets, dtype):
    offsets = np.array(offsets, np.int32)
    groups = len(offsets) - 1
    x, y = random(rows, inner, dtype=dtype), random(rows, columns, dtype=dtype)
    weights = random(groups, inner, columns, dtype=dtype)
    transposed = np.ascontiguousarray(weights.transpose(0, 2, 1))
    expected = loop(x, weights, offsets)
    cases = [(GroupedDot(), weights, expected), (GroupedDot(transposed=True), transposed, expected)]
    cases.append((GroupedOuter(), y, outer_loop(x, y, offsets)))
    for op, other, expected in cases:
        for (result,) in (op.reference(x, other, offsets), run_kernel(op, x, other, offsets)):
            assert result.dtype == dtype
            np.testing.assert_allclose(result.astype(F32), expected, rtol=1e-2 if dtype == BF16 else 1e-5, atol=1e-5)


# The same, and groups that begin and end where a step of the sum does, or within one
FLOAT8_CASES = [
    *CASES,
    (384, 40, 300, [0, 128, 128, 130, 250, 256, 384], BF16),
    (400, 40, 30, [1, 128, 200, 260, 399], np.dtype(np.float16)),
]


@pytest.mark.parametrize(("rows", "inner", "columns", "offsets", "dtype"), FLOAT8_CASES)
def test_meaning_and_ir_of_float8(rows, inner, columns, offsets, dtype):
    offsets, scales = np.array(offsets, np.int32), (np.array(0.5, F32), np.array(4, F32))
    x, y = random(rows, inner, dtype=E4M3), random(rows, columns, dtype=E5M2)
    weights = random(len(offsets) - 1, inner, columns, dtype=E4M3)
    expected = 2 * loop(x, weights, offsets)
    cases = [
        (GroupedDot(dtype), x, weights, expected),
        (GroupedDot(dtype, transposed=True), x, weights.transpose(0, 2, 1), expected),
        (GroupedOuter(dtype), x.T, y.T, 2 * outer_loop(x, y, offsets)),
    ]
    for op, left, right, expected in cases:
        operands = np.ascontiguousarray(left), np.ascontiguousarray(right), offsets, *scales
        for (result,) in (op.reference(*operands), run_kernel(op, *operands)):
            assert result.dtype == dtype
            np.testing.assert_allclose(result.astype(F32), expected, rtol=1e-2, atol=1e-5)


def arguments(rows=22, inner=6, columns=8, groups=5):
    sizes = np.array([3, 0, 9, 1, 4], np.int32)[:groups]  # and 5 rows in no group
    return random(rows, inner), random(groups, inner, columns), sizes


def test_gradients():
    x, weights, sizes = arguments()

    def losses(product):
        return lambda x, weights: (product(x, weights) ** 2).sum()

    ours = losses(lambda x, weights: jax.kernels.grouped_dot(x, weights, sizes))
    theirs = losses(lambda x, weights: jax.lax.ragged_dot(x, weights, sizes))

    def grad_of_grad(function, argnums):
        return jax.grad(lambda *args: sum((ct**2).sum() for ct in jax.grad(function, argnums)(*args)), argnums)

    for derivative in (jax.grad, lambda f, *_: jax.value_and_grad(f), lambda f, *_: jax.jacfwd(f), grad_of_grad):
        pairs = zip(*(jax.tree.leaves(derivative(f, (0, 1))(x, weights)) for f in (ours, theirs)), strict=True)
        for actual, expected in pairs:
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
    outer = jax.grad(lambda x, y: (GroupedOuter()(x, y, offsets)[0] ** 2).sum(), (0, 1))
    offsets = jnp.concatenate([jnp.zeros(1, np.int32), jnp.cumsum(jnp.asarray(sizes))])
    y = random(22, 8)
    product = outer_loop(x, y, np.asarray(offsets))
    x_ct, y_ct = outer(jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_allclose(x_ct, 2 * loop(y, product.transpose(0, 2, 1), np.asarray(offsets)), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(y_ct, 2 * loop(x, product, np.asarray(offsets)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("x_spec", "weights_spec"),
    [
        (P("data"), P()),
        (P(), P("data")),
        (P("model"), P("data")),
        (P(None, "model"), P(None, "model")),
        (P(("data", "model")), P(None, None, "data")),
        (P("data"), P("data")),
    ],
    ids=str,
)
def test_uneven_shards_of_rows_and_groups(x_spec, weights_spec):
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    x, weights, sizes = arguments()

    def step(x, weights, pinned):
        if pinned:
            x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, x_spec))
            weights = jax.lax.with_sharding_constraint(weights, NamedSharding(mesh, weights_spec))
        f = lambda x, weights: (jax.kernels.grouped_dot(x, weights, sizes) ** 2).sum()  # noqa: E731
        return jax.kernels.grouped_dot(x, weights, sizes), jax.grad(f, (0, 1))(x, weights)

    on_mesh = [jax.device_put(z, NamedSharding(mesh, P())) for z in (x, weights)]
    sharded = jax.jit(lambda x, weights: step(x, weights, True))(*on_mesh)
    for actual, expected in zip(jax.tree.leaves(sharded), jax.tree.leaves(step(x, weights, False)), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_experts_are_not_gathered():
    mesh = jax.make_mesh((4,), ("expert",))
    x = jax.ShapeDtypeStruct((256, 64), np.float32, sharding=NamedSharding(mesh, P()))
    weights = jax.ShapeDtypeStruct((8, 64, 128), np.float32, sharding=NamedSharding(mesh, P("expert")))
    sizes = jax.ShapeDtypeStruct((8,), np.int32, sharding=NamedSharding(mesh, P()))
    plan = jax.explain(jax.kernels.grouped_dot, hardware="h100")(x, weights, sizes)
    assert plan.counts() == {"all_reduce": 1}
    assert "own kernels: 1 grouped_dot" in str(plan)


def test_large_and_narrow_arrays_run_plain_ops():
    types = [ArrayType(shape, F32) for shape in ((2**20, 2**11), (8, 2**11, 16))]
    offsets = ArrayType((9,), np.dtype(np.int32))
    assert "more elements than offsets of 32 bits reach" in GroupedDot().obstacle(*types, offsets)
    narrow = [ArrayType((32, 16), np.dtype(ml_dtypes.float8_e4m3fn))] * 2
    assert "a dtype that the kernel does not multiply" in GroupedOuter().obstacle(*narrow, offsets)


def test_sizes_of_64_bits_do_not_wrap():
    x, weights, _ = arguments()
    sizes = np.zeros(len(weights), np.int64)
    sizes[1] = 2**32  # more than there are rows
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.kernels.grouped_dot(x, weights, sizes), x @ weights[1], rtol=1e-5, atol=1e-5)


def test_wrong_operands_are_errors():
    x, weights, sizes = arguments()
    for operands, expected in (
        ((x, weights, sizes[:4]), "groups"),
        ((x, weights[:, :5], sizes), "needs a matrix [M, K], weights [G, K, N] and group_sizes [G]"),
        ((x[0], weights, sizes), "needs a matrix [M, K], weights [G, K, N] and group_sizes [G]"),
        ((x, weights, sizes[0]), "needs a matrix [M, K], weights [G, K, N] and group_sizes [G]"),
        ((x, weights, sizes.astype(np.float32)), "group_sizes must be integers"),
    ):
        with pytest.raises(TypeError, match=re.escape(expected)):
            jax.kernels.grouped_dot(*operands)
    narrow, offsets = (jnp.ones((8, 16), E4M3), jnp.ones((2, 16, 16), E4M3)), jnp.zeros(3, np.int32)
    with pytest.raises(TypeError, match="needs a matrix and numbers of float8 with two scales"):
        GroupedDot(F32)(*narrow, offsets)
    scale = jnp.float32(1)
    with pytest.raises(TypeError, match="has first derivatives only"):
        jax.grad(lambda scale: GroupedDot(F32)(*narrow, offsets, scale, scale)[0].sum())(scale)
