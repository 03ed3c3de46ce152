"""The program that XLA compiles for GPUs computes what the program does, with merged products."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.partition.gpu_program import gpu_program

GENERATOR = np.random.default_rng(0)


def arrays(*shapes):
    return [GENERATOR.standard_normal(shape).astype(np.float32) for shape in shapes]


def scanned(x, w, v):
    return lax.scan(lambda x, _: (jnp.tanh(x @ w) + x @ v, None), x, None, length=3)[0]


def weight_gradients(x, w, v):
    return sw.grad(lambda w, v: jnp.sum(jnp.sin(x @ w) * (x @ v)), (0, 1))(w, v)


PROGRAMS = {
    "one operand and two weights": (lambda x, w, v: (x @ w, x @ v), arrays((3, 4, 6), (6, 5), (6, 7)), 1),
    "weights with several dims": (
        lambda x, w, v: (jnp.einsum("abi,ihj->abhj", x, w), x @ v),
        arrays((3, 4, 6), (6, 2, 5), (6, 7)),
        1,
    ),
    "two operands and one weight": (lambda x, y, w: x @ w + jnp.sum(y @ w), arrays((3, 6), (8, 6), (6, 5)), 1),
    "batches of products": (
        lambda q, k, v: (q @ k.mT, q @ v.mT),
        arrays((2, 3, 4), (2, 5, 4), (2, 6, 4)),
        1,
    ),
    "a product that depends on the other one": (lambda x, w: (x @ w) @ w, arrays((6, 6), (6, 6)), 2),
    "the operand of the larger number of products": (
        lambda x, w, v: (x @ w, x @ v, jnp.sin(x) @ w),
        arrays((3, 6), (6, 5), (6, 7)),
        2,
    ),
    "equal products": (lambda x, w: jnp.sin(x @ w) + jnp.cos(x @ w), arrays((3, 6), (6, 5)), 1),
    "equal constants": (
        lambda x: jnp.sin(x @ jnp.sin(lax.iota(np.float32, 6))) + jnp.cos(x @ jnp.sin(lax.iota(np.float32, 6))),
        arrays((3, 6)),
        1,
    ),
    "a vector": (lambda x, w, v: (x @ w, x @ v), arrays((6,), (6, 5), (6, 7)), 2),
    "the transposed operand": (lambda x, w, v: (x @ w, x.T @ v), arrays((6, 6), (6, 5), (6, 7)), 2),
    "gradients of weights": (weight_gradients, arrays((3, 6), (6, 5), (6, 5)), 2),
    "a body of a loop": (scanned, arrays((3, 6), (6, 6), (6, 6)), 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_products_that_share_an_operand_are_merged(name):
    function, args, count = PROGRAMS[name]
    program = sw.jit(function).lower(*args)._prepared.stages.local.program
    rewritten = gpu_program(program)
    for actual, expected in zip(evaluate(rewritten, args), evaluate(program, args), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    assert sum(equation.op.name == "dot" for equation in rewritten.walk()) == count


@pytest.mark.parametrize(("rows", "count"), [(4096, 1), (8192, 2), (16384, 4)])
def test_products_are_merged_until_they_are_large(rows, count):
    """The step of raw audio merges eight of twelve products with results of 8 MiB, and then the other four."""
    types = [sw.ShapeDtypeStruct(shape, np.float32) for shape in ((rows, 1024), *[(1024, 1024)] * 4)]
    local = sw.jit(lambda x, *weights: [x @ w for w in weights]).lower(*types)._prepared.stages.local
    assert sum(equation.op.name == "dot" for equation in gpu_program(local.program).equations) == count


@pytest.mark.parametrize(
    ("name", "dtype", "wide"), [("add", jnp.bfloat16, "f32"), ("max", jnp.bfloat16, "bf16"), ("add", np.float32, "f32")]
)
def test_sums_of_narrow_floats_are_scattered_in_f32(name, dtype, wide):
    """The gradients of the embeddings of preferences are scattered into zeros in f32."""

    def scattered(x, indices):
        return getattr(jnp.zeros((64, 16), dtype).at[indices], name)(x)

    types = sw.ShapeDtypeStruct((8, 16), dtype), sw.ShapeDtypeStruct((8,), np.int32)
    program = gpu_program(sw.jit(scattered).lower(*types)._prepared.stages.local.program)
    (scatter,) = [equation for equation in program.equations if equation.op.name == "scatter"]
    (zeros,) = [equation for equation in program.equations if scatter.inputs[0] in equation.outputs]
    assert zeros.op.name == "full" and str(zeros.outputs[0].type) == f"{wide}[64,16]"
    assert program.outputs[0].type.dtype == dtype
