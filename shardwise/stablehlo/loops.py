"""While loops. One that counts becomes a scan, so that the planner sees slices and stacks of its arrays.

StableHLO has no scan: a loop reads slices at its counter, and writes results at it.

    while i < n:                            scan over x:
        t = x[i]; carry = f(carry, t)           carry = f(carry, t)
        y[i] = g(carry); i = i + 1              return g(carry)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.dtypes import integer_range, is_integer
from shardwise.compiler.ir.op import NumpyArray
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.elementwise.base import Elementwise
from shardwise.compiler.ops.elementwise.select import Compare
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import Full, full
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.replay import for_each_equation, replay
from shardwise.stablehlo.monoids import constant_value

Function = Callable[..., list[Array]]

_MAX_TRIPS = 1 << 20  # the counter of longer loops is not evaluated for every trip


def apply_while(condition: Function, body: Function, operands: Sequence[Array]) -> list[Any]:
    """Return the results of a while loop: a scan if its number of trips is known, else a while loop."""
    types = [x.type for x in operands]
    cond, cond_captured = build(condition, types, "cond")
    program, captured = build(body, types, "body")
    trips = _count_trips(cond, program, operands)
    if trips is not None:
        return _CountedLoop(program, tuple(operands), tuple(captured), trips).apply()
    results: list[Any] = lax.while_loop(
        lambda carry: replay(cond, [*carry, *cond_captured])[0],
        lambda carry: replay(program, [*carry, *captured]),
        list(operands),
    )
    return results


def _definitions(program: Program) -> dict[Value, Equation]:
    return {value: equation for equation in program.equations for value in equation.outputs}


def _constant_in(program: Program, value: Value, operands: Sequence[Array] = ()) -> int | None:
    """Return the constant that a value is: of the program, or of the operand that it is an input for; else None."""
    if value in program.inputs:
        index = program.inputs.index(value)
        element = constant_value(operands[index]) if index < len(operands) else None
    else:
        op = _definitions(program)[value].op
        element = op.value.array if isinstance(op, Full) else None
    return int(element) if element is not None and is_integer(value.type.dtype) and not value.type.shape else None


def _step(program: Program, index: int) -> int | None:
    """Return the constant that each trip adds to a carried value; None if it does something else."""
    definition = _definitions(program).get(program.outputs[index])
    if definition is None or not isinstance(definition.op, Add):
        return None
    others = [value for value in definition.inputs if value is not program.inputs[index]]
    return _constant_in(program, others[0]) if len(others) == 1 else None


def _count_trips(cond: Program, body: Program, operands: Sequence[Array]) -> int | None:
    """Return the number of trips of a loop `while counter < limit` whose start, limit and step are constants."""
    definition = _definitions(cond).get(cond.outputs[0])
    if definition is None or not isinstance(definition.op, Compare) or definition.op.direction not in ("LT", "GT"):
        return None
    counter, limit = definition.inputs if definition.op.direction == "LT" else definition.inputs[::-1]
    if counter not in cond.inputs[: len(operands)]:
        return None
    index = cond.inputs.index(counter)
    is_constant = limit not in cond.inputs or (
        cond.inputs.index(limit) < len(operands)
        and body.outputs[cond.inputs.index(limit)] is body.inputs[cond.inputs.index(limit)]
    )
    start, step = constant_value(operands[index]), _step(body, index)
    stop = _constant_in(cond, limit, operands) if is_constant else None
    if start is None or stop is None or step is None or step < 1:
        return None
    trips = max(0, -(-(stop - int(start)) // step))
    fits = int(start) + trips * step <= integer_range(counter.type.dtype)[1]  # else it would wrap around
    return trips if fits and trips <= _MAX_TRIPS else None


@final
@dataclass(frozen=True)
class _Stack:
    """A carried array of which each trip writes one row.

    Attributes:
        row: the value in the body that is written, with a dim of size 1 for the row.
        direction: 1 if the first trip writes the first row, -1 if the last one does.
    """

    row: Value
    direction: int


@final
@dataclass(frozen=True)
class _CountedLoop:
    """A loop with a known number of trips.

    Attributes:
        program: its body. The inputs are the carried values and the captured ones.
        operands: the initial carried values.
        captured: the captured arrays.
        trips: the number of trips.
    """

    program: Program
    operands: tuple[Array, ...]
    captured: tuple[Any, ...]
    trips: int

    @cached_property
    def _positions(self) -> dict[Value, NumpyArray]:
        """The values of integer scalars that depend on counters and constants only, in every trip."""
        known: dict[Value, NumpyArray] = {}
        for index, operand in enumerate(self.operands):
            start = constant_value(operand)
            step = _step(self.program, index)
            if start is not None and step is not None:
                trips = np.arange(self.trips, dtype=np.int64) * step + int(start)
                known[self.program.inputs[index]] = trips.astype(operand.dtype)
        for equation in self.program.equations:
            types = [value.type for value in (*equation.inputs, *equation.outputs)]
            if any(type.shape or not (is_integer(type.dtype) or type.dtype == np.bool_) for type in types):
                continue
            if isinstance(equation.op, Full):
                known[equation.outputs[0]] = equation.op.value.array
            elif isinstance(equation.op, Elementwise) and all(value in known for value in equation.inputs):
                known[equation.outputs[0]] = np.asarray(equation.op.reference(*(known[v] for v in equation.inputs)))
        return known

    def _direction(self, starts: Sequence[Value]) -> int:
        """Return 1 if the first start index is the number of the trip, -1 if it counts down to 0, else 0."""
        rows = self._positions.get(starts[0])
        if rows is None or rows.shape != (self.trips,):
            return 0
        order = np.arange(self.trips)
        return 1 if (rows == order).all() else -1 if (rows == order[::-1]).all() else 0

    @cached_property
    def _uses(self) -> dict[Value, list[Equation | None]]:
        """The equations that use each value; None for an output."""
        uses: dict[Value, list[Equation | None]] = {}
        for equation in self.program.equations:
            for value in equation.inputs:
                uses.setdefault(value, []).append(equation)
        for value in self.program.outputs:
            uses.setdefault(value, []).append(None)
        return uses

    @cached_property
    def _definitions(self) -> dict[Value, Equation]:
        return _definitions(self.program)

    @cached_property
    def _invariant(self) -> dict[Value, Any]:
        """The arrays that do not change: captured ones, and carried ones that each trip returns."""
        count = len(self.operands)
        carried = zip(self.program.inputs, self.program.outputs, self.operands, strict=False)
        invariant: dict[Value, Any] = {value: array for value, output, array in carried if value is output}
        return {**invariant, **dict(zip(self.program.inputs[count:], self.captured, strict=True))}

    def _slice_direction(self, value: Value) -> int:
        """Return the direction in which the trips read rows of an invariant array; 0 if they read it in another way."""
        shape = value.type.shape
        if not shape or shape[0] != self.trips:
            return 0
        directions = set()
        is_returned = value in self.program.inputs[: len(self.operands)]
        for equation in self._uses.get(value, []):
            if equation is None:
                continue
            is_row = isinstance(equation.op, DynamicSlice) and equation.op.sizes == (1, *shape[1:])
            directions.add(self._direction(equation.inputs[1:]) if is_row and equation.inputs[0] is value else 0)
        outputs = self._uses.get(value, []).count(None)
        return directions.pop() if len(directions) == 1 and outputs <= is_returned else 0

    def _stack(self, index: int) -> _Stack | None:
        """Return how the trips write all rows of a carried array, if they do nothing else with it; else None."""
        value, output = self.program.inputs[index], self.program.outputs[index]
        definition, shape = self._definitions.get(output), value.type.shape
        if definition is None or not isinstance(definition.op, DynamicUpdateSlice) or not shape:
            return None
        target, update, *starts = definition.inputs
        is_only_written = target is value and self._uses[value] == [definition] and self._uses[output] == [None]
        if not is_only_written or shape[0] != self.trips or update.type.shape != (1, *shape[1:]):
            return None
        direction = self._direction(starts)
        return _Stack(update, direction) if direction else None

    def apply(self) -> list[Any]:
        """Return the results of the loop, as a scan."""
        if self.trips == 0:
            return list(self.operands)
        count = len(self.operands)
        inputs = self.program.inputs
        stacks = {index: stack for index in range(count) if (stack := self._stack(index)) is not None}
        slices = {value: way for value in self._invariant if (way := self._slice_direction(value))}
        direction = next((stack.direction for stack in stacks.values()), next(iter(slices.values()), 1))
        stacks = {index: stack for index, stack in stacks.items() if stack.direction == direction}
        sliced = [value for value, way in slices.items() if way == direction]
        carried = [index for index in range(count) if index not in stacks and inputs[index] not in self._invariant]
        live, carried = self._live(carried, stacks, sliced)

        def step(carry: Sequence[Any], rows: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            env = {**self._invariant, **{inputs[index]: x for index, x in zip(carried, carry, strict=True)}}
            self._run(live, env, dict(zip(sliced, rows, strict=True)))
            row_of = self._row_reader(env)
            return [env[self.program.outputs[index]] for index in carried], [row_of(s.row) for s in stacks.values()]

        final, stacked = lax.scan(
            step,
            [self.operands[index] for index in carried],
            [self._invariant[value] for value in sliced],
            self.trips,
            reverse=direction < 0,
        )
        results = dict(zip((*carried, *stacks), (*final, *stacked), strict=True))
        return [results[index] if index in results else self._unscanned(index) for index in range(count)]

    def _live(
        self, carried: list[int], stacks: dict[int, _Stack], sliced: Sequence[Value]
    ) -> tuple[list[Equation], list[int]]:
        """Return the equations that the scan needs, and the carried values, without counters that nothing else uses."""
        counters = [index for index in carried if self._final_counter(index) is not None]
        needed = {self.program.outputs[index] for index in carried if index not in counters}
        needed |= {stack.row for stack in stacks.values()}
        live: list[Equation] = []

        def visit() -> None:
            live.clear()
            reached = set(needed)
            for equation in reversed(self.program.equations):
                if not reached.isdisjoint(equation.outputs) or equation.op.effect:
                    live.append(equation)
                    is_slice = isinstance(equation.op, DynamicSlice) and equation.inputs[0] in sliced
                    reached.update(() if is_slice else equation.inputs)
            used = {index for index in counters if self.program.inputs[index] in reached}
            if used:
                needed.update(self.program.outputs[index] for index in used)
                counters[:] = [index for index in counters if index not in used]
                visit()

        visit()
        return live[::-1], [index for index in carried if index not in counters]

    def _final_counter(self, index: int) -> int | None:
        """Return the value of a counter after the loop; None for other carried values."""
        start, step = constant_value(self.operands[index]), _step(self.program, index)
        return None if start is None or step is None or self.operands[index].shape else int(start) + step * self.trips

    def _unscanned(self, index: int) -> Any:
        """Return the result of a carried value that is no part of the scan: an invariant array or a counter."""
        final = self._final_counter(index)
        if self.program.inputs[index] in self._invariant or final is None:
            return self.operands[index]
        dtype = self.operands[index].dtype
        return full((), np.array(final, np.int64).astype(dtype), dtype)

    def _run(self, equations: Sequence[Equation], env: dict[Value, Any], rows: dict[Value, Any]) -> None:
        """Apply the equations of one trip, with a row in place of each slice of `rows`."""
        of_slice: dict[Value, Any] = {}

        def emit(equation: Equation) -> None:
            output = equation.outputs[0]
            if isinstance(equation.op, DynamicSlice) and equation.inputs[0] in rows:
                of_slice[output] = row = rows[equation.inputs[0]]
                if any(not _drops_row_dim(use) for use in self._uses[output]):
                    env[output] = Reshape(output.type.shape)(row)
            elif _drops_row_dim(equation) and equation.inputs[0] in of_slice:
                env[output] = of_slice[equation.inputs[0]]
            else:
                results = equation.op(*(env[value] for value in equation.inputs))
                env.update(zip(equation.outputs, (results,) if equation.op.single else results, strict=True))

        for_each_equation(equations, emit)

    def _row_reader(self, env: dict[Value, Any]) -> Callable[[Value], Any]:
        def row_of(update: Value) -> Any:
            """Return the row that an update of shape (1, ...) holds."""
            definition, shape = self._definitions.get(update), update.type.shape[1:]
            if definition is not None and definition.inputs and definition.inputs[0].type.shape == shape:
                op = definition.op
                is_row = isinstance(op, Reshape) or (
                    isinstance(op, Broadcast) and op.dims == tuple(range(1, len(shape) + 1))
                )
                if is_row:
                    return env[definition.inputs[0]]
            return Reshape(shape)(env[update])

        return row_of


def _drops_row_dim(equation: Equation | None) -> bool:
    """Return whether an equation removes the first dim, of size 1, and does nothing else."""
    if equation is None or not isinstance(equation.op, Reshape):
        return False
    shape = equation.inputs[0].type.shape
    return bool(shape) and shape[0] == 1 and equation.op.shape == shape[1:]
