"""Replan a sharded program with one more constraint or with other input layouts, to measure the effect."""

from collections.abc import Mapping
from dataclasses import replace

from shardwise.compiler.candidates.layout_problem import LayoutProblem, rebuild
from shardwise.compiler.ir.program import NOWHERE, Equation, Program, Value
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.partition.partitioned_program import PartitionedProgram
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.shardings.layout import Layout, Pin


def replan_with_pin(
    problem: LayoutProblem, value: Value, layout: Layout, chip: Chip, requested_by: str = ""
) -> PartitionedProgram:
    """Replan the program with `value` pinned to `layout`. `requested_by` names the pin in reasons."""
    constrain = Constrain(layout.dims, problem.mesh, requested_by=requested_by)
    program = _constrain_value(problem.program, value, constrain)
    constrained = rebuild(problem, program)
    plan = choose(constrained, chip)
    return PartitionedProgram(constrained, plan, partition(constrained, plan))


def replan_with_inputs(problem: LayoutProblem, layouts: Mapping[Value, Layout], chip: Chip) -> LocalProgram:
    """Replan the program with other input layouts and return its local program. Inferred layouts are inferred again.

    An input that `in_shardings` constrains gets the new layout in that constraint too.
    """
    program = problem.program
    pins = [
        Pin(layouts[value], reason=pin.reason) if value in layouts else pin
        for value, pin in zip(program.inputs, problem.in_pins, strict=True)
    ]
    equations = []
    for equation in program.equations:
        match op := equation.op:
            case Constrain(is_in_sharding=True) if equation.inputs[0] in layouts:
                op = replace(op, dims=layouts[equation.inputs[0]].dims)
        equations.append(equation.replace(op=op))
    untyped = replace(problem, shardings={})
    replanned = rebuild(untyped, program.with_equations(equations), in_pins=pins, out_pins=problem.requested_out_pins)
    return partition(replanned, choose(replanned, chip))


def _constrain_value(program: Program, value: Value, constrain: Constrain) -> Program:
    """Replace `value` by a constrained copy in all its consumers, including consumers in nested programs."""
    constrained = Value(value.type)
    equations = []
    if value in program.inputs:
        source = next((equation.source for equation in program.equations if value in equation.inputs), NOWHERE)
        equations.append(Equation(constrain, [value], [constrained], source))
    for equation in program.equations:
        op = equation.op.map_programs(lambda inner: _constrain_value(inner, value, constrain))
        inputs = [constrained if operand is value else operand for operand in equation.inputs]
        equations.append(equation.replace(op=op, inputs=inputs))
        if value in equation.outputs:
            equations.append(Equation(constrain, [value], [constrained], equation.source))
    return program.with_equations(equations, (constrained if output is value else output for output in program.outputs))
