"""split_products: products that XLA splits along the contracting dim on GPUs, so that more cores compute them.

XLA computes such a product as a batch of products, each over a part of the contracting dim, with results in f32 that a
kernel then adds. The results of all parts are in memory at once. This is XLA's `SplitkRewriter`, with its cost model
for Hopper. It runs only if XLA may compute products with kernels of its own.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from shardwise.compiler.dtypes import DType, accumulation_dtype
from shardwise.compiler.ir.op import Op, result_types
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import Scalar
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.ops.shape.movement import Reshape, Transpose
from shardwise.compiler.ops.shape.slicing import Pad
from shardwise.compiler.partition.product_shape import is_outer_product, product_shape
from shardwise.compiler.plan.chip import Chip

_PARTS = tuple([1 << exponent for exponent in range(12)])
_TILE = 128  # rows and columns of the block of a result that one core computes
_ALIGNMENT = 16  # bytes: each part of the contracting dim is padded to a multiple
# XLA's weights for Hopper: of a flop, of a byte of a product, of a byte of the sum, and of the sum's launch.
_FLOP, _BYTE, _SUMMED_BYTE, _LAUNCH = 100.0, 0.194136, 193.1384, 4.36e7


class _Widths(NamedTuple):
    """The bytes of an element of the operands of a product, before conversions, and of its result and its sums."""

    left: int
    right: int
    result: int
    sums: int


@verifies_result
def split_products(program: Program, chip: Chip) -> Program:
    """Return a program whose products are split along the contracting dim as XLA splits them on a GPU.

    Args:
        program: the program.
        chip: the GPU.
    """
    producers = program.producers()
    changed = False
    equations: list[Equation] = []
    for equation in program.equations:
        split = _split(equation, chip, producers)
        op = equation.op.map_programs(partial(split_products, chip=chip))
        changed |= len(split) > 1 or op is not equation.op
        equations += split if op is equation.op else [equation.replace(op=op)]
    return program.with_equations(equations) if changed else program


class _Operand(NamedTuple):
    """An operand of a product: its value, and its contracting and batch dims."""

    value: Value
    contract: tuple[int, ...]
    batch: tuple[int, ...]


def _split(equation: Equation, chip: Chip, producers: Mapping[Value, Equation]) -> list[Equation]:
    """Return the equations that compute a product in parts; only the equation itself if XLA does not split it."""
    op = equation.op
    if not isinstance(op, Dot) or is_outer_product(equation) or equation.inputs[0].type.dtype == np.int32:
        return [equation]
    operands = [
        _without_transpose(_Operand(value, op.contract[side], op.batch[side]), producers)
        for side, value in enumerate(equation.inputs)
    ]
    if not all(_are_adjacent(operand.contract) for operand in operands):
        return [equation]
    (result,) = equation.outputs
    sums = accumulation_dtype(result.type.dtype)
    left, right = (_source_width(value, producers) for value in equation.inputs)
    widths = _Widths(left, right, result.type.dtype.itemsize, sums.itemsize)
    shape = product_shape(op, tuple([value.type for value in equation.inputs]))
    parts = min(_PARTS, key=lambda parts: _cost(shape, parts, widths, chip.cores))
    if parts == 1:
        return [equation]
    multiple = parts * max(1, _ALIGNMENT // min(left, right))
    return _in_parts(equation, operands, parts, math.ceil(shape[3] / multiple) * multiple, sums)


def _without_transpose(operand: _Operand, producers: Mapping[Value, Equation]) -> _Operand:
    """Return an operand before the transpose that computes it, unless that orders several dims of the result."""
    producer = producers.get(operand.value)
    if producer is None or not isinstance(producer.op, Transpose):
        return operand
    order = producer.op.permutation
    free = [dim for index, dim in enumerate(order) if index not in (*operand.contract, *operand.batch)]
    contract, batch = ([order[dim] for dim in dims] for dims in (operand.contract, operand.batch))
    if free != sorted(free) or not _are_adjacent(tuple(contract)):
        return operand
    return _Operand(producer.inputs[0], tuple(contract), tuple(batch))


def _are_adjacent(dims: tuple[int, ...]) -> bool:
    """Return whether dims follow each other in memory, so that they are one dim of a view."""
    return dims == tuple(range(dims[0], dims[0] + len(dims)))


def _source_width(value: Value, producers: Mapping[Value, Equation]) -> int:
    """Return the bytes of an element of the array of which elementwise ops of one operand compute a value."""
    while (producer := producers.get(value)) is not None:
        if not producer.op.is_elementwise or len(producer.inputs) != 1:
            break
        (value,) = producer.inputs
    return value.type.dtype.itemsize


def _cost(shape: tuple[int, int, int, int], parts: int, widths: _Widths, cores: int) -> float:
    """Return XLA's estimate of the cost of a product that is split into parts."""
    batch, m, n, k = shape
    rows, columns = min(m, _TILE), min(n, _TILE)
    tiles = batch * parts * math.ceil(m / _TILE) * math.ceil(n / _TILE)
    waves = max(1.0, tiles * rows * columns / (cores * _TILE * _TILE))
    compute = 2.0 * rows * columns * math.ceil(k / parts) * waves * _FLOP
    written = batch * parts * m * n * (widths.sums if parts > 1 else widths.result)
    accessed = batch * k * (m * widths.left + n * widths.right) + written
    product = max(compute, accessed * _BYTE)
    if parts == 1:
        return product
    return product + _LAUNCH + (written + batch * m * n * widths.result) * _SUMMED_BYTE


def _in_parts(equation: Equation, operands: Sequence[_Operand], parts: int, padded: int, sums: DType) -> list[Equation]:
    """Return a product as a batch of `parts` products, and the sum of their results.

    Args:
        equation: the product.
        operands: its operands.
        parts: the number of parts.
        padded: the size of the contracting dim, with zeros behind its elements.
        sums: the dtype of the results of the parts.
    """
    equations: list[Equation] = []

    def apply(op: Op, *operands: Value) -> Value:
        (type,) = result_types(op, tuple([value.type for value in operands]))
        equations.append(equation.replace(op=op, inputs=operands, outputs=[Value(type)]))
        return equations[-1].outputs[0]

    divided, dims = [], []
    for value, contracted, batch in operands:
        first, behind = contracted[0], value.type.shape[contracted[-1] + 1 :]
        before, size = value.type.shape[:first], math.prod([value.type.shape[dim] for dim in contracted])
        whole = value
        if size < padded:
            matrix = apply(Reshape((*before, size, *behind)), value)
            none = (0,) * matrix.type.ndim
            high = (*none[:first], padded - size, *none[first + 1 :])
            whole = apply(Pad(none, high, none), matrix, apply(Full((), Scalar.from_value(0, value.type.dtype))))
        divided.append(apply(Reshape((*before, parts, padded // parts, *behind)), whole))
        moved = [dim if dim < first else dim + 2 - len(contracted) for dim in batch]
        dims.append((first + 1, (first, *moved)))
    (left, left_batch), (right, right_batch) = dims
    dtype = None if sums == divided[0].type.dtype else sums
    assert isinstance(equation.op, Dot)
    op = Dot(((left,), (right,)), (left_batch, right_batch), dtype, equation.op.precision)
    total = apply(Sum((0,)), apply(op, *divided))
    if total.type.dtype != equation.outputs[0].type.dtype:
        total = apply(Convert(equation.outputs[0].type.dtype, equation.outputs[0].type.weak), total)
    equations[-1] = equations[-1].replace(outputs=equation.outputs)
    return equations
