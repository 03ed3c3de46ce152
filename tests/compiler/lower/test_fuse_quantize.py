"""fuse_quantize: which ops the kernels that round to float8 compute, and that the numbers stay the same."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import P
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.kernels.quantize import Quantize
from shardwise.compiler.lower.fuse_quantize import fuse_quantize
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.plan.hardware import chip
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.inline import inline

E4M3, BF16, F32 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
POLICY = jax.strategies.FP8Policy(precision=None)


def numbers(x, scale, rows=1):
    return Quantize(E4M3, True, rows=rows)(x, scale)


def activation(x, y, scale):
    return [*numbers(jax.lax.stop_gradient(jnp.tanh(x) * 2), scale)]


def gradient_and_bias(x, y, scale):
    ct = jnp.where(x > 0, y, 0)
    return [ct.sum(0), *numbers(ct, jnp.reshape(jnp.stack([scale, scale])[:1], ()))]


def wide_sum(x, y, scale):
    ct = (x * y).astype(BF16)
    return [ct.astype(F32).sum(0), *numbers(ct, scale)]


def sum_of_an_input(x, y, scale):
    return [*numbers(x, scale), x.sum(0) * 2, x + 1]


def rows_and_columns(x, y, scale):
    return [*numbers(x * jnp.broadcast_to(y[:, :1].sum(1)[:, None], x.shape) + y.sum(0), scale)]


def three_dims(x, y, scale):
    ct = jnp.cos(x).reshape(1, *x.shape) * jnp.exp(y.reshape(1, *y.shape))
    return [*numbers(ct, scale, rows=2), ct.sum((0, 1))]


def output(x, y, scale):
    z = jnp.tanh(x)
    return [z, *numbers(z, scale)]


def other_sum(x, y, scale):
    z = jnp.tanh(x)
    return [z.sum(1), *numbers(z, scale)]


def twice(x, y, scale):
    z = jnp.tanh(x)
    return [*numbers(z, scale), *numbers(z, scale * 2)]


def of_a_slice(x, y, scale):
    return [*numbers(jnp.concatenate([jnp.tanh(x), y]), scale)]


def masked(x, y, scale):
    return [*numbers(jnp.where(jnp.arange(x.shape[1]) < 3, x, y), scale)]


def same_array_twice(x, y, scale):
    return [x.sum(0), *numbers(x, scale), *numbers(x, scale * 2)]


def scale_of_the_sum(x, y, scale):
    ct = x * y
    total = ct.sum(0)
    return [total, *numbers(ct, jnp.abs(total).max() + scale)]


def scale_of_another_kernel(x, y, scale):
    ct = x * y
    total = ct.sum(0)
    other = numbers(jnp.tanh(x), scale)
    return [total, *other, *numbers(ct, other[-1])]


def scale_of_a_long_chain(x, y, scale):
    ct = x * y
    total = ct.sum(0)
    for _ in range(2000):
        scale = jnp.maximum(scale, scale * scale)
    return [total, *numbers(ct, scale)]


def bits_of_a_narrow_float(x, y, scale):
    return [*numbers(jax.lax.bitcast_convert_type(jnp.abs(x).astype(BF16), jnp.float16), scale)]


def neighbours_of_a_narrow_float(x, y, scale):
    return [*numbers(jnp.nextafter(x.astype(BF16), y.astype(BF16)), scale)]


def many_vectors(x, y, scale):
    for index in range(65):
        x = x * jnp.broadcast_to(y[index % 6] + index, x.shape) * 0.1
    return [*numbers(x, scale)]


def in_a_loop(x, y, scale):
    def body(total, _):
        return total + numbers(jnp.tanh(total) * y, scale)[0].astype(F32), None

    return [jax.lax.scan(body, x, None, length=2)[0]]


# The function, whether there is a prologue, and whether there is a sum.
CASES = [
    (activation, True, False),
    (gradient_and_bias, True, True),
    (wide_sum, True, True),
    (sum_of_an_input, False, True),
    (rows_and_columns, True, False),
    (output, False, False),
    (other_sum, False, False),
    (twice, False, False),
    (of_a_slice, False, False),
    (masked, False, False),
    (same_array_twice, False, True),
    (scale_of_the_sum, False, False),
    (scale_of_another_kernel, True, False),
    (scale_of_a_long_chain, True, True),
    (bits_of_a_narrow_float, False, False),
    (neighbours_of_a_narrow_float, False, False),
    (many_vectors, False, False),
    (in_a_loop, True, False),
]


@pytest.mark.parametrize(("function", "has_prologue", "has_sum"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_kernels(function, has_prologue, has_sum):
    rng = np.random.default_rng(0)
    args = [rng.standard_normal((6, 5)).astype(F32) for _ in range(2)] + [F32.type(0.25)]
    program, captured = build(function, [ArrayType(x.shape, F32) for x in args], "test")
    program = inline(program)
    result = verify(fuse_quantize(program))
    kernels = [equation.op for equation in result.walk() if isinstance(equation.op, Quantize)]
    assert any(op.prologue is not None for op in kernels) == has_prologue
    assert any(op.sums for op in kernels) == has_sum
    assert (result is program) == (not has_prologue and not has_sum)
    operands = [*args, *map(np.asarray, captured)]
    for ours, theirs in zip(evaluate(result, operands), evaluate(program, operands), strict=True):
        # XLA, and the kernel, do not round to bfloat16 in between: the nearest float8 number may be another one.
        rtol = 2**-3 if function is wide_sum else 1e-6
        np.testing.assert_allclose(np.asarray(ours, F32), np.asarray(theirs, F32), rtol=rtol)


def test_a_moved_kernel_has_its_scale_before_it():
    """The sum, whose place the kernel takes, stands before the ops that compute the scale."""
    types = [ArrayType((6, 5), F32)] * 2 + [ArrayType((), F32)]
    program = fuse_quantize(inline(build(gradient_and_bias, types, "test")[0]))
    names = [equation.op.name for equation in program.equations]
    assert names.index("quantize") > names.index("reshape")


def test_without_own_kernels_xla_fuses_the_ops():
    program = inline(build(gradient_and_bias, [ArrayType((6, 5), F32)] * 2 + [ArrayType((), F32)], "test")[0])
    with jax.config.override("own_kernels", False):
        assert fuse_quantize(program) is program


def loss(params, x):
    hidden = jax.nn.gelu(x @ params["up"] + params["bias"])
    return jnp.sum((hidden @ params["down"]).astype(F32) ** 2)


def arguments():
    params = {"up": (64, 256), "bias": (256,), "down": (256, 64)}
    params = {name: jax.ShapeDtypeStruct(shape, BF16) for name, shape in params.items()}
    x = jax.ShapeDtypeStruct((30, 64), BF16)
    return params, POLICY.create(loss, params, x), x


def step(params, scales, x):
    return jax.grad(jax.strategies.mixed_precision(loss, POLICY))(params, scales, x)


def test_a_step_of_an_activation_and_a_bias():
    plan = jax.explain(step, hardware="h100")(*arguments())
    (line,) = (line for line in str(plan).splitlines() if "own kernels" in line)
    assert "3 quantize, " in line and line.count("1 quantize after ") == 3  # x and the weights; gelu and two cotangents


@pytest.mark.parametrize("rows", [30, 32])
def test_shards_have_the_numbers_of_one_device(rows):
    """Of 30 rows on 8 devices, padding is masked after the activation, which the kernel does not compute then."""

    def sharded(x, y, scale):
        ct = jnp.tanh(x) * y
        return [ct.sum(0), *numbers(ct, scale)]

    mesh, rng = AbstractMesh((8,), ("data",)), np.random.default_rng(0)
    args = [rng.standard_normal((rows, 5)).astype(F32) for _ in range(2)] + [F32.type(0.25)]
    program = inline(build(sharded, [ArrayType(x.shape, F32) for x in args], "test")[0])
    pins = [pin_of(P("data"), x.shape, mesh) for x in args[:2]] + [pin_of(P(), (), mesh)]
    local = run_stages(program, mesh, pins, [None] * 4, platform="cuda").local
    kernels = [equation.op for equation in local.program.walk() if isinstance(equation.op, Quantize)]
    assert [op.prologue is not None for op in kernels] == [rows == 32]
    for ours, theirs in zip(evaluate_shards(local, args), evaluate(program, args), strict=True):
        np.testing.assert_allclose(np.asarray(ours, F32), np.asarray(theirs, F32), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("platform", "hardware", "fuses"),
    [
        ("cuda", "cpu", True),
        ("cuda", "h100", True),
        ("cpu", "h100", True),
        ("cpu", "cpu", False),
        ("rocm", "h100", False),
    ],
)
def test_ops_are_fused_where_kernels_run(platform, hardware, fuses):
    """Or where they are planned for: on AMD's GPUs no kernel runs, and XLA fuses the ops."""
    mesh = AbstractMesh((1,), ("data",))
    types = [ArrayType((8, 16), F32)] * 2 + [ArrayType((), F32)]
    program = inline(build(gradient_and_bias, types, "test")[0])
    pins = [pin_of(P(), type.shape, mesh) for type in types]
    stages = run_stages(program, mesh, pins, [None] * 4, platform=platform, chip=chip(hardware))
    assert ("xla.gpu.triton" in str(stages.module.text)) == (platform == "cuda")
    fused = stages.local.program is not stages.partitioned.program
    kernels = [equation.op for equation in stages.local.program.walk() if isinstance(equation.op, Quantize)]
    assert [op.prologue is not None for op in kernels] == [fuses] and fused == fuses
