"""check_linear_cotangents: check that the backward rules of custom_vjp functions are linear in their cotangents.

A pipeline adds the gradients of microbatches. That is the gradient of the batch only if backward rules are linear: one
that clips a gradient clips the gradient of each microbatch.
"""

from collections.abc import Sequence
from typing import Any

from shardwise.compiler.candidates.unfold import unfold
from shardwise.compiler.control.custom_derivatives import CustomVjp
from shardwise.compiler.dtypes import is_float, is_inexact
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.placement.reshard import cotangent_type
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline
from shardwise.errors import StrategyError


def check_linear_cotangents(program: Program, label: str) -> None:
    """Check the custom_vjp functions that a program calls.

    Args:
        program: the program of a loss, with its calls.
        label: the loss, for errors.

    Raises:
        StrategyError: if a backward rule is not linear.
    """
    for equation in program.walk():
        if isinstance(equation.op, CustomVjp) and (found := _nonlinear(*backward_program(equation, equation.op))):
            raise StrategyError(
                f"mpmd_step: the backward rule of `{equation.op.program.name}`, which {label} calls at "
                f"{equation.source}, is not linear: `{found.op.name}` at {found.source} depends on the cotangent. The "
                "pipeline applies it to each microbatch, and adds the gradients. Transform the gradients in the step "
                "instead, after `value_and_grad`."
            )


def backward_program(equation: Equation, op: CustomVjp) -> tuple[Program, Sequence[Value]]:
    """Return the program from operands and cotangents to the cotangents of operands, and its inputs of cotangents."""
    operands = [value.type for value in equation.inputs]
    is_active = [is_inexact(type.dtype) for type in operands]
    results = op.program.out_types
    cotangents = [cotangent_type(type) for type in results if is_inexact(type.dtype)]

    def run(*arrays: Any) -> list[Any]:
        rest = iter(arrays[len(operands) :])
        _, residuals, backward = op.rule.forward(arrays[: len(operands)], is_active)
        found = backward(residuals, [next(rest) if is_inexact(type.dtype) else None for type in results])
        return [x for x in found if x is not None]

    program = dce(inline(build(run, [*operands, *cotangents], op.program.name)[0]))
    return program, program.inputs[len(operands) : len(operands) + len(cotangents)]


def _nonlinear(program: Program, cotangents: Sequence[Value]) -> Equation | None:
    """Return an op that is not linear in cotangents, if there is one."""
    equations, ops = unfold(program).equations, set(program.walk())
    dependent, size = set(cotangents), -1
    while len(dependent) > size:  # a carry is read before it is computed
        size = len(dependent)
        for equation in equations:
            if not dependent.isdisjoint(equation.inputs):
                dependent.update(equation.outputs)
    zeros: set[Value] = set()
    for equation in equations:
        op = equation.op
        sets = [set(each) for each in op.linear_in(*(value.type for value in equation.inputs))]
        if isinstance(op, Convert):
            sets = [{0}]
        is_zero = isinstance(op, Full) and op.is_zero
        if is_zero or any(all(equation.inputs[index] in zeros for index in each) for each in sets if each):
            zeros.update(equation.outputs)
        linear = {index for index, value in enumerate(equation.inputs) if value in dependent}
        if not linear or equation not in ops:
            continue
        if isinstance(op, Convert) and not is_float(op.dtype):
            return equation
        jointly = next((each for each in sets if linear <= each), None)
        if jointly is None or any(equation.inputs[index] not in zeros for index in jointly - linear):
            return equation
    return None
