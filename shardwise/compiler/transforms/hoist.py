"""hoist: what a loop makes narrower anew each turn, though it does not change, is made narrower once, before it.

Weights that every turn of a loop converts from f32 to bf16 enter it as bf16: half as much is gathered for it, and held
while it runs. What else does not change inside a loop stays there: XLA takes it out by itself, and where a layout has
to change for it, that is done outside anyway.
"""

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.control.control import Control
from shardwise.compiler.ops.control.remat import Barrier
from shardwise.compiler.ops.control.scan import Scan
from shardwise.compiler.ops.elementwise.convert import Convert


@verifies_result
def hoist(program: Program) -> Program:
    """`program` with such conversions before its loops, and those of loops inside of them; the same where none is."""
    equations: list[Equation] = []
    changed = False
    for equation in program.equations:
        op = equation.op
        if isinstance(op, Control):
            op = op.map_programs(hoist)
            before, after = _lifted(equation, op) if isinstance(op, Scan) else ([], None)
            if after is None and op is not equation.op:
                after = equation.replace(op=op)
            changed |= after is not None
            equations += [*before, after or equation]
        else:
            equations.append(equation)
    return program.with_equations(equations) if changed else program


def _lifted(equation: Equation, op: Scan) -> tuple[list[Equation], Equation | None]:
    """What can be made narrower before a loop, and the loop that takes it; None where there is nothing."""
    body = op.program
    makers: dict[Value, Equation] = {}  # of what the body makes of constants and of what does not change, cheaply
    given = set(body.inputs[: op.consts])  # and what is made of that; the rest is made of constants alone
    wanted: list[Value] = []
    for inside in body.equations:
        if (
            not inside.op.cheap_to_recompute
            or isinstance(inside.op, Barrier)
            or not all(x in makers or x in given for x in inside.inputs)
        ):
            continue
        (result,) = inside.outputs
        makers[result] = inside
        if not given.isdisjoint(inside.inputs):
            given.add(result)
            if isinstance(inside.op, Convert) and result.type.nbytes < inside.inputs[0].type.nbytes:
                wanted.append(result)
    if op.length < 2 or not wanted:
        return [], None
    known = dict(zip(body.inputs[: op.consts], equation.inputs, strict=False))
    before: list[Equation] = []

    def made(value: Value) -> Value:
        """`value`, outside of the loop."""
        if value not in known:
            maker = makers[value]
            inputs = [made(operand) for operand in maker.inputs]
            known[value] = Value(value.type)
            before.append(maker.replace(inputs=inputs, outputs=[known[value]]))
        return known[value]

    taken = [made(value) for value in wanted]
    lifted = set(wanted)
    smaller = Program(
        (*body.inputs[: op.consts], *wanted, *body.inputs[op.consts :]),
        tuple(inside for inside in body.equations if lifted.isdisjoint(inside.outputs)),
        body.outputs,
        body.name,
    )
    loop = Scan(smaller, op.length, op.consts + len(wanted), op.carried, op.reverse, op.unroll)
    inputs = (*equation.inputs[: op.consts], *taken, *equation.inputs[op.consts :])
    return before, equation.replace(op=loop, inputs=inputs)
