"""scan: a program that runs a known number of times, with values that it carries, takes in slices and stacks."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.op import BatchAxis, Hlo, NumpyArray, Op, ProgramRunner, Shards, UndefinedPrimal
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.call import Call, drop_none, insert_none, present_mask
from shardwise.compiler.ops.control.control import Binding, Control, entry, exit_, operand, result
from shardwise.compiler.ops.control.region_boundary import Carry, Enter, Stack, Unstack
from shardwise.compiler.ops.control.retype import zeros_of
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.elementwise.select import lower_compare
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.ops.shape.movement import i64_array_attribute

_COUNTER = ArrayType((), np.int32)


@final
@record
class Scan(Control):
    """`program` (consts, carried, slices → carried, stacked) runs `length` times.

    Operands: consts, what is carried at first, arrays whose slices along dim 0 it takes. Results: what is carried in
    the end, and stacks along a new dim 0. `reverse`: the last slices come first. `unroll`: runs in one turn of XLA's
    loop.
    """

    name = "scan"
    program: Program
    length: int
    consts: int
    carried: int
    reverse: bool = False
    unroll: int = 1

    @property
    def programs(self) -> tuple[Program, ...]:
        return (self.program,)

    @property
    def trip_count(self) -> int | None:
        return self.length

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        first, after = self.consts, self.consts + self.carried
        return (
            *(Binding(0, Enter(1), (operand(i),), (entry(i),)) for i in range(first)),
            *(
                Binding(1, Carry(2), (operand(first + i), exit_(i)), (entry(first + i), result(i)))
                for i in range(self.carried)
            ),
            *(
                Binding(2, Unstack(self.length), (operand(i),), (entry(i),))
                for i in range(after, len(self.program.inputs))
            ),
            *(
                Binding(3, Stack(self.length), (exit_(i),), (result(i),))
                for i in range(self.carried, len(self.program.outputs))
            ),
        )

    @property
    def const_groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        return ((0, (0,)),)

    def with_programs(self, programs: Sequence[Program], counts: Sequence[int] | None = None) -> "Scan":
        (program,) = programs
        consts, carried = (self.consts, self.carried) if counts is None else [*counts, 0, 0][:2]
        return Scan(program, self.length, consts, carried, self.reverse, self.unroll)

    def parts(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Consts, carried, sliced."""
        after = self.consts + self.carried
        return list(operands[: self.consts]), list(operands[self.consts : after]), list(operands[after:])

    def interpret(self, run: ProgramRunner, operands: list[Shards], devices: int = 1) -> list[Shards]:
        consts, carried, sliced = self.parts(operands)
        given: list[list[list[NumpyArray]]] = []
        steps = range(self.length)
        for step in reversed(steps) if self.reverse else steps:
            slices = [[piece[step] for piece in pieces] for pieces in sliced]
            outputs = run(0, [*consts, *carried, *slices])
            carried = outputs[: self.carried]
            given.append(outputs[self.carried :])
        rows = given[::-1] if self.reverse else given
        stacks = []
        for number, value in enumerate(self.program.outputs[self.carried :]):
            type = value.type
            empty = np.zeros((0, *type.shape), type.dtype)
            stacks.append([np.stack([row[number][d] for row in rows]) if rows else empty for d in range(devices)])
        return [*carried, *stacks]

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        moving = self.active_bindings(tangents, linearizing=True)
        active, solid = self.endpoint_marks(moving, "entry"), self.endpoint_marks(moving, "exit")
        forward, linear, _ = installed.transforms.linearize(self.program, active, solid)
        forward = installed.transforms.inline(forward)
        count = len(self.program.outputs)
        kept = _Kept.of(self, forward, count)
        still = Call(kept.once)(*primals[: self.consts]) if kept.once.outputs else ()
        inputs = [Value(type) for type in kept.once.out_types]
        known = dict(zip(kept.once.outputs, inputs, strict=True))  # computed before the loop: now one more const
        body = Program(
            (*inputs, *forward.inputs),
            tuple(e for e in forward.equations if not e.outputs or not known.keys() >= set(e.outputs)),
            (*(known.get(v, v) for v in forward.outputs[:count]), *kept.stacked),
            forward.name,
        )
        renamed = installed.transforms.dce(_renamed(body, known))
        first = Scan(renamed, self.length, len(still) + self.consts, self.carried, self.reverse, self.unroll)
        results = first(*still, *primals)
        stacks = dict(zip(kept.stacked, results[count:], strict=True))
        consts: list[tuple[Value, Any]] = []
        slices: list[tuple[Value, Any]] = []
        for value, inside in zip(forward.outputs[count:], linear.inputs, strict=False):
            if value in known:
                consts.append((inside, still[kept.once.outputs.index(value)]))
            elif value in forward.inputs[: self.consts]:
                consts.append((inside, primals[forward.inputs.index(value)]))
            elif value in stacks:
                slices.append((inside, stacks[value]))
            elif value in forward.outputs[self.carried : count]:
                slices.append((inside, results[forward.outputs.index(value, self.carried)]))
            else:
                slices.append((inside, primals[forward.inputs.index(value)]))
        ways = self.parts(self.instantiate_tangents(moving, primals, tangents))
        inner = self.parts(insert_none(linear.inputs[len(forward.outputs) - count :], active))
        program = Program(
            (
                *(value for value, _ in consts),
                *drop_none(inner[0]),
                *drop_none(inner[1]),
                *(value for value, _ in slices),
                *drop_none(inner[2]),
            ),
            linear.equations,
            linear.outputs,
            linear.name,
        )
        along = Scan(
            program,
            self.length,
            len(consts) + len(drop_none(inner[0])),
            len(drop_none(inner[1])),
            self.reverse,
            self.unroll,
        )
        moved = along(
            *(x for _, x in consts),
            *drop_none(ways[0]),
            *drop_none(ways[1]),
            *(x for _, x in slices),
            *drop_none(ways[2]),
        )
        return results[:count], insert_none(moved, self.endpoint_marks(moving, "result"))

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        """Backwards: cotangents are carried, those of consts are summed up on the way."""
        if any(equation.op.is_call and not equation.op.opaque for equation in self.program.equations):
            opened = installed.transforms.inline(self.program, opaque=False)  # what is known may be told apart inside
            return self.with_programs([opened]).transpose(cotangent, *operands)
        unknown = [isinstance(x, UndefinedPrimal) for x in operands]
        reached_by = self.endpoint_marks(
            self.propagate_marks(unknown, lambda n, entries: self.program.outputs_depending_on(entries)), "operand"
        )
        if not all(self.parts(reached_by)[1]):
            return self._without_known(cotangent, operands, reached_by)
        # What is carried is linear, even where it starts as something known: as zero.
        linear = tuple(is_linear or place in self._places for place, is_linear in enumerate(unknown))
        consts, carried, sliced = self.parts(operands)
        arrived = (*[True] * self.carried, *present_mask(cotangent[self.carried :]))
        backward, reached = self._backward(linear, arrived)
        is_linear = self.parts(linear)
        sums = [type for type, reach in zip(_unknown(consts), reached[0], strict=True) if reach]
        known = [x for x in consts if not isinstance(x, UndefinedPrimal)]
        known_slices = [x for x in sliced if not isinstance(x, UndefinedPrimal)]
        ends = [zeros_of(x.type) if ct is None else ct for x, ct in zip(carried, cotangent, strict=False)]
        back = Scan(backward, self.length, len(known), len(sums) + self.carried, not self.reverse, self.unroll)
        found = back(*known, *map(zeros_of, sums), *ends, *known_slices, *drop_none(cotangent[self.carried :]))
        of_consts, of_carried = found[: len(sums)], found[len(sums) : len(sums) + self.carried]
        of_slices = found[len(sums) + self.carried :]
        return (
            *insert_none(insert_none(of_consts, reached[0]), is_linear[0]),
            *of_carried,
            *insert_none(insert_none(of_slices, reached[1]), is_linear[2]),
        )

    @property
    def _places(self) -> range:
        """The operands that are carried."""
        return range(self.consts, self.consts + self.carried)

    def _without_known(self, cotangent: Any, operands: Sequence[Any], linear: Sequence[bool]) -> tuple[Any, ...]:
        """The transpose where some of what is carried (a counter) is known: it is run first, and becomes slices."""
        known = [place for place in self._places if not linear[place]]
        program = self.program
        values = [program.inputs[place] for place in known]
        outputs = [program.outputs[place - self.consts] for place in known]
        inputs = [value for value, is_linear in zip(program.inputs, linear, strict=True) if not is_linear]
        given = [x for x, is_linear in zip(operands, linear, strict=True) if not is_linear]
        consts = linear[: self.consts].count(False)
        equations = _defined(program.equations, inputs)
        needed = installed.transforms.dce(Program(tuple(inputs), equations, (*outputs, *values), program.name))
        slices = Scan(needed, self.length, consts, len(known), self.reverse)(*given)[len(known) :]
        kept = [place for place in range(len(operands)) if place not in known]
        rest = Scan(
            Program(
                (*(program.inputs[place] for place in kept), *values),
                program.equations,
                tuple(v for n, v in enumerate(program.outputs) if n + self.consts not in known),
                program.name,
            ),
            self.length,
            self.consts,
            self.carried - len(known),
            self.reverse,
            self.unroll,
        )
        sent = rest.transpose(
            [ct for n, ct in enumerate(cotangent) if n + self.consts not in known],
            *(operands[place] for place in kept),
            *slices,
        )
        found: dict[int, Any] = dict(zip(kept, sent, strict=False))
        return tuple(found.get(place) for place in range(len(operands)))

    def _backward(
        self, linear: tuple[bool, ...], arrived: tuple[bool, ...]
    ) -> tuple[Program, tuple[tuple[bool, ...], tuple[bool, ...]]]:
        """(known consts, sums, carried cotangents, known slices, arriving slices) → (sums, carried, slices)."""
        marks = self.parts(linear)
        solid = (*[False] * marks[0].count(True), *[True] * self.carried, *[False] * marks[2].count(True))
        transposed, moving = installed.transforms.transpose(self.program, linear, arrived, solid)
        of_consts = moving[: marks[0].count(True)]
        of_slices = moving[marks[0].count(True) + self.carried :]
        types = self.parts(self.program.in_types)
        known = [t for t, is_linear in zip(types[0], marks[0], strict=True) if not is_linear]
        summed = [t for t, is_linear in zip(types[0], marks[0], strict=True) if is_linear]
        sums = [t for t, reach in zip(summed, of_consts, strict=True) if reach]
        known_slices = [t for t, is_linear in zip(types[2], marks[2], strict=True) if not is_linear]
        outputs = self.program.out_types
        arriving = [t for t, here in zip(outputs[self.carried :], arrived[self.carried :], strict=True) if here]

        def body(*args: Any) -> list[Any]:
            rest = iter(args)
            consts, totals, carried, slices, cotangents = (
                [next(rest) for _ in types] for types in (known, sums, types[1], known_slices, arriving)
            )
            sent = Call(transposed)(*consts, *slices, *carried, *cotangents)
            added = [Add()(total, more) for total, more in zip(totals, sent, strict=False)]
            return [*added, *sent[len(sums) :]]

        given = [*known, *sums, *types[1], *known_slices, *arriving]
        name = f"transpose_{self.program.name}"
        return installed.transforms.rewrite(name, given, body), (of_consts, of_slices)

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        consts, carried, sliced = self.parts(operands)
        stacks = [hlo.constant(0, type) for type in self.out_types(*(x.type for x in operands))[self.carried :]]
        if not self.length:
            return [*carried, *stacks]
        turn = max(1, min(self.unroll, self.length))
        width = len(carried)

        def run(counter: Any, at: Sequence[Any]) -> list[Any]:
            place = counter
            if self.reverse:
                place = hlo.op("stablehlo.subtract", (hlo.constant(self.length - 1, _COUNTER), counter), _COUNTER)
            slices = [_slice(hlo, x, place) for x in sliced]
            outputs = hlo.program(self.program, [*consts, *at[:width], *slices])
            written = [_write(hlo, x, y, place) for x, y in zip(at[width:], outputs[width:], strict=True)]
            return [*outputs[:width], *written]

        def step(values: Sequence[Any]) -> list[Any]:
            counter, *at = values
            for _ in range(turn):
                at = run(counter, at)
                counter = hlo.op("stablehlo.add", (counter, hlo.constant(1, _COUNTER)), _COUNTER)
            return [counter, *at]

        whole = self.length // turn * turn
        values: list[Any] = [hlo.constant(0, _COUNTER), *carried, *stacks]
        if whole == turn:
            values = step(values)
        else:
            ordered = self.effect == "ordered"
            values = hlo.loop(
                values, lambda at: lower_compare(hlo, "LT", at[0], hlo.constant(whole, _COUNTER)), step, ordered
            )
        for number in range(whole, self.length):
            values[1:] = run(hlo.constant(number, _COUNTER), values[1:])
        return values[1:]


def vmap_by_scan(op: Op, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
    """vmap of any op with results in a tuple: one slice after the other."""
    places = [dim is not None for dim in dims]
    still = [x for x, dim in zip(operands, dims, strict=True) if dim is None]
    sliced = [batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True) if dim is not None]

    def body(*args: Any) -> Sequence[Any]:
        consts, slices = iter(args[: len(still)]), iter(args[len(still) :])
        return op(*(next(slices) if batched else next(consts) for batched in places))  # type: ignore[no-any-return]

    types = [*(x.type for x in still), *(x.type.without((0,)) for x in sliced)]
    program = installed.transforms.rewrite(f"each_{op.name}", types, body)
    results = Scan(program, axis.size, len(still), 0)(*still, *sliced)
    return results, [0] * len(results)


class _Kept(NamedTuple):
    """What a loop's derivative needs of its forward half. `once`: (consts → values that do not change in the loop);
    `stacked`: values to be stacked. Consts, slices and results that are there anyway are neither."""

    once: Program
    stacked: tuple[Value, ...]

    @staticmethod
    def of(scan: Scan, forward: Program, count: int) -> "_Kept":
        consts = forward.inputs[: scan.consts]
        sliced = set(forward.inputs[scan.consts + scan.carried :])
        there = {*consts, *sliced, *forward.outputs[scan.carried : count]}
        before = _defined([equation for equation in forward.equations if not equation.op.effect], consts)
        still = {value for equation in before for value in equation.outputs}
        residuals = [value for value in dict.fromkeys(forward.outputs[count:]) if value not in there]
        once = tuple(value for value in residuals if value in still)
        program = Program(consts, before, once, f"before_{forward.name}")
        return _Kept(installed.transforms.dce(program), tuple(value for value in residuals if value not in still))


def _renamed(program: Program, names: dict[Value, Value]) -> Program:
    """The program with some values, which it does not define any more, under new names."""
    equations = [e.replace(inputs=[names.get(v, v) for v in e.inputs]) for e in program.equations]
    return program.with_equations(equations)


def _defined(equations: Sequence[Equation], inputs: Sequence[Value]) -> tuple[Equation, ...]:
    """The equations that can be computed from these inputs alone."""
    known = set(inputs)
    found = []
    for equation in equations:
        if known.issuperset(equation.inputs):
            known.update(equation.outputs)
            found.append(equation)
    return tuple(found)


def _unknown(operands: Sequence[Any]) -> list[ArrayType]:
    return [x.type for x in operands if isinstance(x, UndefinedPrimal)]


def _slice(hlo: Hlo, x: Any, place: Any) -> Any:
    """x[place]."""
    zero = hlo.constant(0, _COUNTER)
    sizes = (1, *x.type.shape[1:])
    found = hlo.op(
        "stablehlo.dynamic_slice",
        (x, place, *[zero] * (x.type.ndim - 1)),
        x.type.with_shape(sizes),
        f"slice_sizes = {i64_array_attribute(sizes)}",
    )
    return hlo.op("stablehlo.reshape", (found,), x.type.without((0,)))


def _write(hlo: Hlo, x: Any, y: Any, place: Any) -> Any:
    """x with x[place] = y."""
    zero = hlo.constant(0, _COUNTER)
    row = hlo.op("stablehlo.reshape", (y,), y.type.with_shape((1, *y.type.shape)))
    return hlo.op("stablehlo.dynamic_update_slice", (x, row, place, *[zero] * (x.type.ndim - 1)), x.type)
