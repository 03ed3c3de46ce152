"""hoist: move loop-invariant conversions to a smaller dtype out of loops with a known trip count.

A loop that converts its weights from f32 to bf16 in every iteration receives them as bf16 instead. This halves the
bytes that are gathered for the loop and held while it runs. Other loop-invariant equations stay inside: XLA's
loop-invariant code motion hoists them, and the partitioner reshards loop-invariant values outside the loop in any case.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial

from shardwise.compiler.ir.control import Control, Port
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.ops.shape.movement import Transpose
from shardwise.compiler.ops.shape.slicing import Reverse, Slice

_KEPT = (Broadcast, Reverse, Slice, Transpose)  # ops that are not worth hoisting themselves
_Find = Callable[[Program, set[Value]], tuple[dict[Value, Equation], list[Value]]]  # of a body and its constants


@verifies_result
def hoist(program: Program) -> Program:
    """Hoist conversions out of the loops of a program, including nested loops.

    Returns:
        The program with the conversions before its loops; `program` itself if there are none.
    """
    return _hoist(program, _invariant_conversions)


@verifies_result
def hoist_as_xla(program: Program) -> Program:
    """Hoist what XLA's loop-invariant code motion hoists out of loops with a known trip count.

    XLA keeps constants, and most ops that only move values, in a loop, unless a hoisted op reads them.
    """
    return _hoist(program, _invariant_computations)


def _hoist(program: Program, find: _Find) -> Program:
    """Hoist the values that `find` returns out of the loops of a program, including nested loops."""
    equations: list[Equation] = []
    changed = False
    for equation in program.equations:
        op = equation.op
        if isinstance(op, Control):
            op = op.map_programs(partial(_hoist, find=find))
            # A pipelined scan, which has a program for each stage, is made after conversions are hoisted.
            can_hoist = (op.trip_count or 0) > 1 and len(op.programs) == 1
            hoisted, loop = _hoist_loop(equation, op, find) if can_hoist else ([], None)
            if loop is None and op is not equation.op:
                loop = equation.replace(op=op)
            changed |= loop is not None
            equations += [*hoisted, loop or equation]
        else:
            equations.append(equation)
    return program.with_equations(equations) if changed else program


def _hoist_loop(equation: Equation, op: Control, find: _Find) -> tuple[list[Equation], Equation | None]:
    """Return the equations to place before a loop, and the loop that uses them; None if nothing can be hoisted."""
    (body,) = op.programs
    ((const_group, _),) = op.const_groups
    ports = op.ports(equation.inputs, [body.inputs], [body.outputs])
    outside: dict[Value, Value] = {port.entries[0]: port.operand for port in ports if port.group == const_group}
    producers, invariants = find(body, set(outside))
    if not invariants:
        return [], None
    hoisted: list[Equation] = []
    computed: dict[tuple[Op, tuple[Value, ...]], Value] = {}  # the forward and the backward pass convert equal values

    def hoist_value(value: Value) -> Value:
        """Return the equal value outside the loop, adding the equations that compute it."""
        if value not in outside:
            producer = producers[value]
            inputs = tuple([hoist_value(operand) for operand in producer.inputs])
            key = (producer.op, inputs)
            if key not in computed:
                computed[key] = Value(value.type)
                hoisted.append(producer.replace(inputs=inputs, outputs=[computed[key]]))
            outside[value] = computed[key]
        return outside[value]

    new_ports = [Port(const_group, hoist_value(value), {0: value}) for value in invariants]
    removed = set(invariants)
    new_body = body.with_equations([inner for inner in body.equations if removed.isdisjoint(inner.outputs)])
    loop, operands, _ = op.rebuild([*ports, *new_ports], [new_body])
    return hoisted, equation.replace(op=loop, inputs=operands)


@verifies_result
def hoist_from_slices(program: Program, stacks: AbstractSet[Value]) -> Program:
    """Hoist the conversions of slices of loop-invariant stacks, such as the weights of layers.

    If an inner loop converts a slice of a stack in every iteration of an outer loop, the entire stack is converted
    before the outer loop. It is in memory during the loop, so this does not pay in general.

    Args:
        program: the program.
        stacks: the values of the program whose slices are converted.

    Returns:
        The program with the conversions before its loops; `program` itself if there are none.
    """
    moved = _convert_stacks(program, stacks, in_loop=False)
    return program if moved is program else hoist(moved)


def _convert_stacks(program: Program, stacks: AbstractSet[Value], in_loop: bool) -> Program:
    """Convert `stacks` before the loops that convert their slices, if the program itself runs in a loop."""
    equations: list[Equation] = []
    converted: dict[tuple[Op, Value], Value] = {}
    replaced: dict[Value, Value] = {}
    changed = False
    for equation in program.equations:
        op, extended = equation.op, None
        is_cond = op.runs_one_program
        if (
            isinstance(op, Control)
            and not (is_cond or op.trip_count is None)
            and not stacks.isdisjoint(equation.inputs)
        ):
            extended = _convert_slices(equation, op, stacks, converted, in_loop)
        if extended is None:
            equations.append(equation)
            continue
        changed = True
        conversions, loop, unchanged = extended
        equations += [*conversions, loop]
        replaced.update(unchanged)
    if not changed:
        return program
    equations = [e.replace(inputs=[replaced.get(value, value) for value in e.inputs]) for e in equations]
    return program.with_equations(equations, [replaced.get(value, value) for value in program.outputs])


def _convert_slices(
    equation: Equation, op: Control, stacks: AbstractSet[Value], converted: dict[tuple[Op, Value], Value], in_loop: bool
) -> tuple[list[Equation], Equation, dict[Value, Value]] | None:
    """Let a loop read slices of converted stacks.

    Args:
        equation: the loop.
        op: its op.
        stacks: the stacks to convert.
        converted: the stacks that were converted before, by the conversion and the stack; new ones are added.
        in_loop: whether the loop runs in a loop. If not, only the loops in its body are changed.

    Returns:
        The conversions, the loop, and the results that are equal to a converted stack, because they stack its slices
        again; None if the loop does not change.
    """
    (body,) = op.programs
    ports = op.ports(equation.inputs, [body.inputs], [body.outputs])
    results = iter(equation.outputs)
    result_of = {index: next(results) for index, port in enumerate(ports) if port.has_result}
    ((const_group, _),) = op.const_groups
    constants = {port.entries[0] for port in ports if port.group == const_group and port.operand in stacks}
    inner = _convert_stacks(body, constants, in_loop=True) if constants else body
    slices = {
        port.entries[0]: port
        for binding, port in zip(op.bindings, ports, strict=True)
        if in_loop and binding.boundary.reads_slices and port.operand in stacks
    }
    conversions: list[Equation] = []
    new_ports: dict[Value, Port] = {}
    for step in inner.equations:
        if isinstance(step.op, Convert) and (port := slices.get(step.inputs[0])) is not None:
            (result,) = step.outputs
            if result.type.nbytes < step.inputs[0].type.nbytes:
                key = (step.op, port.operand)
                if key not in converted:
                    converted[key] = Value(step.op.out_type(port.operand.type))
                    conversions.append(step.replace(inputs=[port.operand], outputs=[converted[key]]))
                new_ports[result] = Port(port.group, converted[key], {0: result})
    if inner is body and not new_ports:
        return None
    remaining = inner.with_equations([step for step in inner.equations if new_ports.keys().isdisjoint(step.outputs)])
    unchanged: dict[Value, Value] = {}
    for index, (binding, port) in enumerate(zip(op.bindings, ports, strict=True)):
        if binding.boundary.writes_slices and port.exits[0] in new_ports and port.has_result:
            unchanged[result_of[index]] = new_ports[port.exits[0]].operand
    loop, operands, _ = op.rebuild([*ports, *new_ports.values()], [remaining])
    return conversions, equation.replace(op=loop, inputs=operands), unchanged


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


def _invariant_computations(body: Program, consts: set[Value]) -> tuple[dict[Value, Equation], list[Value]]:
    """Find what XLA hoists out of a loop's body, whose invariant inputs are `consts`.

    Returns:
        The equations that depend only on constants and loop-invariant inputs, by their result; and the computed results
        that other equations of the body, or its outputs, read.
    """
    producers: dict[Value, Equation] = {}
    computed: set[Value] = set()
    uniform: set[Value] = set()  # constants whose elements are equal
    needed = set(body.outputs)
    for inner in body.equations:
        op = inner.op
        is_pure = op.single and not (op.effect or op.programs or op.fusion.is_barrier or isinstance(op, Collective))
        if not is_pure or not all(x in producers or x in consts for x in inner.inputs):
            needed.update(inner.inputs)
            continue
        (result,) = inner.outputs
        producers[result] = inner
        if isinstance(op, Full) or (inner.inputs and uniform.issuperset(inner.inputs)):
            uniform.add(result)
        is_slice = op.fusion.reads_part and uniform.issuperset(inner.inputs[1:])
        is_kept = op.is_constant or isinstance(op, _KEPT) or op.fusion.is_view or is_slice
        if not (is_kept or result in uniform):
            computed.add(result)
    for inner in reversed(body.equations):  # those that stay, as other equations read them
        stays = [value for value in inner.outputs if value in producers and value not in computed]
        if not needed.isdisjoint(stays):
            needed.update(inner.inputs)
    return producers, [value for value in producers if value in computed and value in needed]
