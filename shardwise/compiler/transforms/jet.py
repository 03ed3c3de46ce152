"""jet: Taylor-mode differentiation. Every value has the coefficients of its truncated Taylor series along a curve.

    linear op          maps the coefficients one by one
    multilinear op     multiplies series: coefficient k of `x * y` is the sum of x[i] * y[k - i]
    division           solves `quotient * y = x` coefficient by coefficient
    any other op f     the derivative of f(x(t)) is the jvp of f at x(t) along x'(t), whose series has one order less

So every op with a jvp rule has a series, without a rule of its own.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.masks import insert_none
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.elementwise.arithmetic import Div, Mul, add_tangents
from shardwise.compiler.ops.elementwise.expr import Expr
from shardwise.compiler.ops.placement.retype import match_type, zeros_of
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.jvp import jvp_program
from shardwise.compiler.transforms.replay import for_each_equation

Series: TypeAlias = list[Any]  # the value, then the coefficients of t, t², ...; a coefficient of None is zero


def jet(program: Program, inputs: Sequence[Series], order: int) -> list[Series]:
    """Compute the Taylor series of a program's outputs in the open frame, up to the power `order`.

    Functions with a custom derivative are differentiated without their rule, as in JAX.
    """
    program = inline(program)
    series: dict[Value, Series] = dict(zip(program.inputs, inputs, strict=True))

    def step(equation: Equation) -> None:
        results = _op_series(equation.op, [series[value] for value in equation.inputs], order)
        for value, result in zip(equation.outputs, results, strict=True):
            series[value] = _with_type_of(result, value)

    for_each_equation(program.equations, step)
    return [series[value] for value in program.outputs]


def _with_type_of(series: Series, value: Value) -> Series:
    """Cast the coefficients to the type of the value. Values that are not inexact have none."""
    primal, *terms = series
    if not is_inexact(value.type.dtype):
        return [primal, *[None] * len(terms)]
    return [primal, *(None if term is None else match_type(term, value.type) for term in terms)]


def _op_series(op: Op, operands: Sequence[Series], order: int) -> list[Series]:
    """Return the series of an op's results."""
    primals = [series[0] for series in operands]
    active = tuple(any(term is not None for term in series[1:]) for series in operands)
    # `linear_in` is about partial sums: `stop_gradient` is linear in its operand, and has no derivative.
    if not any(active) or not any(_jvp(op, operands, active)[1]):
        return [[result, *[None] * order] for result in _results(op, primals)]
    groups = [
        group for group in op.linear_in(*(x.type for x in primals)) if any(active[position] for position in group)
    ]
    constant = set(range(len(operands))).difference(*groups)
    if not any(active[position] for position in constant):
        return _multilinear_series(op, operands, groups, order)
    if isinstance(op, Div):
        numerator, denominator = operands
        return [_quotient_series(numerator, denominator, order)]
    return _derivative_series(op, operands, active, order)


def _results(op: Op, operands: Sequence[Operand]) -> Sequence[Any]:
    results = op(*operands)
    return (results,) if op.single else results


def _multilinear_series(
    op: Op, operands: Sequence[Series], groups: Sequence[tuple[int, ...]], order: int
) -> list[Series]:
    """Return the series of an op that is jointly linear in each group of operands; the others are constant."""
    series: list[Series] = [[result] for result in _results(op, [operand[0] for operand in operands])]
    for degree in range(1, order + 1):
        coefficients: list[Any] = [None] * len(series)
        for powers in _compositions(degree, len(groups)):
            term_operands = [operand[0] for operand in operands]
            for group, power in zip(groups, powers, strict=True):
                terms = [operands[position][power] for position in group]
                if all(term is None for term in terms):
                    break
                for position, term in zip(group, terms, strict=True):
                    term_operands[position] = zeros_of(operands[position][0].type) if term is None else term
            else:
                coefficients = list(map(add_tangents, coefficients, _results(op, term_operands)))
        for result, coefficient in zip(series, coefficients, strict=True):
            result.append(coefficient)
    return series


def _compositions(total: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield the tuples of `count` non-negative integers whose sum is `total`."""
    if count == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _compositions(total - first, count - 1):
            yield (first, *rest)


def _quotient_series(x: Series, y: Series, order: int) -> Series:
    """Return the series of `x / y`. The rule for other ops would divide 2ⁿ times for order n."""
    quotient: Series = [Div()(x[0], y[0])]
    for degree in range(1, order + 1):
        rest = x[degree]
        for power in range(1, degree + 1):
            if y[power] is not None and quotient[degree - power] is not None:
                rest = add_tangents(rest, (-Expr(Mul()(quotient[degree - power], y[power]))).array)
        quotient.append(None if rest is None else Div()(rest, y[0]))
    return quotient


def _derivative_series(op: Op, operands: Sequence[Series], active: tuple[bool, ...], order: int) -> list[Series]:
    """Return the series of an op by integrating those of its derivative along the curve."""
    derivative, nonzero = _jvp(op, operands, active)
    velocities = [_velocity(operand) for operand, is_active in zip(operands, active, strict=True) if is_active]
    outputs = jet(derivative, [*(operand[:order] for operand in operands), *velocities], order - 1)
    primals, tangents = outputs[: len(nonzero)], insert_none(outputs[len(nonzero) :], nonzero)
    return [
        [primal[0], *([None] * order if tangent is None else _integral(tangent))]
        for primal, tangent in zip(primals, tangents, strict=True)
    ]


def _jvp(op: Op, operands: Sequence[Series], active: tuple[bool, ...]) -> tuple[Program, tuple[bool, ...]]:
    """Differentiate an op in forward mode, as `jvp_program` does for a program."""
    values = tuple(Value(operand[0].type) for operand in operands)
    results = tuple(map(Value, op.out_types(*(value.type for value in values))))
    return jvp_program(Program(values, (Equation(op, values, results),), results, op.name), active)


def _velocity(series: Series) -> Series:
    """Return the series of the derivative with respect to t, whose value is instantiated."""
    terms = [None if term is None else scaled(term, power) for power, term in enumerate(series[1:], 1)]
    return [zeros_of(series[0].type) if terms[0] is None else terms[0], *terms[1:]]


def _integral(series: Series) -> list[Any]:
    """Return the coefficients from t on of the integral with respect to t."""
    return [None if term is None else scaled(term, 1 / power) for power, term in enumerate(series, 1)]


def scaled(term: Operand, factor: float) -> Any:
    """Multiply a coefficient by a number."""
    return term if factor == 1 else (Expr(term) * factor).array
