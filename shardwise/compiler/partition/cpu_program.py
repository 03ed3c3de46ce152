"""cpu_program: a program as XLA compiles it on CPU, before it forms kernels.

The lowering expands some ops, and XLA rewrites others before it fuses them. The results of the new ops may be stored:

- The quotient of a value and a broadcast value is the product with the broadcast reciprocal.
- Products of narrow floats are computed in f32, and rounded; what is then converted to f32 is not rounded.
- Reductions of f16 are computed in f32, and rounded.
- Values are gathered, scattered and sorted in f32 if they are narrower floats that XLA's CPU compiler does not support.
- Two transposes are one. The reduction of a transposed value to a vector reduces the value, and the sum of negated
  floats is the negated sum.
- The complementary error function has an exponential and two reciprocals, which are expensive, and polynomials of them.
- The inverse error function has a logarithm and a root, which are expensive, and polynomials of them, which are cheap.
- Constants of ops, such as the zeros of a relu, are operands, which several calls of a library share.
- The index vectors of a scatter have an element for each batch dim.
- Rolling concatenates two slices.
- The position of a window's maximum, and the values that it selects, are computed from padded arrays, which are sliced
  for each element of the window.
- The results of LAPACK are NaN for matrices for which it fails, and a factor has zeros in its other triangle. A QR
  decomposition is two calls.
- The gradient of the kernel of a depthwise convolution is computed for each pair of channels. The sum over a mask of
  the pairs selects those of one channel.
- Loop-invariant values are computed before the loop, and equal equations once.
- A cumulative reduction scans blocks, and combines each with the total of the blocks before.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import accumulation_dtype, is_float
from shardwise.compiler.ir.op import Op, result_types
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType, Scalar
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.contract.conv import LETTERS, Conv
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.arithmetic import Add, Div, Mul, Neg, Sub
from shardwise.compiler.ops.elementwise.complex_parts import Abs
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.min_max import Max, Relu
from shardwise.compiler.ops.elementwise.powers import OneMinusSquare, Sqrt, Square
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Exp, Log1p
from shardwise.compiler.ops.indexing.gather import Gather
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.ops.indexing.sort import Sort
from shardwise.compiler.ops.linalg.batched import BatchedMatrixOp
from shardwise.compiler.ops.linalg.householder import Geqrf, HouseholderProduct, Qr
from shardwise.compiler.ops.reduce.base import Reduce
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.cumulative import COMBINERS, Cumulative, blocked_scan
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.reduce.window_argmax import WindowOp
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Transpose
from shardwise.compiler.ops.shape.roll import Roll
from shardwise.compiler.ops.shape.slicing import Concatenate, Pad, Reverse, Slice
from shardwise.compiler.special.gamma_erf import Erfc, ErfInv
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.hoist import hoist_as_xla
from shardwise.compiler.transforms.merge_equal import merge_equal

_SQRT_FROM = 5  # above this, the inverse error function is a polynomial of a root
_F32 = np.dtype(np.float32)


@verifies_result
def cpu_program(program: Program) -> Program:
    """Return a program with the ops that XLA compiles on CPU; `program` itself if they are those that it has."""
    rewritten = _rewritten(program)
    if rewritten is not program:
        rewritten = dce(rewritten)  # such as a broadcast divisor, whose reciprocal is broadcast instead
    return merge_equal(hoist_as_xla(rewritten), _mergeable)


def _rewritten(program: Program) -> Program:
    rewriter = _Rewriter(program)
    for equation in program.equations:
        rewriter.add(equation)
    if not rewriter.is_changed:
        return program
    return program.with_equations(rewriter.equations, [rewriter.current(value) for value in program.outputs])


@final
class _Rewriter:
    """Equations so far, and the values that replace those of the program.

    Attributes:
        equations: the new equations.
        is_changed: whether they differ from those of the program.
    """

    def __init__(self, program: Program):
        self.equations: list[Equation] = []
        self.is_changed = False
        self._producers: dict[Value, Equation] = {}
        self._current: dict[Value, Value] = {}
        self._rounded: dict[Value, Value] = {}  # rounded results of products, and those in f32
        self._equation: Equation

    def current(self, value: Value) -> Value:
        return self._current.get(value, value)

    def add(self, equation: Equation) -> None:
        """Add an equation of the program, or those that replace it."""
        self._equation = equation
        inputs = [self.current(value) for value in equation.inputs]
        results = self._rewritten(equation.op, inputs)
        if results is not None:
            self.is_changed = True
            self._current.update(zip(equation.outputs, results, strict=True))
            return
        op = equation.op.map_programs(_rewritten)
        if op is not equation.op or any(x is not y for x, y in zip(inputs, equation.inputs, strict=True)):
            self.is_changed = True
            equation = equation.replace(op=op, inputs=inputs)
        self._append(equation)

    def _append(self, equation: Equation) -> None:
        self.equations.append(equation)
        self._producers.update(dict.fromkeys(equation.outputs, equation))

    def _apply(self, op: Op, *operands: Value) -> Any:
        """Add an equation in place of the current one, and return its results, or its only result."""
        outputs = [Value(type) for type in result_types(op, tuple([value.type for value in operands]))]
        self._append(self._equation.replace(op=op, inputs=operands, outputs=outputs))
        return outputs[0] if op.single else outputs

    def _rewritten(self, op: Op, inputs: list[Value]) -> list[Value] | None:
        """Return the results of the ops that replace an op; None if it stays."""
        if isinstance(op, Div):
            return self._divided(*inputs)
        if isinstance(op, Transpose):
            return self._transposed(op, *inputs)
        if isinstance(op, Reduce) and (simplified := self._reduced(op, *inputs)) is not None:
            return simplified
        if isinstance(op, Scatter) and op.batch:
            return self._current_results(*self._without_batch(op, inputs))
        is_widened = isinstance(op, (Gather, Sort)) or (isinstance(op, Scatter) and _windows(inputs[1]) > 1)
        if is_widened and any(_is_unsupported(value) for value in inputs):
            return self._widened(op, inputs)
        if op.reduced_dims is not None and any(value.type.dtype == np.float16 for value in inputs):
            return self._widened(op, inputs)
        if isinstance(op, Roll):
            return self._rolled(op, *inputs)
        if isinstance(op, Cumulative):
            return self._scanned(op, *inputs)
        if isinstance(op, WindowOp) and result_types(op, tuple([value.type for value in inputs]))[0].size:
            return [op.expand(self._apply_unless_identity, *inputs)]
        if isinstance(op, ErfInv):
            return self._inverted(*inputs)
        if isinstance(op, Erfc) and inputs[0].type.dtype != np.float64:
            return self._complemented(*inputs)
        if isinstance(op, (Dot, Conv)) and any(_is_narrow(value) for value in inputs):
            rounded = self._multiplied(op, inputs)
            if rounded is not None:
                return rounded
        if isinstance(op, Conv) and op.has_batch_groups and _is_depthwise(op, *inputs):
            return [self._convolved(op, *inputs)]
        if isinstance(op, Convert) and op.dtype == _F32 and inputs[0] in self._rounded:
            return [self._rounded[inputs[0]]]
        if isinstance(op, Qr):
            return self._decomposed(op, *inputs)
        if isinstance(op, BatchedMatrixOp) and op.is_checked:
            results = self._apply(op, *inputs)
            return [self._checked(result) for result in ([results] if op.single else results)]
        if isinstance(op, Relu):
            return [self._apply(Max(), inputs[0], self._full(inputs[0].type, 0))]
        if isinstance(op, OneMinusSquare):
            one = self._full(inputs[0].type, 1)
            return [self._apply(Mul(), self._apply(Add(), one, *inputs), self._apply(Sub(), one, *inputs))]
        return None

    def _apply_unless_identity(self, op: Op, *operands: Value) -> Any:
        """Add an equation as `_apply` does; return the operand of a pad that pads nothing."""
        is_identity = isinstance(op, Pad) and not any((*op.low, *op.high, *op.interior))
        return operands[0] if is_identity else self._apply(op, *operands)

    def _full(self, type: ArrayType, value: Any) -> Value:
        """Add an array of a type whose elements are equal."""
        full: Value = self._apply(Full(type.shape, Scalar.from_value(value, type.dtype), type.weak))
        return full

    def _divided(self, x: Value, y: Value) -> list[Value] | None:
        broadcast = self._producers.get(y)
        if broadcast is None or not isinstance(broadcast.op, Broadcast) or not is_float(x.type.dtype):
            return None
        (divisor,) = broadcast.inputs
        producer = self._producers.get(divisor)
        if divisor.type.size == y.type.size or (producer is not None and producer.op.is_constant):
            return None
        reciprocal = self._apply(Div(), self._full(divisor.type, 1), divisor)
        return [self._apply(Mul(), x, self._apply(broadcast.op, reciprocal))]

    def _transposed(self, op: Transpose, x: Value) -> list[Value] | None:
        """Return the result of two transposes, as that of one; None if no transpose computes the operand."""
        first = self._producers.get(x)
        if first is None or not isinstance(first.op, Transpose):
            return None
        order = tuple([first.op.permutation[dim] for dim in op.permutation])
        (x,) = first.inputs
        return [x if order == tuple(range(len(order))) else self._apply(Transpose(order), x)]

    def _reduced(self, op: Reduce, x: Value) -> list[Value] | None:
        """Return the reduction of an operand before it is transposed or negated; None for other operands.

        XLA negates a sum of floats instead, and reduces to a vector or a scalar without transposing.
        """
        producer = self._producers.get(x)
        if producer is None:
            return None
        if isinstance(producer.op, Neg) and isinstance(op, Sum) and is_float(x.type.dtype):
            return [self._apply(Neg(), *self._current_results(op, list(producer.inputs)))]
        if isinstance(producer.op, Transpose) and x.type.ndim - len(op.dims) < 2:
            permutation = producer.op.permutation
            op = replace(op, dims=tuple(sorted([permutation[dim] for dim in op.dims])))
            return self._current_results(op, list(producer.inputs))
        return None

    def _current_results(self, op: Op, inputs: list[Value]) -> list[Value]:
        """Return the result of an op, or of the ops that replace it."""
        return self._rewritten(op, inputs) or [self._apply(op, *inputs)]

    def _multiplied(self, op: Dot | Conv, inputs: list[Value]) -> list[Value] | None:
        """Return the rounded result of a product of narrow floats, which is computed in f32."""
        (type,) = result_types(op, tuple([value.type for value in inputs]))
        if type.dtype.itemsize > 2:
            return None
        (wide,) = self._current_results(replace(op, dtype=_F32), inputs)
        result = self._apply(Convert(type.dtype, type.weak), wide)
        self._rounded[result] = wide
        return [result]

    def _convolved(self, op: Conv, x: Value, y: Value) -> Value:
        """Return the gradient of a depthwise kernel: the sum of the gradients for all pairs of channels over a mask."""
        group = op.roles.groups
        other = next(letter for letter in LETTERS if letter not in op.lhs + op.rhs)
        ordered = op.out.replace(group, group + other)
        names = group + op.out.replace(group, other)
        pairs = self._apply(replace(op, rhs=op.rhs.replace(group, other), out=names), x, y)
        pairs = self._apply(Transpose(tuple([names.index(name) for name in ordered])), pairs)
        result: Value = self._apply(Sum((ordered.index(group),)), self._checked(pairs))
        return result

    def _widened(self, op: Op, inputs: list[Value]) -> list[Value]:
        types = result_types(op, tuple([value.type for value in inputs]))
        results = self._apply(op, *[self._converted(value) if _is_narrow(value) else value for value in inputs])
        return [
            result if result.type.dtype == type.dtype else self._apply(Convert(type.dtype, type.weak), result)
            for result, type in zip([results] if op.single else results, types, strict=True)
        ]

    def _without_batch(self, op: Scatter, inputs: list[Value]) -> tuple[Scatter, list[Value]]:
        """Return a scatter whose index vectors have an element for each batch dim, and its operands."""
        x, indices, updates = inputs
        columns = [self._apply(Iota((*indices.type.shape[:-1], 1), dim, indices.type.dtype)) for dim in op.index_batch]
        joined = self._apply(Concatenate(indices.type.ndim - 1), *columns, indices)
        collapsed, mapped = tuple(sorted((*op.collapsed, *op.batch))), (*op.batch, *op.mapped)
        return replace(op, collapsed=collapsed, batch=(), index_batch=(), mapped=mapped), [x, joined, updates]

    def _converted(self, value: Value) -> Any:
        producer = self._producers.get(value)
        if producer is not None and isinstance(producer.op, Full):
            return self._apply(
                Full(value.type.shape, Scalar.from_value(producer.op.value.array, _F32), value.type.weak)
            )
        return self._apply(Convert(_F32, value.type.weak), value)

    def _rolled(self, op: Roll, x: Value) -> list[Value] | None:
        size = x.type.shape[op.dim]
        if not op.by:
            return None
        parts = []
        for start, limit in ((size - op.by, size), (0, size - op.by)):
            first, last = [0] * x.type.ndim, list(x.type.shape)
            first[op.dim], last[op.dim] = start, limit
            parts.append(self._apply(Slice(tuple(first), tuple(last), (1,) * x.type.ndim), x))
        return [self._apply(Concatenate(op.dim), *parts)]

    def _scanned(self, op: Cumulative, x: Value) -> list[Value]:
        type, dim = x.type, op.dim
        wide = accumulation_dtype(type.dtype)
        if wide != type.dtype:
            x = self._apply(Convert(wide, type.weak), x)
        if op.reverse:
            x = self._apply(Reverse((dim,)), x)
        neutrals = [self._full(ArrayType((), wide, type.weak), neutral) for neutral in op.neutrals(wide)]

        def scan(operands: Sequence[Value], dim: int) -> list[Value]:
            return [self._apply(Cumulative(dim, op.reduction), x) for x in operands]

        def combine(earlier: Sequence[Value], later: Sequence[Value]) -> list[Value]:
            return [COMBINERS[op.reduction][0](self._apply_unless_identity, *earlier, *later)]

        (result,) = blocked_scan(self._apply_unless_identity, scan, [x], neutrals, dim, combine)
        if op.reverse:
            result = self._apply(Reverse((dim,)), result)
        return [result if wide == type.dtype else self._apply(Convert(type.dtype, type.weak), result)]

    def _checked(self, x: Value) -> Value:
        """Return the elements of a result that are kept; the others are zero, or NaN in a result of LAPACK."""
        is_kept = self._full(ArrayType(x.type.shape, np.dtype(np.bool_)), True)
        kept: Value = self._apply(Select(), is_kept, x, self._full(x.type, 0))
        return kept

    def _decomposed(self, op: Qr, x: Value) -> list[Value]:
        """Return the orthogonal and the triangular factor of matrices, and the order of their columns if requested."""
        types = result_types(op, (x.type,))
        packed, taus, *order = self._apply(Geqrf(op.pivoting), x)
        vectors, upper = (self._leading(packed, type.shape) for type in types[:2])
        return [self._apply(HouseholderProduct(), vectors, taus), self._checked(upper), *order]

    def _leading(self, x: Value, shape: tuple[int, ...]) -> Value:
        """Return the first elements along each dim, and zeros behind them if `x` has fewer."""
        start = (0,) * x.type.ndim
        common = tuple(map(min, shape, x.type.shape))
        if common != x.type.shape:
            x = self._apply(Slice(start, common, (1,) * x.type.ndim), x)
        if common != shape:
            more = tuple(size - least for size, least in zip(shape, common, strict=True))
            x = self._apply(Pad(start, more, start), x, self._full(ArrayType((), x.type.dtype), 0))
        return x

    def _complemented(self, x: Value) -> list[Value]:
        """Return the complementary error function, whose polynomials are represented as in `_inverted`."""
        type = x.type
        if _is_narrow(x):
            x = self._apply(Convert(_F32, type.weak), x)
        one = self._full(x.type, 1)
        square, magnitude = self._apply(Square(), x), self._apply(Abs(), x)
        tail = self._apply(Mul(), self._apply(Exp(), self._apply(Neg(), square)), self._apply(Div(), one, magnitude))
        tail = self._apply(Mul(), tail, self._apply(Div(), one, square))
        center = self._apply(Sub(), one, self._apply(Mul(), x, square))
        result = self._apply(Select(), self._apply(Compare("LT"), magnitude, one), center, tail)
        return [result if x.type == type else self._apply(Convert(type.dtype, type.weak), result)]

    def _inverted(self, x: Value) -> list[Value]:
        """Return the inverse error function, whose polynomials are represented by the values that they depend on."""
        type = x.type
        if _is_narrow(x):
            x = self._apply(Convert(_F32, type.weak), x)
        square = self._apply(Mul(), x, self._apply(Neg(), x))
        exponent = self._apply(Neg(), self._apply(Log1p(), square))
        is_small = self._apply(Compare("LT"), exponent, self._full(x.type, _SQRT_FROM))
        result = self._apply(Mul(), x, self._apply(Select(), is_small, exponent, self._apply(Sqrt(), exponent)))
        return [result if x.type == type else self._apply(Convert(type.dtype, type.weak), result)]


def _mergeable(program: Program) -> set[Equation]:
    """Return the equations that XLA merges with equal ones."""
    return {
        equation
        for equation in program.equations
        if (op := equation.op).is_elementwise
        or op.is_constant
        or op.only_moves
        or op.is_contraction
        or op.reduced_dims is not None
    }


def _is_depthwise(op: Conv, x: Value, y: Value) -> bool:
    """Return whether each group of a convolution, one of several, has one channel of each operand."""
    roles = op.roles
    sizes = dict(zip(op.lhs + op.rhs, x.type.shape + y.type.shape, strict=True))
    is_single = all(sizes[letter] == 1 for letter in roles.batch + roles.features)
    return is_single and len(roles.groups) == 1 and sizes[roles.groups] > 1


def _windows(indices: Value) -> int:
    """Return how many windows a scatter updates. XLA updates a single one as a slice."""
    return math.prod(indices.type.shape[:-1])


def _is_narrow(value: Value) -> bool:
    return is_float(value.type.dtype) and value.type.dtype.itemsize <= 2


def _is_unsupported(value: Value) -> bool:
    """Return whether a value has a narrow float dtype that XLA's CPU compiler computes in f32. It supports f16."""
    return _is_narrow(value) and value.type.dtype != np.float16
