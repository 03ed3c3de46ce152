"""accumulate_products: which sums are computed by products of float8 numbers, and that the numbers stay the same."""

import re

import ml_dtypes
import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.lower.accumulate_products import accumulate_products
from shardwise.compiler.ops.contract.scaled_dot import ScaledDot
from shardwise.compiler.trace.build import build

E4M3, BF16 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.bfloat16)
F32, F16 = np.dtype(np.float32), np.dtype(np.float16)
POLICY = jax.strategies.FP8Policy(precision=None)
X, WEIGHT, SCALE = ArrayType((3, 4), E4M3), ArrayType((4, 3), E4M3), ArrayType((), F32)


def product(x, weight, scale, dtype=F32):
    return ScaledDot(((1,), (0,)), ((), ()), dtype)(x, weight, scale, scale)


def counts(program):
    """The numbers of products that add, of other products, and of sums."""
    ops = [equation.op for equation in program.walk()]
    products = [op.adds for op in ops if isinstance(op, ScaledDot)]
    return sum(products), len(products) - sum(products), sum(op.name == "add" for op in ops)


def twice(x, weight, scale):
    y = product(x, weight, scale)
    return [y + y]


def used_again(x, weight, scale):
    y = product(x, weight, scale)
    return [y + scale, y]


def elementwise(x, weight, scale):
    return [product(x, weight, scale) + jnp.exp(jnp.ones((3, 3)) * scale)]


def bias(x, weight, scale):
    return [product(x, weight, scale, BF16) + jnp.ones(3, BF16)]


def wide_bias(x, weight, scale):
    return [product(x, weight, scale) + jnp.ones(3)]


def half(x, weight, scale):
    return [product(x, weight, scale, F16) + product(x, x.T, scale, F16)]


def three(x, weight, scale):
    return [product(x, weight, scale) + product(weight.T, weight, scale) + product(x, x.T, scale)]


def in_a_loop(x, weight, scale):
    def body(total, _):
        return total + product(x, weight, scale), None

    return [jax.lax.scan(body, jnp.zeros((3, 3)), None, length=2)[0]]


CASES = [
    (twice, (0, 1, 1)),
    (used_again, (0, 1, 1)),
    (elementwise, (0, 1, 1)),
    (bias, (1, 0, 0)),
    (wide_bias, (0, 1, 1)),
    (half, (0, 2, 1)),
    (three, (2, 1, 0)),
    (in_a_loop, (1, 0, 0)),
]


@pytest.mark.parametrize(("function", "expected"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_sums_of_products(function, expected):
    rng = np.random.default_rng(0)
    args = [rng.integers(-8, 9, (3, 4)).astype(E4M3), rng.integers(-8, 9, (4, 3)).astype(E4M3), F32.type(0.5)]
    program, captured = build(function, [X, WEIGHT, SCALE], "test")
    accumulated = accumulate_products(program)
    assert counts(accumulated) == expected
    assert (accumulated is program) == (counts(program) == expected)
    operands = [*args, *map(np.asarray, captured)]
    for ours, theirs in zip(evaluate(accumulated, operands), evaluate(program, operands), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_cotangents_of_one_array_are_added_on_gpus():
    weights = {name: jax.ShapeDtypeStruct((32, 32), BF16) for name in "qkv"}
    x = jax.ShapeDtypeStruct((16, 32), BF16)

    def loss(weights, x):
        return sum(jnp.sum(x @ weight) for weight in weights.values())

    scales = POLICY.create(loss, weights, x)
    gradient = jax.jit(jax.grad(jax.strategies.mixed_precision(loss, POLICY), 2)).trace(weights, scales, x)
    for platform in ("cuda", "cpu"):
        text = gradient.lower(lowering_platforms=(platform,)).as_text()
        after_barrier = re.findall(r"stablehlo.add\"[^\n]*\n[^\n]*optimization_barrier", text)
        assert len(after_barrier) == (2 if platform == "cuda" else 0)
