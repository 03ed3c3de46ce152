"""The builder of Triton IR: what it emits parses, and computes what numpy does."""

import numpy as np

from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.triton_ir import F32, I32, TritonBuilder
from tests.compiler.kernels.triton_interpreter import Interpreter


def test_products_loops_branches_and_comparisons():
    """Each program adds as many products as `counts` says, and writes nothing if that is 0."""
    size = 32
    kernel = TritonBuilder(
        "test", [ArrayType((size, size), F32), ArrayType((3,), I32), ArrayType((3, size, size), F32)]
    )
    source, counts, result = kernel.pointers
    index = kernel.range(size)
    offsets = index.expand(1) * size + index.expand(0)
    program = kernel.program_id(1)
    x, count = kernel.load(source, offsets), kernel.load(counts, program)
    zeros = kernel.full((size, size), 0.0, F32)
    (total,) = kernel.loop(count, 1, [zeros], lambda _, total: [kernel.dot(x, x.transpose((1, 0)), total)])
    bits = (index.expand(0) // 3 % 2).to(F32)
    (total,) = kernel.branch(count >= 2, [total], lambda total: [kernel.minimum(total * 2.0, 1e6) + bits])

    def write():
        square = x.max(1).expand(1) * x.max(1).expand(1)
        positive = kernel.sqrt(square) + x.min(0).expand(0) + total
        value = kernel.where((total <= 0.0) | total.differs(total), 1.0 - total, positive)
        kernel.store(result.advance(program * size**2), offsets, value.reshape((size, size)))
        return []

    kernel.branch(count.differs(0), [], write)

    data = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    written = np.full(3 * size**2, np.nan, np.float32)
    Interpreter(kernel.text()).run((1, 3, 1), [data.reshape(-1), np.array([2, 0, 1], np.int32), written])
    product = data @ data.T
    for count, actual in zip((2, 0, 1), written.reshape(3, size, size), strict=True):
        total = 2 * count * product + np.arange(size) // 3 % 2 if count == 2 else count * product
        expected = np.where(total <= 0, 1 - total, abs(data.max(1))[:, None] + data.min(0) + total)
        np.testing.assert_allclose(actual, expected if count else np.full((size, size), np.nan), rtol=1e-4, atol=1e-4)
