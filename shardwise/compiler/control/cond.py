"""cond: run one of several programs, selected by an index."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, final

import numpy as np

from shardwise.compiler.control.call import Call
from shardwise.compiler.control.data_dependent import DataDependentControl, select_per_device
from shardwise.compiler.control.region_boundary import Enter, Merge, Predicate
from shardwise.compiler.control.scan import vmap_by_scan
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.control import Binding, KeyTracker, entry, exit_, operand, result
from shardwise.compiler.ir.masks import drop_none, insert_none, present_mask
from shardwise.compiler.ir.op import (
    BatchAxis,
    Hlo,
    HloValue,
    NumpyArray,
    Primal,
    ProgramRunner,
    Shards,
    UndefinedPrimal,
)
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import StopGradient
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.placement.retype import zeros_of
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.linearize import linearize_program
from shardwise.compiler.transforms.transpose import transpose_program
from shardwise.compiler.transforms.vmap import vmap_program


@final
@record
class Cond(DataDependentControl):
    """Apply the branch with index `index` to the operands after it. `index` is operand 0, an i32 in range."""

    name = "cond"
    runs_one_program = True
    branches: tuple[Program, ...]
    may_diverge: bool = field(default=False, repr=False)

    @property
    def programs(self) -> tuple[Program, ...]:
        return self.branches

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        numbers = range(len(self.branches))
        first = self.branches[0]
        return (
            Binding(0, Predicate(), (operand(0),)),
            *(
                Binding(1, Enter(len(self.branches)), (operand(i + 1),), tuple(entry(i, n) for n in numbers))
                for i in range(len(first.inputs))
            ),
            *(
                Binding(2, Merge(), tuple(exit_(i, n) for n in numbers), (result(i),))
                for i in range(len(first.outputs))
            ),
        )

    @property
    def const_groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        return ((1, tuple(range(len(self.branches)))),) * len(self.branches)

    def with_programs(self, programs: Sequence[Program], counts: Sequence[int] | None = None) -> "Cond":
        return Cond(tuple(programs), self.may_diverge)

    def allowing_divergence(self) -> "Cond":
        return replace(self, may_diverge=True)

    def track_keys(
        self, uses: KeyTracker, operands: list[NumpyArray | None], types: Sequence[ArrayType]
    ) -> list[NumpyArray | None]:
        return uses.run_branches(self.branches, operands[1:], types)

    def interpret(self, run: ProgramRunner, operands: list[Shards], devices: int = 1) -> list[Shards]:
        indices = self.choice_per_device(operands[0])
        results = run(indices[0], operands[1:])
        for index in sorted(set(indices) - {indices[0]}):
            results = select_per_device(indices, index, run(index, operands[1:]), results)
        return results

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Each branch saves its own residuals. Branches share result slots for residuals of the same type."""
        active = self.active_bindings(tangents, linearizing=True)
        linearized = [
            linearize_program(branch, self.endpoint_marks(active, "entry", n), self.endpoint_marks(active, "exit", n))
            for n, branch in enumerate(self.branches)
        ]
        count = len(self.branches[0].outputs)
        slots, residuals = _assign_residuals([forward for forward, _, _ in linearized], count)
        forwards = [
            _forward_branch(forward, count, own, slots)
            for (forward, _, _), own in zip(linearized, residuals, strict=True)
        ]
        results = Cond(tuple(forwards))(*primals)
        active_operands = self.endpoint_marks(active, "operand")
        active_tangents = [x for x, is_active in zip(tangents, active_operands, strict=True) if is_active]
        # All linear branches have the same operands: the operands that any branch saves, all slots, and the tangents.
        kept_operands = sorted({r.number for own in residuals for r in own if not r.is_slot})
        saved = [*(primals[number + 1] for number in kept_operands), *results[count:]]
        linear_branches = []
        for (_, linear, _), own in zip(linearized, residuals, strict=True):
            positions = [len(kept_operands) + r.number if r.is_slot else kept_operands.index(r.number) for r in own]
            linear_branches.append(_linear_branch(linear, positions, [x.type for x in saved]))
        out_tangents = Cond(tuple(linear_branches))(primals[0], *saved, *active_tangents)
        return results[:count], insert_none(out_tangents, self.endpoint_marks(active, "result"))

    def transpose(self, cotangent: Sequence[Operand | None], *operands: Primal) -> tuple[Any, ...]:
        index, *rest = operands
        if isinstance(index, UndefinedPrimal):
            raise TypeError("cond: cannot differentiate with respect to the branch index")
        linear = tuple(isinstance(x, UndefinedPrimal) for x in rest)
        nonzero = present_mask(cotangent)
        out_nonzero = [transpose_program(branch, linear, nonzero)[1] for branch in self.branches]
        instantiate = tuple(map(any, zip(*out_nonzero, strict=True)))
        branches = [transpose_program(branch, linear, nonzero, instantiate)[0] for branch in self.branches]
        known = [x for x in rest if not isinstance(x, UndefinedPrimal)]
        cotangents = Cond(tuple(branches))(index, *known, *drop_none(cotangent))
        return (None, *insert_none(insert_none(cotangents, instantiate), linear))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        index, *rest = operands
        if dims[0] is None:
            return super().vmap(axis, operands, dims)
        if self.effect:
            return vmap_by_scan(self, axis, operands, dims)
        # The index is batched: run all branches, and select per batch element.
        results: list[Any] = []
        rest = [x if dim is None else batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(rest, dims[1:], strict=True)]
        rest_dims = tuple(None if dim is None else 0 for dim in dims[1:])
        for number, branch in enumerate(self.branches):
            is_selected = Compare("EQ")(index, full((axis.size,), number, np.int32))

            def select(x: Operand, y: Operand, is_selected: Operand = is_selected) -> Any:
                return Select()(Broadcast(x.type.shape, (0,))(is_selected), x, y)

            # The derivative of a branch that is not selected may be NaN or infinite, and must not reach the operands.
            operands = [
                select(x, StopGradient()(x)) if dim == 0 and is_inexact(x.type.dtype) else x
                for x, dim in zip(rest, rest_dims, strict=True)
            ]
            mapped, out_dims = vmap_program(branch, axis, rest_dims)
            outputs = Call(mapped)(*operands)
            outputs = [batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(outputs, out_dims, strict=True)]
            results = list(map(select, outputs, results)) if results else outputs
        result_dims: list[int | None] = [0] * len(results)
        for number, source in enumerate(self._forwarded_operands()):
            if source is not None and rest_dims[source] is None:
                results[number], result_dims[number] = rest[source], None
        return results, result_dims

    def _forwarded_operands(self) -> list[int | None]:
        """Return, for each result, the index of the operand that all branches return for it; None if there is none."""
        columns = zip(*(self._input_numbers(branch) for branch in self.branches), strict=True)
        return [column[0] if len(set(column)) == 1 else None for column in columns]

    @staticmethod
    def _input_numbers(branch: Program) -> list[int | None]:
        numbers = {value: index for index, value in enumerate(branch.inputs)}
        return [numbers.get(value) for value in branch.outputs]

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        index, *rest = operands
        return hlo.branch(
            index, [partial(hlo.program, branch, rest) for branch in self.branches], self.effect == "ordered"
        )


class _Residual(NamedTuple):
    """The location of a branch's residual: the operand of the branch, or the result slot, with index `number`."""

    is_slot: bool
    number: int


def _assign_residuals(forwards: Sequence[Program], count: int) -> tuple[list[ArrayType], list[list[_Residual]]]:
    """Assign the residuals of each branch (its outputs from `count` on) to its operands or to result slots.

    Returns:
        The types of the slots, and the residuals of each branch.
    """
    slots: list[ArrayType] = []
    residuals = []
    for forward in forwards:
        free: dict[ArrayType, list[int]] = defaultdict(list)
        for index, type in enumerate(slots):
            free[type].append(index)
        own: list[_Residual] = []
        for value in forward.outputs[count:]:
            if value in forward.inputs:
                own.append(_Residual(False, forward.inputs.index(value)))
                continue
            if not free[value.type]:
                free[value.type].append(len(slots))
                slots.append(value.type)
            own.append(_Residual(True, free[value.type].pop(0)))
        residuals.append(own)
    return slots, residuals


def _forward_branch(
    forward: Program, count: int, residuals: Sequence[_Residual], slots: Sequence[ArrayType]
) -> Program:
    """Build a branch that returns its results and then all slots: its own residuals, and zeros in the other slots."""

    def body(*args: Operand) -> list[Any]:
        outputs = Call(forward)(*args)
        filled = {r.number: x for r, x in zip(residuals, outputs[count:], strict=True) if r.is_slot}
        return [*outputs[:count], *(filled[n] if n in filled else zeros_of(type) for n, type in enumerate(slots))]

    return rewrite(forward.name, forward.in_types, body)


def _linear_branch(linear: Program, positions: Sequence[int], saved: Sequence[ArrayType]) -> Program:
    """Return the linear part of a branch with inputs for all saved values; its residuals are at `positions`."""
    inputs: list[Value] = [Value(type) for type in saved]
    for position, value in zip(positions, linear.inputs, strict=False):
        inputs[position] = value
    return replace(linear, inputs=(*inputs, *linear.inputs[len(positions) :]))
