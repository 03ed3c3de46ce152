"""prologue: elementwise functions that `quantize` computes, and the sums beside them: their meaning and their IR."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels import quantize
from shardwise.compiler.kernels.prologue import can_be_in_prologue, prologue
from shardwise.compiler.kernels.quantize import Quantize
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.inline import inline
from tests.compiler.kernels.run_kernel import run_kernel

F32, F16, BF16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)


def element_function(function, *dtypes):
    program = inline(build(lambda *xs: [function(*xs)], [ArrayType((), dtype) for dtype in dtypes], "test")[0])
    assert all(can_be_in_prologue(equation) for equation in program.equations)
    return prologue(program.equations, program.inputs, program.outputs[0])


def gelu(x):
    return jax.nn.gelu(x)


def gelu_gradient(x, ct):
    return jax.vjp(jax.nn.gelu, x)[1](ct)[0]


def relu_gradient(x, ct):
    return jnp.where(x > 0, ct, 0)


def scaled(x, factor, scale, bias):
    return x * factor * scale + bias + 1


def cosine(x):
    return jnp.cos(x) + 1


# The op, the function, and the shapes and dtypes of its operands.
CASES = [
    (Quantize(E4M3, True, 0, 1), gelu, [((100, 70), BF16)]),
    (Quantize(E5M2, True, 0, 2, sums=True), gelu_gradient, [((3, 5, 70), BF16)] * 2),
    (Quantize(E5M2, False, 1, 1, sums=True), relu_gradient, [((2, 65, 3), F32), ((2, 65, 3), F16)]),
    (Quantize(E4M3, True, 1, 1), scaled, [((2, 5, 70), BF16), ((2, 5), F32), ((70,), F32), ((), F32)]),
    (Quantize(E4M3, True, 0, 1, sums=True), scaled, [((130, 9), F32), ((130,), F32), ((9,), BF16), ((), F32)]),
    (Quantize(E5M2, True, 1, 1, sums=True), cosine, [((2, 70, 130), BF16)]),  # with large blocks
]
DIMS = {3: ((0, 1, 2), (0, 1), (2,), ()), 4: ((0, 1), (0,), (1,), ())}


def case(index):
    """The op with its prologue, and the operands."""
    op, function, types = CASES[index]
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal(shape).astype(dtype) for shape, dtype in types]
    dims = DIMS.get(index, (tuple(range(operands[0].ndim)),) * len(operands))
    made = element_function(function, *(x.dtype for x in operands))
    return replace(op, prologue=made, dims=dims), operands


def expected(index):
    """The array that is rounded, in float32."""
    op, function, _ = CASES[index]
    op, operands = case(index)
    shape = operands[0].shape
    full = [
        np.broadcast_to(np.reshape(x, [size if dim in dims else 1 for dim, size in enumerate(shape)]), shape)
        for x, dims in zip(operands, op.dims, strict=True)
    ]
    return np.asarray(function(*(jnp.asarray(x.astype(F32)) for x in full)))


def check(results, index):
    op, x = case(index)[0], expected(index)
    numbers = [np.asarray(result, F32) for result in results]
    rows = range(op.batch, op.batch + op.rows)
    order = (*range(op.batch), *range(op.batch + op.rows, x.ndim), *rows)
    # Numbers near the middle of two float8 numbers may round to either.
    step = 2.0 ** (1 - ml_dtypes.finfo(op.dtype).nmant)
    np.testing.assert_allclose(numbers[0] * 0.25, x, rtol=step / 2, atol=2e-3)
    if op.transposes:
        np.testing.assert_array_equal(numbers[1], np.transpose(numbers[0], order))
    np.testing.assert_allclose(numbers[1 + op.transposes], np.abs(x).max(), rtol=1e-5)
    if op.sums:
        np.testing.assert_allclose(numbers[-1], x.sum(tuple(rows)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("index", range(len(CASES)))
def test_meaning(index):
    op, operands = case(index)
    scale = F32.type(0.25)
    check(op.reference(*operands, scale), index)
    check(jax.jit(op)(*operands, scale), index)


def check_ir(index):
    op, operands = case(index)
    *numbers, maxima, parts = [*run_kernel(op, *operands, np.array(0.25, F32)), *[None] * (not op.sums)]
    check([*numbers, maxima.max(), *([parts.sum(op.batch)] if op.sums else [])], index)


@pytest.mark.parametrize("index", range(len(CASES) - 1))
def test_the_ir_computes_the_meaning(index):
    check_ir(index)


def test_the_ir_of_large_blocks_computes_the_meaning(monkeypatch):
    monkeypatch.setattr(quantize, "_LEAST_PROGRAMS", 1)
    check_ir(len(CASES) - 1)
