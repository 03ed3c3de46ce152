"""check_independent_rules: check that derivative rules compute each row of a batch from this row alone.

A custom_jvp or custom_vjp function may have independent rows, and a rule that mixes them, or that reads their number. A
pipeline applies the rule to each microbatch. A rule may sum its tangents or cotangents over rows, as the gradient of a
parameter does.
"""

from collections.abc import Sequence
from typing import Any

from shardwise.compiler.candidates.unfold import unfold
from shardwise.compiler.control.custom_derivatives import CustomJvp, CustomVjp
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.reduction import SUM
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline
from shardwise.errors import StrategyError
from shardwise.parallel.linear_cotangents import backward_program
from shardwise.parallel.row_independence import Comparison
from shardwise.parallel.rows import Rows


def check_independent_rules(program: Program, larger: Program, rows: tuple[int, int], label: str) -> None:
    """Check the rules of the custom_jvp and custom_vjp functions that a program calls.

    Args:
        program: the program of a loss, with its calls.
        larger: the program for more rows.
        rows: the numbers of rows of both.
        label: the loss, for errors.

    Raises:
        StrategyError: if a rule mixes rows, or if that cannot be excluded.
    """
    pairs = zip(_calls(program), _calls(larger), strict=False)  # other calls are found by comparing both programs
    for call, other in pairs:
        problem = _problem(_rule_program(call), _rule_program(other), rows)
        if problem:
            raise StrategyError(
                f"mpmd_step: the derivative rule of `{call.op.programs[0].name}`, which {label} calls at "
                f"{call.source}, {problem}. The pipeline applies it to each microbatch, so it must compute each row "
                "from this row alone."
            )


def _calls(program: Program) -> list[Equation]:
    return [each for each in program.walk() if isinstance(each.op, CustomJvp | CustomVjp)]


def _rule_program(call: Equation) -> tuple[Program, Sequence[Value]]:
    """Return the program from operands and derivatives to derivatives, and its inputs of derivatives."""
    op = call.op
    if isinstance(op, CustomVjp):
        return backward_program(call, op)
    assert isinstance(op, CustomJvp)
    operands = [value.type for value in call.inputs]
    tangents = [type for type in operands if is_inexact(type.dtype)]

    def run(*arrays: Any) -> list[Any]:
        rest = iter(arrays[len(operands) :])
        found = [next(rest) if is_inexact(type.dtype) else None for type in operands]
        return [x for x in op.rule.jvp(arrays[: len(operands)], found)[1] if x is not None]

    program = dce(inline(build(run, [*operands, *tangents], op.program.name)[0]))
    return program, program.inputs[len(operands) : len(operands) + len(tangents)]


def _problem(
    rule: tuple[Program, Sequence[Value]], larger: tuple[Program, Sequence[Value]], counts: tuple[int, int]
) -> str:
    """Return why a rule may not run for microbatches; empty if it may."""
    (program, derivatives), (other, _) = rule, larger
    equations = unfold(program).equations
    with_rows = [
        (value, dim)
        for value, compared in zip(program.inputs, other.inputs, strict=False)
        for dim, sizes in enumerate(zip(value.type.shape, compared.type.shape, strict=False))
        if len(set(sizes)) > 1
    ]
    if not with_rows:
        return "" if program == other else "depends on the number of rows"
    rows = Rows.from_dims(with_rows, equations, counts[0])
    if not Comparison(rows, counts[1]).are_equal(program, other):
        return "depends on the number of rows"
    dependent, sums = set(derivatives), set[Value]()
    for equation in equations:
        is_dependent = not dependent.isdisjoint(equation.inputs)
        if is_dependent:
            dependent.update(equation.outputs)
        has_rows = any(rows.dims(value) for value in (*equation.inputs, *equation.outputs))
        if has_rows and not sums.isdisjoint(equation.inputs):
            return f"computes rows from a sum over rows in `{equation.op.name}` at {equation.source}"
        if has_rows and not rows.pass_through(equation):
            if not is_dependent or rows.reduction(equation) is not SUM:
                return f"mixes rows in `{equation.op.name}` at {equation.source}"
            sums.update(equation.outputs)
        elif not sums.isdisjoint(equation.inputs):
            sums.update(equation.outputs)
    return ""
