"""transpose: the transpose of a linear program, from cotangents of its outputs to cotangents of its linear inputs."""

from collections.abc import Sequence
from typing import Any

from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.dispatch import resolve_shardings
from shardwise.compiler.ir.masks import drop_none, insert_none, present_mask
from shardwise.compiler.ir.op import Op, UndefinedPrimal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.elementwise.arithmetic import add_tangents
from shardwise.compiler.ops.placement.reshard import cotangent_type
from shardwise.compiler.ops.placement.retype import match_cotangent_type
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.dce import live_equations
from shardwise.compiler.transforms.jvp import instantiate_zeros
from shardwise.compiler.transforms.memoize import memoized
from shardwise.compiler.transforms.replay import for_each_equation


def transpose(program: Program, linear: Sequence[bool], known: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """Compute the cotangents (None is zero) of a program's linear inputs in the open frame.

    Args:
        program: the program.
        linear: for each input, whether the program is linear in it.
        known: the values of the other inputs.
        cotangents: the cotangents of the outputs (None is zero).
    """
    rest = iter(known)
    env: dict[Value, Any] = {
        value: UndefinedPrimal(value.type) if is_linear else next(rest)
        for value, is_linear in zip(program.inputs, linear, strict=True)
    }
    linear_equations: list[Equation] = []

    def forward(equation: Equation) -> None:
        operands = [env[value] for value in equation.inputs]
        if any(isinstance(x, UndefinedPrimal) for x in operands):
            linear_equations.append(equation)
            env.update((value, UndefinedPrimal(value.type)) for value in equation.outputs)
            known_part = _known_part(equation, [isinstance(x, UndefinedPrimal) for x in operands])
            if known_part is None:
                return
            equation, operands = known_part, [env[value] for value in known_part.inputs]
        results = equation.op(*operands)
        env.update(zip(equation.outputs, (results,) if equation.op.single else results, strict=True))

    cotangent_of: dict[Value, Any] = {}
    inputs = frozenset(program.inputs)

    def add(value: Value, cotangent: Operand) -> None:
        """Add to the cotangent of a value, which may be sharded along more axes if the value is an intermediate."""
        total = cotangent_of.get(value)
        cotangent = match_cotangent_type(cotangent, value.type, may_stay_sharded=value not in inputs)
        if total is not None and total.type.explicit != cotangent.type.explicit:
            total, cotangent = (match_cotangent_type(x, value.type) for x in (total, cotangent))
        cotangent_of[value] = add_tangents(total, cotangent)

    def take(value: Value, op: Op) -> Any:
        """Return the cotangent of a result, in the type that the nested programs of the op expect."""
        cotangent = cotangent_of.pop(value, None)
        return match_cotangent_type(cotangent, value.type) if op.programs and cotangent is not None else cotangent

    def backward(equation: Equation) -> None:
        out_cotangents = [take(value, equation.op) for value in equation.outputs]
        if all(cotangent is None for cotangent in out_cotangents):
            return
        operands = [env[value] for value in equation.inputs]
        _check_linear(equation, [isinstance(x, UndefinedPrimal) for x in operands])
        in_cotangents = equation.op.transpose(out_cotangents[0] if equation.op.single else out_cotangents, *operands)
        for value, operand, cotangent in zip(equation.inputs, operands, in_cotangents, strict=True):
            if isinstance(operand, UndefinedPrimal) and cotangent is not None:
                add(value, cotangent)

    with resolve_shardings():
        for_each_equation(program.equations, forward)
        for value, cotangent in zip(program.outputs, cotangents, strict=True):
            if cotangent is not None and isinstance(env[value], UndefinedPrimal):
                add(value, cotangent)
        for_each_equation(reversed(linear_equations), backward)
    return [cotangent_of.get(value) for value, is_linear in zip(program.inputs, linear, strict=True) if is_linear]


def _known_part(equation: Equation, undefined: Sequence[bool]) -> Equation | None:
    """Return the part of a control op that computes the results which do not depend on undefined operands.

    A loop may carry coefficients beside the values in which it is linear. Later equations multiply by the coefficients.
    """
    op = equation.op
    if not isinstance(op, Control):
        return None
    marks = op.propagate_marks(undefined, lambda n, entries: op.programs[n].outputs_depending_on(entries))
    dependent = op.endpoint_marks(marks, "result")
    known = [value for value, is_dependent in zip(equation.outputs, dependent, strict=True) if not is_dependent]
    if not known:
        return None
    (part,) = live_equations([equation], known)
    unknown = {value for value, is_undefined in zip(equation.inputs, undefined, strict=True) if is_undefined}
    return part if unknown.isdisjoint(part.inputs) else None


def _check_linear(equation: Equation, undefined: Sequence[bool]) -> None:
    """Raise an error if the op of an equation is not jointly linear in its undefined operands.

    Raises:
        ValueError: if the op has a derivative in forward mode only.
        TypeError: if the op is not linear.
    """
    op = equation.op
    if op.irreversible:
        raise ValueError(
            f"`{op.name}` at {equation.source} cannot be differentiated in reverse mode: {op.irreversible}"
        )
    groups = op.linear_in(*(value.type for value in equation.inputs))
    numbers = {index for index, is_undefined in enumerate(undefined) if is_undefined}
    has_rule = type(op).transpose is not Op.transpose
    if not has_rule or (groups and not any(numbers <= set(group) for group in groups)):
        raise TypeError(
            f"`{op.name}` at {equation.source} is not linear in the operands that are being transposed, "
            "so it has no transpose"
        )


@memoized(maxsize=4096)
@verifies_result
def transpose_program(
    program: Program, linear: tuple[bool, ...], cotangents: tuple[bool, ...], instantiate: tuple[bool, ...] = ()
) -> tuple[Program, tuple[bool, ...]]:
    """Transpose a program.

    Args:
        program: the program.
        linear: for each input, whether the program is linear in it.
        cotangents: for each output, whether its cotangent is nonzero.
        instantiate: for each linear input, whether it gets a cotangent even if the cotangent is zero.

    Returns:
        The program (known inputs, nonzero cotangents) → nonzero cotangents of the linear inputs; and for each linear
        input, whether it gets a cotangent.
    """
    nonzero: tuple[bool, ...] = ()
    count = linear.count(False)
    linear_types = [cotangent_type(t) for t, is_linear in zip(program.in_types, linear, strict=True) if is_linear]

    def body(*args: Operand) -> list[Any]:
        nonlocal nonzero
        in_cotangents = transpose(program, linear, args[:count], insert_none(args[count:], cotangents))
        in_cotangents = instantiate_zeros(in_cotangents, instantiate, linear_types)
        nonzero = present_mask(in_cotangents)
        return drop_none(in_cotangents)

    known_types = [type for type, is_linear in zip(program.in_types, linear, strict=True) if not is_linear]
    cotangent_types = [
        cotangent_type(type) for type, is_nonzero in zip(program.out_types, cotangents, strict=True) if is_nonzero
    ]
    return rewrite(f"transpose_{program.name}", [*known_types, *cotangent_types], body), nonzero
