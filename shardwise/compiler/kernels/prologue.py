"""prologue: a function of single elements that a kernel computes before its own work.

It is a program of elementwise ops whose values have no dims, so it does not depend on shapes, and shards have the same
one. Floats are converted to float32 first and are not rounded in between, as in XLA's fused kernels.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ir.op import Op, result_types
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType, Scalar
from shardwise.compiler.kernels.pallas.elementwise import emit_elementwise
from shardwise.compiler.kernels.pallas.tile import OutsideSubset
from shardwise.compiler.kernels.simplify_prologue import simplify_prologue
from shardwise.compiler.kernels.triton_ir import F32, Block, TritonBuilder
from shardwise.compiler.ops.elementwise.arithmetic import StopGradient
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import Full, full
from shardwise.compiler.trace.build import rewrite

_BOOLEAN = np.dtype(np.bool_)


def is_wide_float(type: ArrayType) -> bool:
    """Return whether a prologue can read an array of a type, or compute one."""
    return is_float(type.dtype) and type.dtype.itemsize in (2, 4)


def can_be_in_prologue(equation: Equation) -> bool:
    """Return whether a kernel can compute an equation in its prologue: in float32, or as booleans."""
    op = equation.op
    if isinstance(op, Full):
        return is_wide_float(equation.outputs[0].type)
    types = [value.type for value in (*equation.inputs, *equation.outputs)]
    if not op.is_elementwise or op.fusion.is_barrier or any(_element(type) is None for type in types):
        return False
    if _is_cast(op):
        return all(is_wide_float(type) for type in types)
    elements = [element for type in types if (element := _element(type)) is not None]
    if result_types(op, tuple(elements[:-1])) != (elements[-1],):
        return False  # an op of the bits of a narrow float
    return _is_emitted(op, elements) and _is_emitted(op, types)


def _is_emitted(op: Op, types: Sequence[ArrayType]) -> bool:
    """Return whether a kernel can compute an op of operands, and a result, of these dtypes."""
    kernel = TritonBuilder("prologue", [])
    *operands, result = types
    try:
        block = emit_elementwise(kernel, op, [kernel.full((1,), 1, type.dtype) for type in operands], result.dtype)
    except OutsideSubset:
        return False
    return bool(block.dtype == result.dtype)


def _is_cast(op: Op) -> bool:
    return isinstance(op, (Convert, StopGradient))


def _element(type: ArrayType) -> ArrayType | None:
    """Return the type of an element in a prologue; None if it cannot be in one."""
    if type.dtype == _BOOLEAN:
        return ArrayType((), _BOOLEAN)
    return ArrayType((), F32) if is_wide_float(type) else None


def prologue(equations: Sequence[Equation], inputs: Sequence[Value], result: Value) -> Program:
    """Return the function of elements that equations compute.

    Args:
        equations: equations that can be in a prologue, in order, and broadcasts of inputs.
        inputs: the values that they read, besides their own.
        result: the value that is computed.
    """

    def body(*elements: Operand) -> list[Any]:
        values: dict[Value, Any] = {
            value: x if x.type.dtype == F32 else Convert(F32)(x) for value, x in zip(inputs, elements, strict=True)
        }
        for equation in equations:
            op = equation.op
            operands = [values[value] for value in equation.inputs]
            (output,) = equation.outputs
            if isinstance(op, Full):
                values[output] = Full((), Scalar.from_value(op.value.array, F32))()
            else:
                values[output] = operands[0] if _is_cast(op) or isinstance(op, Broadcast) else op(*operands)
        return [values[result]]

    return simplify_prologue(rewrite("prologue", [ArrayType((), value.type.dtype) for value in inputs], body))


def apply_prologue(program: Program, arrays: Sequence[Any]) -> Any:
    """Compute the function of the elements of arrays of one shape."""
    values: dict[Value, Any] = dict(zip(program.inputs, arrays, strict=True))
    for equation in program.equations:
        op = equation.op
        (output,) = equation.outputs
        if isinstance(op, Full):
            values[output] = full(arrays[0].type.shape, op.value.array, op.value.dtype)
        else:
            values[output] = op(*(values[value] for value in equation.inputs))
    return values[program.outputs[0]]


def emit_prologue(kernel: TritonBuilder, program: Program, blocks: Sequence[Block]) -> Block:
    """Compute the function of the elements of blocks of one shape."""
    values: dict[Value, Block] = dict(zip(program.inputs, blocks, strict=True))
    for equation in program.equations:
        op = equation.op
        (output,) = equation.outputs
        if isinstance(op, Full):
            values[output] = kernel.full(blocks[0].shape, op.value.array, op.value.dtype)
        else:
            operands = [values[value] for value in equation.inputs]
            values[output] = emit_elementwise(kernel, op, operands, output.type.dtype)
    return values[program.outputs[0]]
