"""hoist: move loop-invariant conversions to a smaller dtype out of scans.

A loop that converts its weights from f32 to bf16 in every iteration gets them as bf16 instead: half the bytes are
gathered for it, and held while it runs. Other loop-invariant equations stay inside: XLA's loop-invariant code motion
hoists them, and the partitioner reshards loop-invariant values outside of the loop anyway.
"""

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.control.control import Control
from shardwise.compiler.ops.control.remat import Barrier
from shardwise.compiler.ops.control.scan import Scan
from shardwise.compiler.ops.elementwise.convert import Convert


@verifies_result
def hoist(program: Program) -> Program:
    """Hoist conversions out of the scans of a program, nested ones too.

    Returns:
        The program with the conversions before its loops; `program` itself if there are none.
    """
    equations: list[Equation] = []
    changed = False
    for equation in program.equations:
        op = equation.op
        if isinstance(op, Control):
            op = op.map_programs(hoist)
            hoisted, loop = _hoist_scan(equation, op) if isinstance(op, Scan) else ([], None)
            if loop is None and op is not equation.op:
                loop = equation.replace(op=op)
            changed |= loop is not None
            equations += [*hoisted, loop or equation]
        else:
            equations.append(equation)
    return program.with_equations(equations) if changed else program


def _hoist_scan(equation: Equation, op: Scan) -> tuple[list[Equation], Equation | None]:
    """Return the equations to place before a scan, and the scan that uses them; None if nothing can be hoisted."""
    body = op.program
    producers, conversions = _invariant_conversions(op)
    if op.length < 2 or not conversions:
        return [], None
    outside = dict(zip(body.inputs[: op.consts], equation.inputs, strict=False))
    hoisted: list[Equation] = []

    def hoist_value(value: Value) -> Value:
        """Return the value outside of the loop that equals `value`, adding the equations that compute it."""
        if value not in outside:
            producer = producers[value]
            inputs = [hoist_value(operand) for operand in producer.inputs]
            outside[value] = Value(value.type)
            hoisted.append(producer.replace(inputs=inputs, outputs=[outside[value]]))
        return outside[value]

    new_operands = [hoist_value(value) for value in conversions]
    removed = set(conversions)
    new_body = Program(
        (*body.inputs[: op.consts], *conversions, *body.inputs[op.consts :]),
        tuple(inner for inner in body.equations if removed.isdisjoint(inner.outputs)),
        body.outputs,
        body.name,
    )
    loop = Scan(new_body, op.length, op.consts + len(conversions), op.carried, op.reverse, op.unroll)
    inputs = (*equation.inputs[: op.consts], *new_operands, *equation.inputs[op.consts :])
    return hoisted, equation.replace(op=loop, inputs=inputs)


def _invariant_conversions(op: Scan) -> tuple[dict[Value, Equation], list[Value]]:
    """Find the loop-invariant conversions to a smaller dtype in the body of a scan.

    Returns:
        The cheap equations of the body that depend only on constants and loop-invariant inputs, by their result; and
        the results of those among them that convert a loop-invariant input to a smaller dtype.
    """
    body = op.program
    producers: dict[Value, Equation] = {}
    from_inputs = set(body.inputs[: op.consts])  # invariant inputs and values that depend on one, not on constants only
    conversions: list[Value] = []
    for inner in body.equations:
        if (
            not inner.op.cheap_to_recompute
            or isinstance(inner.op, Barrier)
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
