"""transpose_weights: which kernels write a transposed weight for a product, and that the numbers stay the same."""

import re

import ml_dtypes
import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import NamedSharding, P
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.quantize import Quantize
from shardwise.compiler.lower.transpose_weights import transpose_weights
from shardwise.compiler.ops.contract.scaled_dot import ScaledDot
from shardwise.compiler.trace.build import build

E4M3, F32 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(np.float32)
POLICY = jax.strategies.FP8Policy(precision=None)


def dot(x, weight, scale, contract):
    return ScaledDot(contract, ((), ()), F32)(x, weight, scale, scale)


def leading(x, weight, scale):
    (weight8, largest), x8 = Quantize(E4M3, rows=1)(weight, scale), x.astype(E4M3)
    return [dot(x8, weight8, scale, ((1,), (0,))), dot(x8, weight8, scale, ((1,), (1,))), largest]


def two_dims(x, weight, scale):
    weight = weight.reshape(2, 2, 4)
    weight8, largest = Quantize(E4M3, rows=2)(weight, scale)
    return [dot(x.reshape(3, 2, 2).astype(E4M3), weight8, scale, ((1, 2), (0, 1))), largest]


def trailing(x, weight, scale):
    weight8, _ = Quantize(E4M3, rows=1)(weight, scale)
    return [dot(x.astype(E4M3), weight8, scale, ((1,), (1,)))]


def in_a_loop(x, weight, scale):
    return [jax.lax.scan(lambda total, _: (total + leading(x, weight, scale)[0], None), x, None, length=2)[0]]


@pytest.mark.parametrize(
    ("function", "count"),
    [(leading, 1), (two_dims, 1), (trailing, 0), (in_a_loop, 1)],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_weights_of_products(function, count):
    rng = np.random.default_rng(0)
    args = [rng.standard_normal((3, 4)).astype(F32), rng.standard_normal((4, 4)).astype(F32), F32.type(0.5)]
    program, captured = build(function, [ArrayType(x.shape, F32) for x in args], "test")
    result = transpose_weights(program)
    assert sum(e.op.transposes for e in result.walk() if isinstance(e.op, Quantize)) == count
    assert (result is program) == (count == 0)
    operands = [*args, *map(np.asarray, captured)]
    for ours, theirs in zip(evaluate(result, operands), evaluate(program, operands), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("spec", "transposes"), [(P(), 2), (P("data"), 1)], ids=str)
def test_a_gathered_weight_is_sent_once(spec, transposes):
    """On GPUs the activation is transposed, and the weight if no device gathers it."""
    mesh = jax.make_mesh((8,), ("data",))
    weight = jax.ShapeDtypeStruct((64, 64), F32, sharding=NamedSharding(mesh, spec))
    x = jax.ShapeDtypeStruct((4096, 64), F32, sharding=NamedSharding(mesh, P("data")))

    def loss(weight, x):
        return jnp.sum(x @ weight)

    scales = POLICY.create(loss, weight, x)
    traced = jax.jit(jax.strategies.mixed_precision(loss, POLICY)).trace(weight, scales, x)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    results = re.findall(r'%\d+:(\d) = "stablehlo.custom_call"[^\n]*gpu.triton', text)  # with the largest magnitude
    assert results.count("3") == transposes and results.count("2") == 2 - transposes
