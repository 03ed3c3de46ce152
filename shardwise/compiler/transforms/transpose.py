"""transpose: a linear program backwards, from cotangents of its outputs to cotangents of its linear inputs."""

from collections.abc import Sequence
from typing import Any

from shardwise.compiler.ir.op import Op, UndefinedPrimal
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.control.call import drop_none, insert_none, present_mask
from shardwise.compiler.ops.control.retype import match_cotangent_type
from shardwise.compiler.ops.elementwise.arithmetic import add_tangents
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.jvp import instantiate_zeros
from shardwise.compiler.transforms.memoize import memoized
from shardwise.compiler.transforms.replay import for_each_equation


def transpose(program: Program, linear: Sequence[bool], known: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """Cotangents (None is zero) of the linear inputs, played into the open frame; `known` are the other inputs."""
    rest = iter(known)
    env: dict[Value, Any] = {
        value: UndefinedPrimal(value.type) if is_linear else next(rest)
        for value, is_linear in zip(program.inputs, linear, strict=True)
    }
    backwards: list[Equation] = []

    def forward(equation: Equation) -> None:
        operands = [env[value] for value in equation.inputs]
        if any(isinstance(x, UndefinedPrimal) for x in operands):
            backwards.append(equation)
            env.update((value, UndefinedPrimal(value.type)) for value in equation.outputs)
        else:
            results = equation.op(*operands)
            env.update(zip(equation.outputs, (results,) if equation.op.single else results, strict=True))

    flowing: dict[Value, Any] = {}

    def backward(equation: Equation) -> None:
        arrived = [flowing.pop(value, None) for value in equation.outputs]
        if all(cotangent is None for cotangent in arrived):
            return
        operands = [env[value] for value in equation.inputs]
        _check_linear(equation, [isinstance(x, UndefinedPrimal) for x in operands])
        sent = equation.op.transpose(arrived[0] if equation.op.single else arrived, *operands)
        for value, operand, cotangent in zip(equation.inputs, operands, sent, strict=True):
            if isinstance(operand, UndefinedPrimal) and cotangent is not None:
                flowing[value] = add_tangents(flowing.get(value), match_cotangent_type(cotangent, value.type))

    for_each_equation(program.equations, forward)
    for value, cotangent in zip(program.outputs, cotangents, strict=True):
        if cotangent is not None and isinstance(env[value], UndefinedPrimal):
            flowing[value] = add_tangents(flowing.get(value), match_cotangent_type(cotangent, value.type))
    for_each_equation(reversed(backwards), backward)
    return [flowing.get(value) for value, is_linear in zip(program.inputs, linear, strict=True) if is_linear]


def _check_linear(equation: Equation, unknown: Sequence[bool]) -> None:
    """An op that is linear in none of the operands together that are unknown cannot be transposed."""
    op = equation.op
    if op.irreversible:
        raise TypeError(f"`{op.name}` at {equation.source} cannot be differentiated in reverse mode: {op.irreversible}")
    groups = op.linear_in(*(value.type for value in equation.inputs))
    wanted = {number for number, is_unknown in enumerate(unknown) if is_unknown}
    has_rule = type(op).transpose is not Op.transpose
    if not has_rule or (groups and not any(wanted <= set(group) for group in groups)):
        raise TypeError(f"`{op.name}` at {equation.source} is not linear in what it is given, so it has no transpose")


@memoized(maxsize=4096)
@verifies_result
def transpose_program(
    program: Program, linear: tuple[bool, ...], cotangents: tuple[bool, ...], instantiate: tuple[bool, ...] = ()
) -> tuple[Program, tuple[bool, ...]]:
    """(known inputs, cotangents that are there) → cotangents of the linear inputs that get one; and which these are.

    Linear inputs marked in `instantiate` (one mark for each) get a cotangent even where it is zero.
    """
    moving: tuple[bool, ...] = ()
    count = linear.count(False)

    def body(*args: Any) -> list[Any]:
        nonlocal moving
        found = transpose(program, linear, args[:count], insert_none(args[count:], cotangents))
        found = instantiate_zeros(
            found, instantiate, [t for t, is_linear in zip(program.in_types, linear, strict=True) if is_linear]
        )
        moving = present_mask(found)
        return drop_none(found)

    known = [type for type, is_linear in zip(program.in_types, linear, strict=True) if not is_linear]
    arriving = [type for type, here in zip(program.out_types, cotangents, strict=True) if here]
    return rewrite(f"transpose_{program.name}", [*known, *arriving], body), moving
