"""cond: one of several programs, by an index."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.op import BatchAxis, Hlo, ProgramRunner, Shards, UndefinedPrimal
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.call import Call, drop_none, insert_none, present_mask
from shardwise.compiler.ops.control.control import (
    Binding,
    DataDependentControl,
    entry,
    exit_,
    operand,
    result,
    select_per_device,
)
from shardwise.compiler.ops.control.region_boundary import Enter, Merge, Predicate
from shardwise.compiler.ops.control.retype import zeros_of
from shardwise.compiler.ops.control.scan import vmap_by_scan
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.shape.constants import full


@final
@record
class Cond(DataDependentControl):
    """The results of branch number `index` (operand 0, an i32 in range) on the other operands."""

    name = "cond"
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

    def interpret(self, run: ProgramRunner, operands: list[Shards], devices: int = 1) -> list[Shards]:
        ways = self.choice_per_device(operands[0])
        found = run(ways[0], operands[1:])
        for way in sorted(set(ways) - {ways[0]}):
            found = select_per_device(ways, way, run(way, operands[1:]), found)
        return found

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Each branch keeps residuals of its own, in slots that the branches share by type."""
        moving = self.active_bindings(tangents, linearizing=True)
        halves = [
            installed.transforms.linearize(
                branch, self.endpoint_marks(moving, "entry", n), self.endpoint_marks(moving, "exit", n)
            )
            for n, branch in enumerate(self.branches)
        ]
        count = len(self.branches[0].outputs)
        slots: list[ArrayType] = []
        places = []  # for each branch, where its residuals are: an operand that it takes, or a slot
        for forward, _, _ in halves:
            free: dict[ArrayType, list[int]] = defaultdict(list)
            for number, type in enumerate(slots):
                free[type].append(number)
            mine: list[tuple[str, int]] = []
            for value in forward.outputs[count:]:
                if value in forward.inputs:
                    mine.append(("operand", forward.inputs.index(value)))
                    continue
                if not free[value.type]:
                    free[value.type].append(len(slots))
                    slots.append(value.type)
                mine.append(("slot", free[value.type].pop(0)))
            places.append(mine)
        forwards = [_filling(half[0], count, mine, slots) for half, mine in zip(halves, places, strict=True)]
        results = Cond(tuple(forwards))(*primals)
        directions = [x for x, moves in zip(tangents, self.endpoint_marks(moving, "operand"), strict=True) if moves]
        taken = sorted({number for mine in places for kind, number in mine if kind == "operand"})
        kept = [*(primals[number + 1] for number in taken), *results[count:]]
        backs = []
        for (_, linear, _), mine in zip(halves, places, strict=True):
            where = [taken.index(number) if kind == "operand" else len(taken) + number for kind, number in mine]
            backs.append(_picking(linear, where, [x.type for x in kept], len(directions)))
        moved = Cond(tuple(backs))(primals[0], *kept, *directions)
        return results[:count], insert_none(moved, self.endpoint_marks(moving, "result"))

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        index, *rest = operands
        if isinstance(index, UndefinedPrimal):
            raise TypeError("cond: what chooses the branch cannot be differentiated")
        linear = tuple(isinstance(x, UndefinedPrimal) for x in rest)
        arrived = present_mask(cotangent)
        transpose = installed.transforms.transpose
        reached = [transpose(branch, linear, arrived)[1] for branch in self.branches]
        solid = tuple(map(any, zip(*reached, strict=True)))
        branches = [transpose(branch, linear, arrived, solid)[0] for branch in self.branches]
        known = [x for x in rest if not isinstance(x, UndefinedPrimal)]
        found = Cond(tuple(branches))(index, *known, *drop_none(cotangent))
        return (None, *insert_none(insert_none(found, solid), linear))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        index, *rest = operands
        if dims[0] is None:
            return super().vmap(axis, operands, dims)
        if self.effect:
            return vmap_by_scan(self, axis, operands, dims)
        # Each element goes its own way: all branches run, and each element takes the results of its own.
        places = tuple(dims[1:])
        results: list[Any] = []
        for number, branch in enumerate(self.branches):
            mapped, out_dims = installed.transforms.vmap(branch, axis, places)
            found = [batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(Call(mapped)(*rest), out_dims, strict=True)]
            here = Compare("EQ")(index, full((axis.size,), number, np.int32))
            results = (
                [Select()(Broadcast(x.type.shape, (0,))(here), x, y) for x, y in zip(found, results, strict=True)]
                if results
                else found
            )
        return results, [0] * len(results)

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        index, *rest = operands
        return hlo.branch(
            index, [partial(hlo.program, branch, rest) for branch in self.branches], self.effect == "ordered"
        )


def _filling(forward: Program, count: int, places: Sequence[tuple[str, int]], slots: Sequence[ArrayType]) -> Program:
    """A branch that gives its results and then its residuals, each in its slot, and zeros in the others' slots."""

    def body(*args: Any) -> list[Any]:
        found = Call(forward)(*args)
        held = {number: x for (kind, number), x in zip(places, found[count:], strict=True) if kind == "slot"}
        return [*found[:count], *(held[n] if n in held else zeros_of(type) for n, type in enumerate(slots))]

    return installed.transforms.rewrite(forward.name, forward.in_types, body)


def _picking(linear: Program, where: Sequence[int], kept: Sequence[ArrayType], tangents: int) -> Program:
    """The linear half of a branch, over what all branches kept."""
    inputs: list[Value] = [Value(type) for type in kept]
    for place, value in zip(where, linear.inputs, strict=False):
        inputs[place] = value
    return replace(linear, inputs=(*inputs, *linear.inputs[len(where) :]))
