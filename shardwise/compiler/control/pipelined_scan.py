"""pipelined_scan: a scan whose iterations overlap, so that communication runs beside the compute of other iterations.

The body of the scan is cut into three programs. In one iteration of XLA's loop, `fetch` runs for the next iteration,
`program` for this one, and `finish` for the one before. What they pass on is carried from iteration to iteration. The
schedule makes it of a scan in the program of one device; it has no transformation rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np

from shardwise.compiler.control.region_boundary import Carry, Enter, Stack, Unstack
from shardwise.compiler.control.scan import COUNTER, slice_at, update_at
from shardwise.compiler.ir.control import Binding, Control, entry, exit_, operand, result
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray, ProgramRunner, Shards
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ops.elementwise.select import lower_compare

# Two iterations of the scan are one of XLA's loop. What one passes on, the other reads, from a second buffer. With one
# iteration, the buffer would be written while it is read, and XLA would copy it.
_UNROLL = 2


@final
@record
class PipelinedScan(Control):
    """Run three programs `length` times. Operands and results are those of a scan; finished rows come last.

    - `fetch`: consts, slices → fetched values, which need no carry
    - `program`: consts, carry, slices, fetched values → carry, rows, pending values
    - `finish`: consts, pending values → finished rows, which no carry needs
    """

    name = "pipelined_scan"
    runs_programs_together = True
    fetch: Program
    program: Program
    finish: Program
    length: int
    consts: int
    carried: int
    reverse: bool = False

    @property
    def programs(self) -> tuple[Program, ...]:
        return (self.fetch, self.program, self.finish)

    @property
    def trip_count(self) -> int | None:
        return self.length

    def with_programs(self, programs: Sequence[Program], counts: Sequence[int] | None = None) -> "PipelinedScan":
        fetch, program, finish = programs
        return replace(self, fetch=fetch, program=program, finish=finish)

    @property
    def _pending(self) -> int:
        return len(self.finish.inputs) - self.consts

    @property
    def _rows(self) -> int:
        """The number of stacked results of `program`."""
        return len(self.program.outputs) - self.carried - self._pending

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        first, after = self.consts, self.consts + self.carried
        sliced = len(self.fetch.inputs) - first
        fetched, rows, pending = len(self.fetch.outputs), self._rows, self._pending
        return (
            *(Binding(0, Enter(3), (operand(i),), (entry(i, 0), entry(i, 1), entry(i, 2))) for i in range(first)),
            *(
                Binding(1, Carry(2), (operand(first + i), exit_(i, 1)), (entry(first + i, 1), result(i)))
                for i in range(self.carried)
            ),
            *(
                Binding(2, Unstack(self.length, 2), (operand(after + i),), (entry(first + i, 0), entry(after + i, 1)))
                for i in range(sliced)
            ),
            *(Binding(3, Enter(1), (exit_(i, 0),), (entry(after + sliced + i, 1),)) for i in range(fetched)),
            *(
                Binding(4, Stack(self.length), (exit_(self.carried + i, 1),), (result(self.carried + i),))
                for i in range(rows)
            ),
            *(
                Binding(5, Enter(1), (exit_(self.carried + rows + i, 1),), (entry(first + i, 2),))
                for i in range(pending)
            ),
            *(
                Binding(6, Stack(self.length), (exit_(i, 2),), (result(self.carried + rows + i),))
                for i in range(len(self.finish.outputs))
            ),
        )

    def interpret(self, run: ProgramRunner, operands: list[Shards], devices: int = 1) -> list[Shards]:
        after = self.consts + self.carried
        consts, carry, sliced = operands[: self.consts], operands[self.consts : after], operands[after:]
        rows: dict[int, list[Shards]] = {}
        steps = range(self.length)
        for step in reversed(steps) if self.reverse else steps:
            slices = [[shard[step] for shard in shards] for shards in sliced]
            outputs = run(1, [*consts, *carry, *slices, *run(0, [*consts, *slices])])
            carry, kept = outputs[: self.carried], outputs[self.carried : self.carried + self._rows]
            rows[step] = [*kept, *run(2, [*consts, *outputs[self.carried + self._rows :]])]
        stacked: list[list[NumpyArray]] = [
            [np.stack([rows[step][number][device] for step in steps]) for device in range(devices)]
            for number in range(self._rows + len(self.finish.outputs))
        ]
        return [*carry, *stacked]

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        after = self.consts + self.carried
        stacks = [hlo.constant(0, type) for type in self.out_types(*(x.type for x in operands))[self.carried :]]
        stages = _Stages(self, hlo, operands[: self.consts], operands[after:])
        # The first iteration finishes nothing, and the last one fetches nothing: they are outside the loop.
        first, last = int(bool(self.finish.outputs)), self.length - int(bool(self.fetch.outputs))
        state = _State(list(operands[self.consts : after]), stages.fetch(hlo.constant(0, COUNTER)), [], stacks)
        if first:
            state = stages.step(hlo.constant(0, COUNTER), state, fetches=self.length > 1, finishes=False)
        in_loop = max(0, last - first) // _UNROLL * _UNROLL
        if in_loop:
            state = self._loop(hlo, stages, state, first, first + in_loop)
        for number in range(first + in_loop, self.length):
            counter = hlo.constant(number, COUNTER)
            if number > first + in_loop:
                counter, state = state.after_barrier(hlo, counter)
            state = stages.step(counter, state, fetches=number + 1 < self.length, finishes=bool(first))
        if first:
            state = stages.finish(hlo.constant(self.length, COUNTER), state)
        return [*state.carry, *state.stacks]

    def _loop(self, hlo: Hlo, stages: "_Stages", state: "_State", first: int, last: int) -> "_State":
        """Append XLA's loop over the iterations from `first` up to `last`."""

        def step(values: Sequence[Any]) -> list[Any]:
            counter, inside = values[0], state.with_values(values[1:])
            for number in range(_UNROLL):
                index = hlo.op("stablehlo.add", (counter, hlo.constant(number, COUNTER)), COUNTER)
                if number:
                    index, inside = inside.after_barrier(hlo, index)
                inside = stages.step(index, inside, fetches=True, finishes=bool(first))
            return [hlo.op("stablehlo.add", (counter, hlo.constant(_UNROLL, COUNTER)), COUNTER), *inside.values]

        values = hlo.loop(
            [hlo.constant(first, COUNTER), *state.values],
            lambda values: lower_compare(hlo, "LT", values[0], hlo.constant(last, COUNTER)),
            step,
            ordered=False,
        )
        return state.with_values(values[1:])


@final
@dataclass(frozen=True)
class _State:
    """What an iteration passes to the next one: the carry, its fetched values, its pending values, and all stacks."""

    carry: list[Any]
    fetched: list[Any]
    pending: list[Any]
    stacks: list[Any]

    @property
    def values(self) -> list[Any]:
        return [*self.carry, *self.fetched, *self.pending, *self.stacks]

    def after_barrier(self, hlo: Hlo, counter: HloValue) -> tuple[HloValue, "_State"]:
        """Append a barrier between two iterations, and return the counter and the state of the second one.

        Without it, XLA interleaves them: it holds the values of both, and hides one collective behind most kernels of
        both, and others behind none.
        """
        passed = [counter, *self.carry, *self.fetched, *self.pending]
        counter, *rest = hlo.many("stablehlo.optimization_barrier", passed, [x.type for x in passed])
        return counter, self.with_values([*rest, *self.stacks])

    def with_values(self, values: Sequence[Any]) -> "_State":
        rest = iter(values)
        parts = (self.carry, self.fetched, self.pending, self.stacks)
        return _State(*([next(rest) for _ in part] for part in parts))


@final
@dataclass(frozen=True)
class _Stages:
    """Appends the three programs of a pipelined scan."""

    op: PipelinedScan
    hlo: Hlo
    consts: Sequence[HloValue]
    sliced: Sequence[HloValue]

    def fetch(self, counter: HloValue) -> list[Any]:
        """Append `fetch` for an iteration, and return the fetched values."""
        if not self.op.fetch.outputs:
            return []
        return self.hlo.program(self.op.fetch, [*self.consts, *self._slices(counter)])

    def step(self, counter: HloValue, state: _State, fetches: bool, finishes: bool) -> _State:
        """Append `program` for an iteration, with `fetch` for the next and `finish` for the one before."""
        op = self.op
        fetched = self.fetch(self._add(counter, 1)) if fetches else []
        finished = self.finish(counter, state) if finishes else state
        arguments = [*self.consts, *state.carry, *self._slices(counter), *state.fetched]
        outputs = self.hlo.program(op.program, arguments)
        count = len(outputs) - len(op.finish.inputs) + op.consts
        kept, pending = outputs[op.carried : count], outputs[count:]
        rows = [update_at(self.hlo, x, y, self._index(counter)) for x, y in zip(finished.stacks, kept, strict=False)]
        return _State(outputs[: op.carried], fetched, pending, [*rows, *finished.stacks[len(kept) :]])

    def finish(self, counter: HloValue, state: _State) -> _State:
        """Append `finish` for the iteration before, and return the state with its rows in the stacks."""
        rows = self.hlo.program(self.op.finish, [*self.consts, *state.pending])
        index = self._index(self._add(counter, -1))
        kept = len(state.stacks) - len(rows)
        written = [update_at(self.hlo, x, y, index) for x, y in zip(state.stacks[kept:], rows, strict=True)]
        return replace(state, pending=[], stacks=[*state.stacks[:kept], *written])

    def _slices(self, counter: HloValue) -> list[Any]:
        index = self._index(counter)
        return [slice_at(self.hlo, x, index) for x in self.sliced]

    def _index(self, counter: HloValue) -> HloValue:
        """Append the position in the stacks of an iteration."""
        if not self.op.reverse:
            return counter
        return self.hlo.op("stablehlo.subtract", (self.hlo.constant(self.op.length - 1, COUNTER), counter), COUNTER)

    def _add(self, counter: HloValue, number: int) -> HloValue:
        return self.hlo.op("stablehlo.add", (counter, self.hlo.constant(number, COUNTER)), COUNTER)
