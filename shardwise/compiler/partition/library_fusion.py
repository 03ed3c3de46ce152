"""library_fusion: the equations that XLA computes in one call of its library of reductions on CPU.

A call starts at a reduction and grows over neighbours, until none can join: an operand whose consumers are all in the
call, and the only consumer of the result. Products and convolutions can join, too, but not the producer of an operand
of which a product reads a transposed copy. XLA forms the calls before it fuses
other ops, so a call reads all other operands from memory, even values that would be computed again in a fused kernel.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from shardwise.compiler.dtypes import DType, is_float
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.conv import Conv
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.reduce.reduce_window import ReduceWindow
from shardwise.compiler.ops.shape.movement import Transpose
from shardwise.compiler.ops.shape.slicing import Concatenate
from shardwise.compiler.reduction import MAX, MIN, SUM

_ARITHMETIC = "abs add ceil convert div floor integer_pow max min mul neg one_minus_square relu round sign square sub"
_FUNCTIONS = "erf exp exp2 expm1 gelu log log1p log2 logistic pow rsqrt silu softplus sqrt tanh"
_OPS = {"broadcast", "full", "pad", *_ARITHMETIC.split(), *_FUNCTIONS.split()}
_LEAST_ELEMENTS = 4096  # of an operand or the result
_FEW_FEATURES = 16  # of a convolution; XLA compiles convolutions with so few itself


def library_calls(program: Program, uses: Mapping[Value, Sequence[Equation]]) -> dict[Equation, Equation]:
    """Return the equations in calls with at least one reduction, each with the last equation of its call.

    Args:
        program: the program.
        uses: the consumers of each value.
    """
    producers = {value: equation for equation in program.equations for value in equation.outputs}
    outputs = set(program.outputs)
    calls: dict[Equation, Equation] = {}
    for equation in reversed(program.equations):
        if _is_reduction(equation) and equation not in calls:
            members, last = _grow(equation, uses, producers, outputs, calls)
            calls.update(dict.fromkeys(members, last))
    return calls


def _grow(
    start: Equation,
    uses: Mapping[Value, Sequence[Equation]],
    producers: Mapping[Value, Equation],
    outputs: set[Value],
    calls: Mapping[Equation, Equation],
) -> tuple[set[Equation], Equation]:
    """Return the equations of the call that starts at a reduction, and the last of them, whose result is stored."""
    members, last = {start}, start

    def can_join(equation: Equation | None) -> bool:
        if equation is None or equation in members or equation in calls:
            return False
        return _is_supported(equation) and not _is_transposed(equation, producers)

    pending = [start]  # members whose operands are not examined yet
    while pending:
        for value in _read_as_stored(pending.pop()):
            producer = producers.get(value)
            if can_join(producer) and value not in outputs and members.issuperset(uses[value]):
                assert producer is not None
                members.add(producer)
                pending.append(producer)
        if not pending:
            (result,) = last.outputs
            if result.type.size < _LEAST_ELEMENTS and concatenation_of(last, producers) is not None:
                continue
            consumers = uses.get(result, ())
            if result not in outputs and len(consumers) == 1 and can_join(consumers[0]):
                last = consumers[0]
                members.add(last)
                pending.append(last)
    return members, last


def _read_as_stored(equation: Equation) -> Sequence[Value]:
    """Return the operands of an equation, but for those of which a product reads a transposed copy."""
    op, inputs = equation.op, equation.inputs
    if not isinstance(op, Dot):
        return inputs
    orders = op.copied_orders("cpu", *[value.type for value in inputs])
    return [value for value, order in zip(inputs, orders, strict=True) if not order]


def concatenation_of(equation: Equation, producers: Mapping[Value, Equation]) -> Equation | None:
    """Return the concatenation along whose dim an equation reduces; None for other equations.

    XLA reduces each operand of the concatenation, and combines the results.
    """
    if not equation.op.reduced_dims:
        return None
    producer = producers.get(equation.inputs[0])
    is_along = (
        producer is not None and isinstance(producer.op, Concatenate) and producer.op.dim in equation.op.reduced_dims
    )
    return producer if is_along else None


def _is_transposed(equation: Equation, producers: Mapping[Value, Equation]) -> bool:
    """Return whether a product sums over the rows of its left operand, which the library cannot read."""
    op = equation.op
    if not isinstance(op, Dot) or op.copied_orders("cpu", *[value.type for value in equation.inputs])[0]:
        return False  # a copy has the order that the library reads
    x, y = equation.inputs
    rows, contracted = op.free(x.type.ndim, y.type.ndim)[0], op.contract[0]
    while (producer := producers.get(x)) is not None and isinstance(producer.op, Transpose):
        order = producer.op.permutation
        rows, contracted = (tuple(order[dim] for dim in dims) for dims in (rows, contracted))
        (x,) = producer.inputs
    return bool(rows) and bool(contracted) and max(rows) > max(contracted)


def _is_reduction(equation: Equation) -> bool:
    return (equation.op.reduced_dims is not None or _is_pooling(equation.op)) and _is_supported(equation)


def _is_supported(equation: Equation) -> bool:
    """Return whether the library has an op: arithmetic of floats, broadcasts, reductions, products, images, views.

    XLA computes ops of few elements itself, and those of f16.
    """
    op, values = equation.op, (*equation.inputs, *equation.outputs)
    if len(equation.outputs) != 1 or not all(_is_supported_dtype(value.type.dtype) for value in values):
        return False
    if op.fusion.is_view:
        return True
    if op.is_product:
        return True
    if isinstance(op, Conv):
        return _is_supported_conv(op, *[value.type for value in values])
    is_large = any(value.type.size >= _LEAST_ELEMENTS for value in values)
    return is_large and (op.name in _OPS or op.reduced_dims is not None or _is_pooling(op))


def _is_supported_dtype(dtype: DType) -> bool:
    return is_float(dtype) and dtype != np.float16


def _is_supported_conv(op: Conv, x: ArrayType, kernel: ArrayType, result: ArrayType) -> bool:
    """Return whether the library has a convolution of images.

    Their features are the last dim, also those of the kernel. Some layer has more than `_FEW_FEATURES`, and windows
    are inside the image.
    """
    is_image = op.lhs[1:3] == "01" and op.out.startswith(op.lhs[:3]) and x.ndim > 3
    if not is_image or op.rhs[:2] != "01" or op.rhs[2] != op.lhs[-1] or op.rhs[-1] != op.out[-1]:
        return False
    if x.dtype.itemsize < 4 or max(op.lhs_dilation) > 1:
        return False
    if max(math.prod(x.shape[3:]), math.prod(result.shape[3:])) <= _FEW_FEATURES:
        return False
    return all(max(a, b) <= size for a, b, size in zip(kernel.shape, result.shape[1:], x.shape[1:3], strict=False))


def _is_pooling(op: Op) -> bool:
    """Return whether an op reduces windows that do not overlap."""
    if not isinstance(op, ReduceWindow) or op.reduction not in (SUM, MAX, MIN):
        return False
    windows = [window for window in op.window_dims if window.window > 1]
    is_dilated = any(window.base_dilation > 1 or window.window_dilation > 1 for window in windows)
    return bool(windows) and not is_dilated and all(window.stride == window.window for window in windows)
