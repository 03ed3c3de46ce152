"""hoist: move loop-invariant conversions to a smaller dtype out of loops with a known trip count.

A loop that converts its weights from f32 to bf16 in every iteration receives them as bf16 instead. This halves the
bytes that are gathered for the loop and held while it runs. Other loop-invariant equations stay inside: XLA's
loop-invariant code motion hoists them, and the partitioner reshards loop-invariant values outside the loop in any case.
"""

from shardwise.compiler.ir.control import Control, Port
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.elementwise.convert import Convert


@verifies_result
def hoist(program: Program) -> Program:
    """Hoist conversions out of the loops of a program, including nested loops.

    Returns:
        The program with the conversions before its loops; `program` itself if there are none.
    """
    equations: list[Equation] = []
    changed = False
    for equation in program.equations:
        op = equation.op
        if isinstance(op, Control):
            op = op.map_programs(hoist)
            hoisted, loop = _hoist_loop(equation, op) if (op.trip_count or 0) > 1 else ([], None)
            if loop is None and op is not equation.op:
                loop = equation.replace(op=op)
            changed |= loop is not None
            equations += [*hoisted, loop or equation]
        else:
            equations.append(equation)
    return program.with_equations(equations) if changed else program


def _hoist_loop(equation: Equation, op: Control) -> tuple[list[Equation], Equation | None]:
    """Return the equations to place before a loop, and the loop that uses them; None if nothing can be hoisted."""
    (body,) = op.programs
    ((const_group, _),) = op.const_groups
    ports = op.ports(equation.inputs, [body.inputs], [body.outputs])
    outside: dict[Value, Value] = {port.entries[0]: port.operand for port in ports if port.group == const_group}
    producers, conversions = _invariant_conversions(body, set(outside))
    if not conversions:
        return [], None
    hoisted: list[Equation] = []

    def hoist_value(value: Value) -> Value:
        """Return the equal value outside the loop, adding the equations that compute it."""
        if value not in outside:
            producer = producers[value]
            inputs = [hoist_value(operand) for operand in producer.inputs]
            outside[value] = Value(value.type)
            hoisted.append(producer.replace(inputs=inputs, outputs=[outside[value]]))
        return outside[value]

    new_ports = [Port(const_group, hoist_value(value), {0: value}) for value in conversions]
    removed = set(conversions)
    new_body = body.with_equations([inner for inner in body.equations if removed.isdisjoint(inner.outputs)])
    loop, operands, _ = op.rebuild([*ports, *new_ports], [new_body])
    return hoisted, equation.replace(op=loop, inputs=operands)


def _invariant_conversions(body: Program, consts: set[Value]) -> tuple[dict[Value, Equation], list[Value]]:
    """Find the loop-invariant conversions to a smaller dtype in a loop's body, whose invariant inputs are `consts`.

    Returns:
        The cheap equations of the body that depend only on constants and loop-invariant inputs, by their result; and
        the results that convert a loop-invariant input to a smaller dtype.
    """
    producers: dict[Value, Equation] = {}
    from_inputs = set(consts)  # invariant inputs, and values that depend on one
    conversions: list[Value] = []
    for inner in body.equations:
        if (
            not inner.op.cheap_to_recompute
            or inner.op.fusion.is_barrier
            or not all(x in producers or x in from_inputs for x in inner.inputs)
        ):
            continue
        (result,) = inner.outputs
        producers[result] = inner
        if not from_inputs.isdisjoint(inner.inputs):
            from_inputs.add(result)
            if isinstance(inner.op, Convert) and result.type.nbytes < inner.inputs[0].type.nbytes:
                conversions.append(result)
    return producers, conversions
