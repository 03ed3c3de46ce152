"""again: a sharded program planned once more with one more constraint, to know what it would change."""

from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.control.control import Control
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.plan.hardware import Chip
from shardwise.compiler.propagate.propagate import ShardedProgram, propagate
from shardwise.compiler.shardings.layout import Layout

_EQUATIONS = 20_000  # that are planned again at most, all tries together


def replan_limit(sharded: ShardedProgram, fewest: int, most: int) -> int:
    """How many plans can be made, of a program of this size, without one waiting for them."""
    return max(fewest, min(most, _EQUATIONS // max(1, len(sharded.unfolded.equations))))


def replan_with_pin(sharded: ShardedProgram, value: Value, layout: Layout, chip: Chip) -> LocalProgram:
    """What each device would do if `value` were pinned to `layout`."""
    program = _pinned(sharded.program, value, Constrain(layout.dims, sharded.mesh))
    again = propagate(program, sharded.mesh, sharded.in_pins, sharded.out_pins)
    return partition(again, choose(again, chip))


def _pinned(program: Program, value: Value, op: Constrain) -> Program:
    """The program in which all who use `value` use it constrained; in programs that ops hold too."""
    new = Value(value.type)
    pin = Equation(op, [value], [new])
    equations = [pin] if value in program.inputs else []
    for equation in program.equations:
        held = equation.op
        if isinstance(held, Control):
            held = held.map_programs(lambda inner: _pinned(inner, value, op))
        inputs = [new if operand is value else operand for operand in equation.inputs]
        equations.append(equation.replace(op=held, inputs=inputs))
        if value in equation.outputs:
            pin = Equation(op, [value], [new], equation.source)
            equations.append(pin)
    outputs = tuple(new if output is value else output for output in program.outputs)
    return program.with_equations(equations, outputs)
