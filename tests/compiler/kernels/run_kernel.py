"""run_kernel: run the Triton IR of a kernel with the interpreter in numpy."""

from typing import Any

import numpy as np

from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.kernel import KernelOp, triton_ir
from tests.compiler.kernels.triton_interpreter import Interpreter


def run_kernel(op: KernelOp, *operands: Any) -> list[Any]:
    """Return the arrays that a kernel writes. Those that it updates in place start with its operands."""
    types = tuple(ArrayType(x.shape, x.dtype) for x in operands)
    assert not op.obstacle(*types)
    launch = op.kernel_launch(*types)
    written = [np.full(type.size, -77, type.dtype) for type in launch.results]
    sources = dict(launch.written)
    for result, operand in sources.items():
        written[result] = operands[operand].reshape(-1).copy()
    overwritten = {operand: written[result] for result, operand in sources.items()}
    arrays = [overwritten.get(index, x.reshape(-1)) for index, x in enumerate(operands)]
    Interpreter(triton_ir(op, types)).run(launch.grid, [*arrays, *written])
    return [x.reshape(type.shape) for x, type in zip(written, launch.results, strict=True)]
