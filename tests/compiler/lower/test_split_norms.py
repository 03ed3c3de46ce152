"""split_norms: which norms become factors and elementwise ops, and that the numbers stay the same."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.norm import NormFactors
from shardwise.compiler.kernels.quantize import Quantize
from shardwise.compiler.lower.fuse_quantize import fuse_quantize
from shardwise.compiler.lower.split_norms import split_norms
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.inline import inline

E4M3, BF16, F32 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
POLICY = jax.strategies.FP8Policy(precision=None)


def numbers(x, scale, rows=1):
    return Quantize(E4M3, True, rows=rows)(x, scale)


def layer_norm(x, y, vector, scale):
    rows, normalized = jax.kernels.layer_norm(x, vector, vector * 2, residual=y)
    return [rows, *numbers(jax.lax.stop_gradient(normalized), scale)]


def rms_norm(x, y, vector, scale):
    return [*numbers(jax.kernels.rms_norm(x.reshape(3, 2, 5), vector), scale, 2)]


def read_twice(x, y, vector, scale):
    normalized = jax.kernels.rms_norm(x, vector)
    return [normalized * 2, *numbers(normalized, scale)]


def output(x, y, vector, scale):
    normalized = jax.kernels.rms_norm(x, vector)
    return [normalized, *numbers(normalized, scale)]


def two_scales(x, y, vector, scale):
    normalized = jax.kernels.rms_norm(x, vector)
    return [*numbers(normalized, scale), *numbers(normalized, scale * 2)]


def of_a_function(x, y, vector, scale):
    return [*numbers(jax.kernels.rms_norm(x, vector) * 2, scale)]


def not_rounded(x, y, vector, scale):
    return [jax.kernels.rms_norm(x, vector)]


def in_a_loop(x, y, vector, scale):
    def body(total, _):
        return total + numbers(jax.kernels.rms_norm(total, vector), scale)[0].astype(F32), None

    return [jax.lax.scan(body, x, None, length=2)[0]]


CASES = [
    (layer_norm, True),
    (rms_norm, True),
    (read_twice, False),
    (output, False),
    (two_scales, False),
    (of_a_function, False),
    (not_rounded, False),
    (in_a_loop, True),
]


@pytest.mark.parametrize(("function", "splits"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_norms_that_are_only_rounded(function, splits):
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(shape).astype(F32) for shape in ((6, 5), (6, 5), (5,))] + [F32.type(0.25)]
    program, captured = build(function, [ArrayType(x.shape, F32) for x in args], "test")
    program = inline(program)
    result = split_norms(program)
    assert any(isinstance(equation.op, NormFactors) for equation in result.walk()) == splits
    assert (result is program) == (not splits)
    fused = fuse_quantize(result)
    kernels = [equation.op for equation in fused.walk() if isinstance(equation.op, Quantize)]
    assert any(op.prologue is not None for op in kernels) == (splits or function is of_a_function)
    assert not splits or {equation.op.name for equation in fused.walk()} & {"norm", "rsqrt"} == set()
    operands = [*args, *map(np.asarray, captured)]
    for changed in (result, fused):
        for ours, theirs in zip(evaluate(changed, operands), evaluate(program, operands), strict=True):
            np.testing.assert_allclose(np.asarray(ours, F32), np.asarray(theirs, F32), rtol=1e-6, atol=1e-6)


def test_without_own_kernels_norms_stay():
    types = [ArrayType(shape, F32) for shape in ((6, 5), (6, 5), (5,), ())]
    program = inline(build(layer_norm, types, "test")[0])
    with jax.config.override("own_kernels", False):
        assert split_norms(program) is program


def loss(params, x, delta):
    x, h = jax.kernels.layer_norm(x, params["scale"], params["bias"], residual=delta)
    return jnp.sum((h @ params["up"]).astype(F32) ** 2) + jnp.sum(x.astype(F32))


def test_a_step_of_a_norm_and_a_product():
    shapes = {"scale": (64,), "bias": (64,), "up": (64, 32)}
    params = {name: jax.ShapeDtypeStruct(shape, BF16) for name, shape in shapes.items()}
    x = jax.ShapeDtypeStruct((2, 16, 64), BF16)
    scales = POLICY.create(loss, params, x, x)
    step = jax.grad(jax.strategies.mixed_precision(loss, POLICY), (0, 2))
    plan = jax.explain(step, hardware="h100")(params, scales, x, x)
    (line,) = (line for line in str(plan).splitlines() if "own kernels" in line)
    # The vectors are converted to float32 in the kernel too.
    assert "1 norm_factors" in line and "1 norm_grad" in line and "1 quantize after 7 elementwise ops" in line
