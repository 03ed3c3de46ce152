"""Control: an op that decides when its programs run. Its bindings say how values get into them and out.

What all control ops share is worked out here from the bindings: types, jvp, vmap, and the meaning in numpy.
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
from shardwise.compiler.ops.control.call import insert_none, present_mask
from shardwise.compiler.ops.control.region_boundary import BoundaryOp
from shardwise.compiler.ops.control.retype import zeros_of
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.errors import ProgramError


class Endpoint(NamedTuple):
    """One end of a binding: an operand or a result of the op, or an entry (input) or exit (output) of a program."""

    kind: str
    number: int
    program: int = 0


def operand(number: int) -> Endpoint:
    return Endpoint("operand", number)


def entry(number: int, program: int = 0) -> Endpoint:
    return Endpoint("entry", number, program)


def exit_(number: int, program: int = 0) -> Endpoint:
    return Endpoint("exit", number, program)


def result(number: int) -> Endpoint:
    return Endpoint("result", number)


class Binding(NamedTuple):
    """One tie between ends. Crossings of one `group` are alike and stand together, in every list of ends."""

    group: int
    boundary: BoundaryOp
    sources: tuple[Endpoint, ...]
    targets: tuple[Endpoint, ...] = ()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (*self.sources, *self.targets)


@dataclass
class Port:
    """One binding of an op to be made: its operand, if it has one, and its values in each program that it reaches."""

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
    def bindings(self) -> tuple[Binding, ...]:
        raise self.missing_rule("bindings")

    @property
    def const_groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """For each program, the group of bindings by which a further operand gets in, and the programs it gets to."""
        raise self.missing_rule("const_groups")

    def with_programs(self, programs: Sequence[Program], counts: Sequence[int] | None = None) -> Self:
        """The same op of other programs, with `counts[g]` bindings of group g where these have changed."""
        raise self.missing_rule("with_programs")

    @property
    def trip_count(self) -> int | None:
        """How often its programs run; None where that is not known."""
        return 1

    # Crossings by their ends.

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """How many bindings each group has."""
        found = Counter(binding.group for binding in self.bindings)
        return tuple(found[group] for group in range(max(found, default=-1) + 1))

    def endpoint_marks(self, marks: Sequence[bool], kind: str, program: int = 0) -> tuple[bool, ...]:
        """Marks on bindings as marks on the ends of this kind, in order."""
        found = {
            end.number: mark
            for binding, mark in zip(self.bindings, marks, strict=True)
            for end in binding.endpoints
            if end.kind == kind and end.program == program
        }
        return tuple(found[number] for number in range(len(found)))

    def propagate_marks(
        self, operands: Sequence[bool], step: Callable[[int, tuple[bool, ...]], Sequence[bool]]
    ) -> tuple[bool, ...]:
        """The bindings that a property reaches from marked operands; `step` takes it through a program."""
        marks = tuple(self._is_taken(binding, {"operand": [operands]}) for binding in self.bindings)
        while True:
            exits = [step(n, self.endpoint_marks(marks, "entry", n)) for n in range(len(self.programs))]
            more = tuple(
                mark or self._is_taken(binding, {"exit": exits})
                for binding, mark in zip(self.bindings, marks, strict=True)
            )
            if more == marks:
                return marks
            marks = more

    def _is_taken(self, binding: Binding, marks: dict[str, list[Sequence[bool]]]) -> bool:
        return any(end.kind in marks and marks[end.kind][end.program][end.number] for end in binding.sources)

    def ports(
        self, operands: Sequence[Any], entries: Sequence[Sequence[Any]], exits: Sequence[Sequence[Any]]
    ) -> list[Port]:
        """A port for each binding, with these operands, and these values as entries and exits of each program."""
        found = []
        for binding in self.bindings:
            port = Port(binding.group)
            for end in binding.endpoints:
                match end.kind:
                    case "operand":
                        port.operand = operands[end.number]
                    case "entry":
                        port.entries[end.program] = entries[end.program][end.number]
                    case "exit":
                        port.exits[end.program] = exits[end.program][end.number]
                    case "result":
                        port.has_result = True
            found.append(port)
        return found

    def rebuild(self, ports: Sequence[Port], programs: Sequence[Program]) -> tuple[Self, list[Any], list[int]]:
        """The op made of these ports, its operands, and which port each of its results belongs to."""
        order = sorted(range(len(ports)), key=lambda number: ports[number].group)
        ordered = [ports[number] for number in order]
        bodies = [
            Program(
                tuple(port.entries[n] for port in ordered if n in port.entries),
                program.equations,
                tuple(port.exits[n] for port in ordered if n in port.exits),
                program.name,
            )
            for n, program in enumerate(programs)
        ]
        groups = Counter(port.group for port in ports)
        op = self.with_programs(bodies, [groups[group] for group in range(max(groups, default=-1) + 1)])
        operands = [port.operand for port in ordered if port.operand is not None]
        return op, operands, [number for number in order if ports[number].has_result]

    def apply(self, ports: Sequence[Port], programs: Sequence[Program]) -> list[Any]:
        """The result of each port (None where it has none)."""
        op, operands, places = self.rebuild(ports, programs)
        results = dict(zip(places, op(*operands), strict=True))
        return [results.get(number) for number in range(len(ports))]

    # Rules.

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        count = sum(end.kind == "operand" for binding in self.bindings for end in binding.sources)
        if len(types) != count:
            raise TypeError(f"{self.name}: takes {count} operands, not {len(types)}")
        known = {operand(number): type for number, type in enumerate(types)}
        for n, program in enumerate(self.programs):
            known |= {exit_(number, n): type for number, type in enumerate(program.out_types)}
        results: dict[int, ArrayType] = {}
        for binding in self.bindings:
            try:
                given = binding.boundary.out_types(*(known[end] for end in binding.sources))
            except TypeError as error:
                raise TypeError(
                    f"{self.name}: {binding.boundary.name} of {_describe_endpoints(binding.sources)}: {error}"
                ) from None
            for end, type in zip(binding.targets, given, strict=True):
                if end.kind == "result":
                    results[end.number] = type
                elif self.programs[end.program].in_types[end.number] != type:
                    expected = self.programs[end.program].in_types[end.number]
                    source, target = _describe_endpoints(binding.sources), _describe_endpoints((end,))
                    raise TypeError(f"{self.name}: {source} is {type}, but {target} is {expected}")
        return tuple(results[number] for number in range(len(results)))

    def operand_varying(self, *types: ArrayType) -> tuple[tuple[str, ...], ...]:
        """As the programs take it."""
        found = [type.varying for type in types]
        for binding in self.bindings:
            taken = [self.programs[end.program].in_types[end.number] for end in binding.targets if end.kind == "entry"]
            for end in binding.sources:
                if end.kind == "operand" and taken:
                    found[end.number] = binding.boundary.outer_varying(taken[0].varying)
        return tuple(found)

    def active_bindings(self, tangents: Sequence[Any], linearizing: bool = False) -> tuple[bool, ...]:
        """The bindings that have a tangent, given those of the operands.

        `linearizing`: as `linearize` finds it, which some ops have and `jvp` not.
        """
        transforms = installed.transforms

        def step(n: int, entries: tuple[bool, ...]) -> tuple[bool, ...]:
            program = self.programs[n]
            return transforms.linearize(program, entries)[2] if linearizing else transforms.jvp(program, entries)[1]

        return self.propagate_marks(present_mask(tangents), step)

    def instantiate_tangents(
        self, moving: Sequence[bool], primals: Sequence[Any], tangents: Sequence[Any]
    ) -> list[Any]:
        """The tangents of the operands; zeros for one that starts still, but moves later."""
        return [
            zeros_of(primal.type) if tangent is None and moves else tangent
            for primal, tangent, moves in zip(primals, tangents, self.endpoint_marks(moving, "operand"), strict=True)
        ]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Every binding that moves gets a twin."""
        moving = self.active_bindings(tangents)
        entries = [self.endpoint_marks(moving, "entry", n) for n in range(len(self.programs))]
        exits = [self.endpoint_marks(moving, "exit", n) for n in range(len(self.programs))]
        programs = [
            installed.transforms.jvp(program, active, solid)[0]
            for program, active, solid in zip(self.programs, entries, exits, strict=True)
        ]
        ports = self.ports(
            primals,
            [program.inputs[: len(active)] for program, active in zip(programs, entries, strict=True)],
            [program.outputs[: len(active)] for program, active in zip(programs, exits, strict=True)],
        )
        twins = self.ports(
            self.instantiate_tangents(moving, primals, tangents),
            [insert_none(p.inputs[len(active) :], active) for p, active in zip(programs, entries, strict=True)],
            [insert_none(p.outputs[len(active) :], active) for p, active in zip(programs, exits, strict=True)],
        )
        found = self.apply([*ports, *(twin for twin, moves in zip(twins, moving, strict=True) if moves)], programs)
        tangents_of = insert_none(found[len(ports) :], moving)
        places = [number for number, port in enumerate(ports) if port.has_result]
        return [found[number] for number in places], [tangents_of[number] for number in places]

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self.vmap_bindings(axis, operands, dims, self.batched_bindings(axis, present_mask(dims)))

    def batched_bindings(self, axis: BatchAxis, operands: Sequence[bool]) -> tuple[bool, ...]:
        """The bindings that have the new dim."""

        def step(n: int, entries: tuple[bool, ...]) -> tuple[bool, ...]:
            return present_mask(installed.transforms.vmap(self.programs[n], axis, batch_dims(entries))[1])

        return self.propagate_marks(operands, step)

    def vmap_bindings(
        self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None], batched: Sequence[bool]
    ) -> tuple[Any, Any]:
        """The op with the new dim in front on the bindings marked."""
        programs = [
            installed.transforms.vmap(
                program,
                axis,
                batch_dims(self.endpoint_marks(batched, "entry", n)),
                self.endpoint_marks(batched, "exit", n),
            )[0]
            for n, program in enumerate(self.programs)
        ]
        places = [
            (end, binding.boundary.leading, is_batched)
            for binding, is_batched in zip(self.bindings, batched, strict=True)
            for end in binding.endpoints
        ]
        placed = list(operands)
        for end, leading, is_batched in places:
            if end.kind == "operand" and is_batched:
                placed[end.number] = batch_dim_at(operands[end.number], dims[end.number], leading, axis.size)
        out_dims = {
            end.number: leading if is_batched else None for end, leading, is_batched in places if end.kind == "result"
        }
        results = self.with_programs(programs)(*placed)
        return results, [out_dims[number] for number in range(len(results))]

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        def run(n: int, args: list[Shards]) -> list[Shards]:
            return [[y] for y in evaluate(self.programs[n], [pieces[0] for pieces in args])]

        return tuple(pieces[0] for pieces in self.interpret(run, [[x] for x in operands]))


class DataDependentControl(Control):
    """What runs depends on a scalar. `apart`: in a manual region, devices may go different ways; elsewhere they must
    not."""

    may_diverge: bool

    def allowing_divergence(self) -> Self:
        """The same, where devices may go different ways."""
        raise self.missing_rule("allowing_divergence")

    def choice_per_device(self, pieces: Sequence[NumpyArray]) -> list[int]:
        """Which way each device goes."""
        ways = [int(piece) for piece in pieces]
        if not self.may_diverge and len(set(ways)) > 1:
            raise ProgramError(f"{self.name}: devices disagree on where to go: {ways}")
        return ways


def select_per_device(
    marks: Sequence[int], wanted: int, these: Sequence[Shards], those: Sequence[Shards]
) -> list[Shards]:
    """On each device `these` where its mark is the one wanted, else `those`."""
    return [
        [x if mark == wanted else y for mark, x, y in zip(marks, mine, others, strict=True)]
        for mine, others in zip(these, those, strict=True)
    ]


def _describe_endpoints(ends: Sequence[Endpoint]) -> str:
    return " and ".join(
        f"{end.kind} {end.number}" + (f" of program {end.program}" if end.kind in ("entry", "exit") else "")
        for end in ends
    )


def batch_dims(marks: Sequence[bool]) -> tuple[int | None, ...]:
    """Dim 0 for what is marked."""
    return tuple(0 if mark else None for mark in marks)
