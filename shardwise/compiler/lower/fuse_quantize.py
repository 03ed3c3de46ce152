"""fuse_quantize: let the kernel that rounds an array to float8 compute the array, and sum it over its rows.

An array that is only rounded, such as the result of an activation before a product, is then neither written nor read:
the elementwise ops before the kernel become its prologue. The sum of a cotangent over its rows, the gradient of a bias,
becomes a result of the kernel that rounds the cotangent.
"""

from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.kernels.prologue import can_be_in_prologue, is_wide_float, prologue
from shardwise.compiler.kernels.quantize import Quantize
from shardwise.compiler.lower.nested_programs import rewrite_nested_programs
from shardwise.compiler.lower.stored_values import is_stored
from shardwise.compiler.ops.elementwise.arithmetic import StopGradient
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.transforms.dce import dce

F32 = np.dtype(np.float32)
_MOST_ARRAYS = 4  # arrays of the shape of the result that one kernel reads: each takes registers
_MOST_VECTORS = 64  # rows, columns and scalars: the addresses of a kernel's arrays have to fit 4 KiB


@verifies_result
def fuse_quantize(program: Program) -> Program:
    """Move elementwise ops, and sums over rows, into the kernels that round their results to float8.

    Args:
        program: the program of one device. Nested programs are rewritten too.

    Returns:
        The new program; `program` itself if there are no such ops.
    """
    program = rewrite_nested_programs(program, fuse_quantize)
    uses = _Uses(program)
    rewritten: dict[Equation, list[Equation]] = {}
    for equation in program.equations:
        op = equation.op
        if isinstance(op, Quantize) and can_be_fused(equation):
            fused = _fuse(equation, op, uses, rewritten)
            if fused is not None:
                rewritten.update(_placed(equation, fused, uses))
    if not rewritten:
        return program
    equations = [new for equation in program.equations for new in rewritten.get(equation, [equation])]
    return dce(program.with_equations(dict.fromkeys(equations)))


def can_be_fused(equation: Equation) -> bool:
    """Return whether an equation is a kernel that rounds, without other ops yet. If it is plain ops, XLA fuses them."""
    op = equation.op
    if not isinstance(op, Quantize) or op.prologue is not None or op.sums:
        return False
    return not op.reason_for_plain_ops(*(value.type for value in equation.inputs))


@final
class _Uses:
    """The producers and the readers of the values of a program, and the places of its equations."""

    def __init__(self, program: Program):
        self.equations = program.equations
        self.places = {equation: index for index, equation in enumerate(program.equations)}
        self.producers = program.producers()
        self.outputs = frozenset(program.outputs)
        self._readers: dict[Value, list[Equation]] = defaultdict(list)
        for equation in program.equations:
            for value in dict.fromkeys(equation.inputs):
                self._readers[value].append(equation)

    def source(self, value: Value) -> Value:
        """Return the value of which another one is an alias."""
        while (producer := self.producers.get(value)) is not None and isinstance(producer.op, StopGradient):
            (value,) = producer.inputs
        return value

    def readers(self, value: Value) -> list[Equation] | None:
        """Return the equations that read a value or an alias of it; None if it is an output of the program."""
        found: list[Equation] = []
        aliases = [value]
        while aliases:
            alias = aliases.pop()
            if alias in self.outputs:
                return None
            for reader in self._readers[alias]:
                if isinstance(reader.op, StopGradient):
                    aliases.append(reader.outputs[0])
                else:
                    found.append(reader)
        return found

    def computing(self, value: Value, start: Equation, end: Equation) -> list[Equation]:
        """Return the equations from `start` on, before `end`, that compute a value, in order."""
        needed, found = {value}, []
        for equation in reversed(self.equations[self.places[start] : self.places[end]]):
            if not needed.isdisjoint(equation.outputs):
                needed.update(equation.inputs)
                found.append(equation)
        return found[::-1]


@final
@dataclass(frozen=True, eq=False)
class _Fused:
    """A kernel and the equations that it replaces.

    Attributes:
        kernel: the equation of the kernel.
        total: the equation of the sum that the kernel computes, if any.
        converted: the equation that computes the result of `total` from that of the kernel.
    """

    kernel: Equation
    total: Equation | None = None
    converted: Equation | None = None


def _fuse(equation: Equation, op: Quantize, uses: _Uses, rewritten: Container[Equation]) -> _Fused | None:
    """Return a kernel with the ops before another one, and the sum beside it; None if there are none.

    A sum that is `rewritten` is a result of another kernel, which rounds the same array with another scale.
    """
    value = uses.source(equation.inputs[0])
    readers = uses.readers(value)
    total = None if readers is None else _sum_of_rows(readers, op, uses)
    if total is not None and (total in rewritten or not _can_be_moved(equation, total, uses)):
        total = None
    beside = () if total is None else (total, uses.producers.get(total.inputs[0]))
    operands, function = [value], None
    dims: tuple[tuple[int, ...], ...] = ()
    is_only_rounded = readers is not None and all(reader is equation or reader in beside for reader in readers)
    steps = _steps(value, op, uses) if is_only_rounded else None
    if steps is not None:
        equations, arrays = steps
        operands = [array for array, _ in arrays.values()]
        dims = tuple(dim for _, dim in arrays.values())
        function = prologue(equations, list(arrays), value)
    elif total is None or not is_stored(value, uses.producers):
        return None
    fused = replace(op, prologue=function, dims=dims, sums=total is not None)
    inputs = [*operands, equation.inputs[1]]
    if total is None:
        return _Fused(equation.replace(op=fused, inputs=inputs))
    result = total.outputs[0]
    sums = result if result.type.dtype == F32 else Value(ArrayType(result.type.shape, F32))
    kernel = equation.replace(op=fused, inputs=inputs, outputs=[*equation.outputs, sums])
    if sums is result:
        return _Fused(kernel, total)
    return _Fused(kernel, total, total.replace(op=Convert(result.type.dtype), inputs=[sums]))


def _sum_of_rows(readers: Sequence[Equation], op: Quantize, uses: _Uses) -> Equation | None:
    """Return the equation that sums an array over the rows of the kernel, in the array's dtype or in float32."""
    rows = tuple(range(op.batch, op.batch + op.rows))
    for reader in readers:
        if isinstance(reader.op, Convert) and reader.op.dtype == F32:
            inner = uses.readers(reader.outputs[0])
            total = inner[0] if inner is not None and len(inner) == 1 else reader
        else:
            total = reader
        if isinstance(total.op, Sum) and total.op.dims == rows and is_wide_float(total.outputs[0].type) and rows:
            return total
    return None


_Arrays = dict[Value, tuple[Value, tuple[int, ...]]]


def _steps(value: Value, op: Quantize, uses: _Uses) -> tuple[list[Equation], _Arrays] | None:
    """Return the elementwise equations that compute a value, in order, and the arrays that they read.

    Each array is a value, the operand of which it is a broadcast, and the dims of that; first those of the value's
    shape. The result is None if there is no such equation, or if XLA would have to write an array that it computes in
    a kernel now.
    """
    ndim, start = value.type.ndim, op.batch + op.rows
    parts = (tuple(range(start)), tuple(range(start, ndim)), ())
    equations: dict[Equation, None] = {}
    stored: _Arrays = {}
    small: _Arrays = {}
    stack = [(value, False)]
    while stack:
        current, is_done = stack.pop()
        producer = uses.producers.get(current)
        if is_done:
            assert producer is not None
            equations[producer] = None
        elif producer is None or producer in equations or current in stored or current in small:
            if producer is None:
                stored[current] = current, tuple(range(ndim))
        elif _is_absorbed(current, producer, value, uses):
            stack.append((current, True))
            stack += [(operand, False) for operand in reversed(producer.inputs)]
        elif isinstance(producer.op, Broadcast) and producer.op.dims in parts:
            small[current] = producer.inputs[0], producer.op.dims
        elif is_stored(current, uses.producers):
            stored[current] = current, tuple(range(ndim))
        else:
            return None
    is_known = all(is_wide_float(array.type) for array, _ in (*stored.values(), *small.values()))
    count = sum(not isinstance(equation.op, Full) for equation in equations)
    fits = 0 < len(stored) <= _MOST_ARRAYS and len(small) <= _MOST_VECTORS
    return ([*equations], {**stored, **small}) if count and is_known and fits else None


def _is_absorbed(value: Value, producer: Equation, result: Value, uses: _Uses) -> bool:
    """Return whether a kernel computes a value again: one that it can compute, and that XLA does not store."""
    if not can_be_in_prologue(producer):
        return False
    readers = uses.readers(value)
    return value is result or (readers is not None and all(reader.op.fusion.fuses for reader in readers))


def _can_be_moved(equation: Equation, total: Equation, uses: _Uses) -> bool:
    """Return whether a kernel can take the place of a sum.

    The equations that compute its scale move with it. They must not be ones that this pass replaces, such as the sum.
    """
    scale = uses.computing(equation.inputs[-1], total, equation)
    return not any(isinstance(each.op, (Control, Quantize, Sum)) or each.op.effect for each in scale)


def _placed(equation: Equation, fused: _Fused, uses: _Uses) -> dict[Equation, list[Equation]]:
    """Return what replaces equations: a kernel is at the place of the sum that it computes, if that is first."""
    after = [] if fused.converted is None else [fused.converted]
    if fused.total is None or uses.places[equation] < uses.places[fused.total]:
        return {equation: [fused.kernel, *after], **({} if fused.total is None else {fused.total: []})}
    scale = uses.computing(equation.inputs[-1], fused.total, equation)
    return {fused.total: [*scale, fused.kernel, *after], equation: []}
