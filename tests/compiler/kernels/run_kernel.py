"""run_kernel: run the Triton IR of a kernel with the interpreter in numpy."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from shardwise import tree
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.kernel import KernelOp, triton_ir
from shardwise.compiler.kernels.pallas.pallas_kernel import PallasKernel
from shardwise.compiler.trace.build import build
from tests.compiler.kernels.triton_interpreter import Interpreter


def run_kernel(op: KernelOp, *operands: Any, rewrites: bool = False) -> list[Any]:
    """Return the arrays that a kernel writes. Those that it updates in place start with its operands.

    `rewrites` is whether it may store an element more than once.
    """
    return _interpreted(op, operands, rewrites)[1]


def races(op: KernelOp, *operands: Any) -> int:
    """Return how many elements a program of a kernel stores at several places of a block, in no certain order."""
    return _interpreted(op, operands, True)[0].races


def _interpreted(op: KernelOp, operands: tuple[Any, ...], rewrites: bool) -> tuple[Interpreter, list[Any]]:
    types = tuple(ArrayType(x.shape, x.dtype) for x in operands)
    assert not op.obstacle(*types)
    launch = op.kernel_launch(*types)
    written = [np.full(type.size, 77, type.dtype) for type in launch.results]
    passed = [*operands, *(operands[index] for index in launch.repeated)]
    sources = dict(launch.written)
    for result, operand in sources.items():
        written[result] = passed[operand].reshape(-1).copy()
    overwritten = {operand: written[result] for result, operand in sources.items()}
    arrays = [overwritten.get(index, x.reshape(-1)) for index, x in enumerate(passed)]
    stored = [x.view(f"i{x.itemsize}") if x.dtype.kind in "bu" else x for x in (*arrays, *written)]
    interpreter = Interpreter(triton_ir(op, types), rewrites)
    interpreter.run(launch.grid, stored)
    return interpreter, [x.reshape(type.shape) for x, type in zip(written, launch.results, strict=True)]


def run_on_triton(function: Callable[..., Any], *args: Any, kernels: int = 1) -> list[Any]:
    """Return the results of a function of arrays in numpy, where kernels of Pallas run as Triton IR.

    `kernels` is how many the function has, at least: one that is interpreted is not counted.
    """
    leaves, structure = tree.flatten(args)
    arrays = [np.asarray(x) for x in leaves]
    types = [ArrayType(x.shape, x.dtype) for x in arrays]
    program, captured = build(lambda *xs: tree.leaves(function(*structure.unflatten(xs))), types, "test")
    found = [equation.op for equation in program.walk() if isinstance(equation.op, PallasKernel)]
    reasons = [equation.op.reason for equation in program.walk() if equation.op.name == "interpreted_kernel"]
    assert len(found) >= kernels and not reasons, reasons
    with mock.patch.object(PallasKernel, "reference", lambda op, *xs: run_kernel(op, *xs, rewrites=True)):
        return [np.asarray(x) for x in evaluate(program, [*arrays, *map(np.asarray, captured)])]
