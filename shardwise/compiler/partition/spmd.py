"""partition: the SPMD partitioner, from a sharded program and its plan to the program of one device.

For each equation the partitioner gets copies of the operands in the layouts that the plan chose (`copies`), masks the
padding that the op would read (`padding`), and emits the op on one device's shards by its `localize` rule.
"""

from dataclasses import replace
from typing import Any

from shardwise.base.config import config
from shardwise.compiler.candidates.layout_problem import LayoutProblem
from shardwise.compiler.candidates.unfold import BoundarySlot
from shardwise.compiler.control.manual import Manual
from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.partition.collective_cse import merge_equal_collectives
from shardwise.compiler.partition.copies import Copies, ShardedCopy, localize
from shardwise.compiler.partition.local_context import Scope
from shardwise.compiler.partition.local_program import LocalProgram, Placement, verify_local
from shardwise.compiler.partition.padding import Fills, Padding, result_fills, rule_of
from shardwise.compiler.partition.reason import OpSite, Site, inserted_because
from shardwise.compiler.plan.plan import Choice, LayoutPlan
from shardwise.compiler.plan.verify import verify_plan
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.trace.provenance import provenance
from shardwise.compiler.trace.tracer import Frame
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.host_copies import insert_host_copies
from shardwise.compiler.transforms.replay import restore_source


def partition(problem: LayoutProblem, plan: LayoutPlan, is_estimate: bool = False) -> LocalProgram:
    """Return the program of one device.

    Args:
        problem: the program and its candidates.
        plan: the layouts of all values.
        is_estimate: whether the result is only costed and never runs. Then it is verified only if the setting
            `verify_programs` is on.
    """
    verifies = not is_estimate or config.verify_programs
    program, mesh = problem.program, problem.mesh
    if not mesh.axis_names:
        inputs, outputs = (
            tuple(Placement(value.type, Layout.replicated(value.type.ndim)) for value in values)
            for values in (program.inputs, program.outputs)
        )
        local = LocalProgram(insert_host_copies(program, problem.host), mesh, inputs, outputs)
        return verify_local(local) if config.verify_programs else local
    if verifies:
        verify_plan(problem, plan)
    frame = Frame(program.name, stages_all=True)
    with frame.open(over=()), restore_source(), inserted_because(None):
        results = _Partitioner(problem, plan).run(Scope(frame))
    inputs = tuple(
        Placement(value.type, pin.layout, bool(pin.layout.partial))
        for value, pin in zip(program.inputs, problem.in_pins, strict=True)
    )
    outputs = tuple(
        Placement(value.type, layout, pin is not None and bool(pin.layout.partial))
        for value, layout, pin in zip(program.outputs, plan.outputs, problem.out_pins, strict=True)
    )
    local_program = dce(merge_equal_collectives(frame.program([frame.lift(result) for result in results])))
    local = LocalProgram(insert_host_copies(local_program, problem.host), mesh, inputs, outputs)
    return verify_local(local) if verifies else local


class _Partitioner:
    """A walk over the equations of a sharded program and of the programs that its control ops hold."""

    def __init__(self, problem: LayoutProblem, plan: LayoutPlan):
        self.problem = problem
        self.plan = plan
        self.mesh = problem.mesh
        self.padding = Padding(problem, plan)
        self.copies = Copies(problem, plan)

    def run(self, scope: Scope) -> list[Any]:
        """Emit the entire program, and return the shards of its outputs."""
        program = self.problem.program
        for index, (value, pin) in enumerate(zip(program.inputs, self.problem.in_pins, strict=True)):
            padded_shape = pin.layout.padded_shape(value.type.shape, self.mesh)
            tracer = scope.frame.input(value.type.with_shape(pin.layout.shard_shape(padded_shape, self.mesh)))
            copy = ShardedCopy(tracer, pin.layout, padded_shape, (None,) * value.type.ndim)
            self.copies.add(value, copy, pin.reason or f"input {index}")
        self._emit_program(program, scope)
        outputs = []
        for index, (value, layout) in enumerate(zip(program.outputs, self.plan.outputs, strict=True)):
            producer, out_pin = self.copies.producers.get(value), self.problem.out_pins[index]
            provenance.source = producer.source if producer else None
            consumer = (out_pin.reason if out_pin else "") or self.problem.out_names[index]
            padded_shape = layout.padded_shape(value.type.shape, self.mesh)
            outputs.append(self.copies.get(value, layout, padded_shape, consumer, scope).tracer)
        return outputs

    def _emit_program(self, program: Program, scope: Scope) -> None:
        """Emit the equations of a program. Free values are omitted: they are computed where they are needed."""
        for equation in program.equations:
            provenance.source = equation.source
            is_loop = False
            if equation in self.plan.choices:
                results = self._emit(equation, self.plan.choices[equation], scope)
            else:
                match op := equation.op:
                    case Manual():
                        results = self._emit_manual(equation, op, scope)
                    case Control():
                        results = self._emit_control(equation, op, scope)
                        is_loop = op.trip_count != 1
                    case _:
                        continue
            for value, copy in zip(equation.outputs, results, strict=True):
                self.copies.add(value, copy, OpSite.from_equation(equation, after_loop=is_loop))

    def _site(self, equation: Equation, consumer: Equation, is_output: bool = False) -> OpSite:
        """Return the site of an equation whose operand is read, by itself or by its boundary equation `consumer`."""
        return OpSite.from_equation(equation, is_output, exceeds_memory=consumer in self.problem.reduced_for_memory)

    def _emit(self, equation: Equation, choice: Choice, scope: Scope) -> list[ShardedCopy]:
        """Emit one equation on shards of its operands."""
        rule, consumer = rule_of(equation), self._site(equation, equation)
        factor_sizes = self.padding.factor_sizes(equation, rule, choice)
        operands = []
        for value, layout, dims in zip(equation.inputs, choice.operands, rule.operands, strict=True):
            padded_shape = self.padding.padded_shape(value, rule, dims, layout, factor_sizes)
            copy = self.copies.get(value, layout, padded_shape, consumer, scope)
            for dim, factors in enumerate(dims):
                if factors and factors[0] in rule.reduce and copy.padded_shape[dim] != value.type.shape[dim]:
                    neutral = rule.reduce[factors[0]].neutral_scalar(value.type.dtype)
                    copy = self.copies.mask(value, copy, dim, neutral, consumer)
            operands.append(copy)
        padded_shapes = [
            self.padding.padded_shape(value, rule, dims, layout, factor_sizes)
            for value, dims, layout in zip(equation.outputs, rule.results, choice.results, strict=True)
        ]
        return localize(equation, rule, operands, choice.results, padded_shapes, self.mesh, scope)

    def _emit_control(self, equation: Equation, op: Control, scope: Scope) -> list[ShardedCopy]:
        """Emit a control op with its programs partitioned.

        Values enter and leave the programs in the layouts of the region boundary equations.
        """
        boundary = self.problem.unfolded.boundaries[equation]
        passed: dict[BoundarySlot, ShardedCopy] = {}  # the operands of boundary equations

        def pass_operand(value: Value, slot: BoundarySlot, consumer: Site, scope: Scope) -> Any:
            rule = rule_of(slot.equation)
            choice = self.plan.choices[slot.equation]
            layout = choice.operands[slot.number]
            sizes = self.padding.factor_sizes(slot.equation, rule, choice)
            padded_shape = self.padding.padded_shape(value, rule, rule.operands[slot.number], layout, sizes)
            passed[slot] = self.copies.get(value, layout, padded_shape, consumer, scope)
            return passed[slot].tracer

        def receive_result(value: Value, slot: BoundarySlot, tracer: Operand | None, scope: Scope) -> ShardedCopy:
            """Return a copy of a boundary equation's result; without a tracer, a new input of the frame's program."""
            rule = rule_of(slot.equation)
            choice = self.plan.choices[slot.equation]
            layout = choice.results[slot.number]
            sizes = self.padding.factor_sizes(slot.equation, rule, choice)
            padded_shape = self.padding.padded_shape(value, rule, rule.results[slot.number], layout, sizes)
            slots = [BoundarySlot(slot.equation, index) for index in range(len(slot.equation.inputs))]
            fills: Fills = (None,) * value.type.ndim
            if all(other in passed for other in slots):
                operand_fills = [passed[other].fills for other in slots]
                fills = result_fills(slot.equation, rule, slot.number, operand_fills, padded_shape)
            if tracer is None:
                tracer = scope.frame.input(value.type.with_shape(layout.shard_shape(padded_shape, self.mesh)))
            return ShardedCopy(tracer, layout, padded_shape, fills)

        site = OpSite.from_equation(equation)
        operands = [
            pass_operand(value, slot, site, scope)
            for value, slot in zip(equation.inputs, boundary.operands, strict=True)
        ]
        programs = []
        for program, entries, exits in zip(op.programs, boundary.entries, boundary.exits, strict=True):
            inner = replace(scope, frame=Frame(program.name, stages_all=True))
            with inner.frame.open(over=()):
                for value, slot in zip(program.inputs, entries, strict=True):
                    self.copies.add(value, receive_result(value, slot, None, inner), site)
                self._emit_program(program, inner)
                provenance.source = equation.source
                outputs = [
                    pass_operand(value, slot, self._site(equation, slot.equation, is_output=True), inner)
                    for value, slot in zip(program.outputs, exits, strict=True)
                ]
                programs.append(inner.frame.program([inner.frame.lift(output) for output in outputs]))
        local_op = op.with_programs(programs)
        results = (local_op.allowing_divergence() if scope.manual_axes else local_op)(*operands)
        provenance.source = equation.source
        return [
            receive_result(value, slot, tracer, scope)
            for value, slot, tracer in zip(equation.outputs, boundary.results, results, strict=True)
        ]

    def _emit_manual(self, equation: Equation, op: Manual, scope: Scope) -> list[ShardedCopy]:
        """Inline the equations of a manual region: its program is already a local program."""
        boundary = self.problem.unfolded.boundaries[equation]

        def cross_boundary(value: Value, crossed: Value, slot: BoundarySlot, consumer: Site) -> ShardedCopy:
            """Return a copy of `value` as a copy of `crossed`, the same value on the other side of the boundary."""
            rule, choice = rule_of(slot.equation), self.plan.choices[slot.equation]
            before, after = choice.operands[0], choice.results[0]
            padded_shape = self.padding.padded_shape(value, rule, rule.operands[0], before)
            copy = self.copies.get(value, before, padded_shape, consumer, scope)
            padded_shape = self.padding.padded_shape(crossed, rule, rule.results[0], after)
            fills = result_fills(slot.equation, rule, 0, [copy.fills], padded_shape)
            return ShardedCopy(copy.tracer, after, padded_shape, fills)

        for outer, inner, slot in zip(equation.inputs, op.program.inputs, boundary.operands, strict=True):
            copy = cross_boundary(outer, inner, slot, OpSite.from_equation(equation))
            self.copies.add(inner, copy, self.copies.producer_site(outer))
        self._emit_program(op.program, replace(scope, manual_axes={**scope.manual_axes, **op.mesh_axes}))
        provenance.source = equation.source
        return [
            cross_boundary(inner, outer, slot, OpSite.from_equation(equation, is_output=True))
            for inner, outer, slot in zip(op.program.outputs, equation.outputs, boundary.results, strict=True)
        ]
