"""Control: an op that decides when its programs run. Its crossings say how values get into them and out.

What all control ops share is worked out here from the crossings: types, jvp, vmap, and the meaning in numpy.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Self

from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import BatchAxis, NumpyArray, Op, Shards
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.call import present, spread
from shardwise.compiler.ops.control.region_boundary import Tie
from shardwise.compiler.ops.control.retype import zeros_of
from shardwise.compiler.ops.reduce.broadcast import batch_at
from shardwise.errors import ProgramError


class End(NamedTuple):
    """One end of a crossing: an operand or a result of the op, or an entry (input) or exit (output) of a program."""

    kind: str
    number: int
    program: int = 0


def operand(number: int) -> End:
    return End("operand", number)


def entry(number: int, program: int = 0) -> End:
    return End("entry", number, program)


def exit_(number: int, program: int = 0) -> End:
    return End("exit", number, program)


def result(number: int) -> End:
    return End("result", number)


class Crossing(NamedTuple):
    """One tie between ends. Crossings of one `group` are alike and stand together, in every list of ends."""

    group: int
    tie: Tie
    takes: tuple[End, ...]
    gives: tuple[End, ...] = ()

    @property
    def ends(self) -> tuple[End, ...]:
        return (*self.takes, *self.gives)


@dataclass
class Strand:
    """One crossing of an op to be made: its operand, if it has one, and its values in each program that it reaches."""

    group: int
    operand: Any = None
    entries: dict[int, Value] = field(default_factory=dict)
    exits: dict[int, Value] = field(default_factory=dict)
    has_result: bool = False


class Control(Op):
    """Programs that run as the op says. Crossings are listed by group, and so are all ends."""

    single = False
    accepts_keys = infers_varying = True

    @cached_property
    def crossings(self) -> tuple[Crossing, ...]:
        raise self.missing_rule("crossings")

    @property
    def entrances(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """For each program, the group of crossings by which a further operand gets in, and the programs it gets to."""
        raise self.missing_rule("entrances")

    def with_programs(self, programs: Sequence[Program], counts: Sequence[int] | None = None) -> Self:
        """The same op of other programs, with `counts[g]` crossings of group g where these have changed."""
        raise self.missing_rule("with_programs")

    @property
    def times(self) -> int | None:
        """How often its programs run; None where that is not known."""
        return 1

    # Crossings by their ends.

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """How many crossings each group has."""
        found = Counter(crossing.group for crossing in self.crossings)
        return tuple(found[group] for group in range(max(found, default=-1) + 1))

    def marked(self, marks: Sequence[bool], kind: str, program: int = 0) -> tuple[bool, ...]:
        """Marks on crossings as marks on the ends of this kind, in order."""
        found = {
            end.number: mark
            for crossing, mark in zip(self.crossings, marks, strict=True)
            for end in crossing.ends
            if end.kind == kind and end.program == program
        }
        return tuple(found[number] for number in range(len(found)))

    def reach(
        self, operands: Sequence[bool], step: Callable[[int, tuple[bool, ...]], Sequence[bool]]
    ) -> tuple[bool, ...]:
        """The crossings that a property reaches from marked operands; `step` takes it through a program."""
        marks = tuple(self._is_taken(crossing, {"operand": [operands]}) for crossing in self.crossings)
        while True:
            exits = [step(n, self.marked(marks, "entry", n)) for n in range(len(self.programs))]
            more = tuple(
                mark or self._is_taken(crossing, {"exit": exits})
                for crossing, mark in zip(self.crossings, marks, strict=True)
            )
            if more == marks:
                return marks
            marks = more

    def _is_taken(self, crossing: Crossing, marks: dict[str, list[Sequence[bool]]]) -> bool:
        return any(end.kind in marks and marks[end.kind][end.program][end.number] for end in crossing.takes)

    def strands(
        self, operands: Sequence[Any], entries: Sequence[Sequence[Any]], exits: Sequence[Sequence[Any]]
    ) -> list[Strand]:
        """A strand for each crossing, with these operands, and these values as entries and exits of each program."""
        found = []
        for crossing in self.crossings:
            strand = Strand(crossing.group)
            for end in crossing.ends:
                match end.kind:
                    case "operand":
                        strand.operand = operands[end.number]
                    case "entry":
                        strand.entries[end.program] = entries[end.program][end.number]
                    case "exit":
                        strand.exits[end.program] = exits[end.program][end.number]
                    case "result":
                        strand.has_result = True
            found.append(strand)
        return found

    def woven(self, strands: Sequence[Strand], programs: Sequence[Program]) -> tuple[Self, list[Any], list[int]]:
        """The op made of these strands, its operands, and which strand each of its results belongs to."""
        order = sorted(range(len(strands)), key=lambda number: strands[number].group)
        ordered = [strands[number] for number in order]
        bodies = [
            Program(
                tuple(strand.entries[n] for strand in ordered if n in strand.entries),
                program.equations,
                tuple(strand.exits[n] for strand in ordered if n in strand.exits),
                program.name,
            )
            for n, program in enumerate(programs)
        ]
        groups = Counter(strand.group for strand in strands)
        op = self.with_programs(bodies, [groups[group] for group in range(max(groups, default=-1) + 1)])
        operands = [strand.operand for strand in ordered if strand.operand is not None]
        return op, operands, [number for number in order if strands[number].has_result]

    def apply(self, strands: Sequence[Strand], programs: Sequence[Program]) -> list[Any]:
        """The result of each strand (None where it has none)."""
        op, operands, places = self.woven(strands, programs)
        results = dict(zip(places, op(*operands), strict=True))
        return [results.get(number) for number in range(len(strands))]

    # Rules.

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        count = sum(end.kind == "operand" for crossing in self.crossings for end in crossing.takes)
        if len(types) != count:
            raise TypeError(f"{self.name}: takes {count} operands, not {len(types)}")
        known = {operand(number): type for number, type in enumerate(types)}
        for n, program in enumerate(self.programs):
            known |= {exit_(number, n): type for number, type in enumerate(program.out_types)}
        results: dict[int, ArrayType] = {}
        for crossing in self.crossings:
            try:
                given = crossing.tie.out_types(*(known[end] for end in crossing.takes))
            except TypeError as error:
                raise TypeError(f"{self.name}: {crossing.tie.name} of {_ends(crossing.takes)}: {error}") from None
            for end, type in zip(crossing.gives, given, strict=True):
                if end.kind == "result":
                    results[end.number] = type
                elif self.programs[end.program].in_types[end.number] != type:
                    taken = self.programs[end.program].in_types[end.number]
                    raise TypeError(f"{self.name}: {_ends(crossing.takes)} is {type}, but {_ends((end,))} is {taken}")
        return tuple(results[number] for number in range(len(results)))

    def operand_varying(self, *types: ArrayType) -> tuple[tuple[str, ...], ...]:
        """As the programs take it."""
        found = [type.varying for type in types]
        for crossing in self.crossings:
            taken = [self.programs[end.program].in_types[end.number] for end in crossing.gives if end.kind == "entry"]
            for end in crossing.takes:
                if end.kind == "operand" and taken:
                    found[end.number] = crossing.tie.outside(taken[0].varying)
        return tuple(found)

    def moving(self, tangents: Sequence[Any], linearizing: bool = False) -> tuple[bool, ...]:
        """The crossings that have a tangent, given those of the operands.

        `linearizing`: as `linearize` finds it, which some ops have and `jvp` not.
        """
        transforms = installed.transforms

        def step(n: int, entries: tuple[bool, ...]) -> tuple[bool, ...]:
            program = self.programs[n]
            return transforms.linearize(program, entries)[2] if linearizing else transforms.jvp(program, entries)[1]

        return self.reach(present(tangents), step)

    def directions(self, moving: Sequence[bool], primals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """The tangents of the operands; zeros for one that starts still, but moves later."""
        return [
            zeros_of(primal.type) if tangent is None and moves else tangent
            for primal, tangent, moves in zip(primals, tangents, self.marked(moving, "operand"), strict=True)
        ]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Every crossing that moves gets a twin."""
        moving = self.moving(tangents)
        entries = [self.marked(moving, "entry", n) for n in range(len(self.programs))]
        exits = [self.marked(moving, "exit", n) for n in range(len(self.programs))]
        programs = [
            installed.transforms.jvp(program, active, solid)[0]
            for program, active, solid in zip(self.programs, entries, exits, strict=True)
        ]
        strands = self.strands(
            primals,
            [program.inputs[: len(active)] for program, active in zip(programs, entries, strict=True)],
            [program.outputs[: len(active)] for program, active in zip(programs, exits, strict=True)],
        )
        twins = self.strands(
            self.directions(moving, primals, tangents),
            [spread(p.inputs[len(active) :], active) for p, active in zip(programs, entries, strict=True)],
            [spread(p.outputs[len(active) :], active) for p, active in zip(programs, exits, strict=True)],
        )
        found = self.apply([*strands, *(twin for twin, moves in zip(twins, moving, strict=True) if moves)], programs)
        tangents_of = spread(found[len(strands) :], moving)
        places = [number for number, strand in enumerate(strands) if strand.has_result]
        return [found[number] for number in places], [tangents_of[number] for number in places]

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self.mapped(axis, operands, dims, self.batched(axis, present(dims)))

    def batched(self, axis: BatchAxis, operands: Sequence[bool]) -> tuple[bool, ...]:
        """The crossings that have the new dim."""

        def step(n: int, entries: tuple[bool, ...]) -> tuple[bool, ...]:
            return present(installed.transforms.vmap(self.programs[n], axis, batch_dims(entries))[1])

        return self.reach(operands, step)

    def mapped(
        self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None], batched: Sequence[bool]
    ) -> tuple[Any, Any]:
        """The op with the new dim in front on the crossings marked."""
        programs = [
            installed.transforms.vmap(
                program, axis, batch_dims(self.marked(batched, "entry", n)), self.marked(batched, "exit", n)
            )[0]
            for n, program in enumerate(self.programs)
        ]
        places = [
            (end, crossing.tie.leading, is_batched)
            for crossing, is_batched in zip(self.crossings, batched, strict=True)
            for end in crossing.ends
        ]
        placed = list(operands)
        for end, leading, is_batched in places:
            if end.kind == "operand" and is_batched:
                placed[end.number] = batch_at(operands[end.number], dims[end.number], leading, axis.size)
        out_dims = {
            end.number: leading if is_batched else None for end, leading, is_batched in places if end.kind == "result"
        }
        results = self.with_programs(programs)(*placed)
        return results, [out_dims[number] for number in range(len(results))]

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        def run(n: int, args: list[Shards]) -> list[Shards]:
            return [[y] for y in evaluate(self.programs[n], [pieces[0] for pieces in args])]

        return tuple(pieces[0] for pieces in self.interpret(run, [[x] for x in operands]))


class Deciding(Control):
    """What runs depends on a scalar. `apart`: in a manual region, devices may go different ways; elsewhere they must
    not."""

    apart: bool

    def parted(self) -> Self:
        """The same, where devices may go different ways."""
        raise self.missing_rule("parted")

    def ways(self, pieces: Sequence[NumpyArray]) -> list[int]:
        """Which way each device goes."""
        ways = [int(piece) for piece in pieces]
        if not self.apart and len(set(ways)) > 1:
            raise ProgramError(f"{self.name}: devices disagree on where to go: {ways}")
        return ways


def chosen(marks: Sequence[int], wanted: int, these: Sequence[Shards], those: Sequence[Shards]) -> list[Shards]:
    """On each device `these` where its mark is the one wanted, else `those`."""
    return [
        [x if mark == wanted else y for mark, x, y in zip(marks, mine, others, strict=True)]
        for mine, others in zip(these, those, strict=True)
    ]


def _ends(ends: Sequence[End]) -> str:
    return " and ".join(
        f"{end.kind} {end.number}" + (f" of program {end.program}" if end.kind in ("entry", "exit") else "")
        for end in ends
    )


def batch_dims(marks: Sequence[bool]) -> tuple[int | None, ...]:
    """Dim 0 for what is marked."""
    return tuple(0 if mark else None for mark in marks)
