"""simplify_prologue: compute a function of elements by fewer instructions.

    1 + tanh(z)     → 2 · logistic(2 z)     without cancellation, and without a branch
    c · (d · x)     → (c · d) · x           if one of the constants is a power of two, so that the product is exact

The first one is a part of GELU. XLA does not need it: it computes `tanh` by a rational function.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import Scalar
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul
from shardwise.compiler.ops.elementwise.transcendental import Logistic, Tanh
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.trace.build import rewrite

F32 = np.dtype(np.float32)


def simplify_prologue(program: Program) -> Program:
    """Return a program of elementwise ops of values without dims that computes the same with fewer ops."""

    def body(*elements: Operand) -> list[Any]:
        terms: dict[Value, _Term] = {
            value: _Term(element) for value, element in zip(program.inputs, elements, strict=True)
        }
        for equation in program.equations:
            terms[equation.outputs[0]] = _simplified(equation, [terms[value] for value in equation.inputs])
        return [terms[program.outputs[0]].result]

    return rewrite(program.name, program.in_types, body)


@final
class _Term:
    """A value: `factor` times an operand. It is computed when an op reads it.

    Attributes:
        operand: the operand; None for a constant, which is `factor`.
        factor: a float.
        tanh: the term whose tanh it is, if any.
    """

    def __init__(self, operand: Operand | None, factor: float = 1.0, tanh: "_Term | None" = None):
        self.operand, self.factor, self.tanh = operand, factor, tanh

    @property
    def is_constant(self) -> bool:
        return self.operand is None and self.tanh is None

    def times(self, factor: float) -> "_Term":
        return _Term(self.operand, self.factor * factor) if self.tanh is None else _Term(self.result, factor)

    @cached_property
    def result(self) -> Any:
        if self.tanh is not None:
            return Tanh()(self.tanh.result)
        factor = Full((), Scalar.from_value(self.factor, F32))
        if self.operand is None:
            return factor()
        return self.operand if self.factor == 1 else Mul()(factor(), self.operand)


def _simplified(equation: Equation, terms: Sequence[_Term]) -> _Term:
    """Return the result of an equation, given its operands."""
    op = equation.op
    if isinstance(op, Full) and op.value.dtype == F32:
        return _Term(None, float(op.value.array))
    if isinstance(op, Tanh):
        return _Term(None, tanh=terms[0])
    if isinstance(op, (Add, Mul)):
        for constant, other in (terms, terms[::-1]):
            if not constant.is_constant or other.is_constant:
                continue
            if isinstance(op, Add) and constant.factor == 1 and other.tanh is not None:
                return _Term(Logistic()(other.tanh.times(2).result), 2)
            if isinstance(op, Mul) and (_is_power_of_two(constant.factor) or _is_power_of_two(other.factor)):
                return other.times(constant.factor)
    return _Term(op(*(term.result for term in terms)))


def _is_power_of_two(number: float) -> bool:
    return math.isfinite(number) and abs(math.frexp(number)[0]) == 0.5
