"""Control ops: ops that decide when their programs run. Bindings say how values get into the programs and out of them.

The rules that all control ops share follow from the bindings: result types, jvp, vmap, and the numpy reference.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import BatchAxis, NumpyArray, Op, ProgramRunner, Shards
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.call import insert_none, present_mask
from shardwise.compiler.ops.control.region_boundary import BoundaryOp
from shardwise.compiler.ops.control.retype import zeros_of
from shardwise.compiler.ops.placement.reshard import shard_batch_dim
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.errors import ProgramError


class Endpoint(NamedTuple):
    """An operand or a result of a control op, or an entry (input) or exit (output) of one of its programs."""

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
    """Endpoints that one boundary op connects: `sources` are its operands, `targets` its results.

    Bindings of one `group` have the same form. They are adjacent in every list of endpoints.
    """

    group: int
    boundary: BoundaryOp
    sources: tuple[Endpoint, ...]
    targets: tuple[Endpoint, ...] = ()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (*self.sources, *self.targets)


@dataclass
class Port:
    """The values of one binding of a control op that is being built.

    `entries` are inputs and `exits` outputs of programs, keyed by the number of the program.
    """

    group: int
    operand: Any = None
    entries: dict[int, Value] = field(default_factory=dict)
    exits: dict[int, Value] = field(default_factory=dict)
    has_result: bool = False


class Control(Op):
    """The base class of control ops. Bindings, and the endpoints of every kind, are ordered by group."""

    single = False
    accepts_keys = infers_varying = True

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        raise self.missing_rule("bindings")

    @property
    def const_groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """For each program, the group of bindings that brings in a further constant, and the programs that get it."""
        raise self.missing_rule("const_groups")

    def with_programs(self, programs: Sequence[Program], counts: Sequence[int] | None = None) -> Self:
        """Return the op with other programs. `counts[g]`: the number of bindings of group g, if it has changed."""
        raise self.missing_rule("with_programs")

    @property
    def mesh_axes(self) -> Mapping[str, tuple[str, ...]]:
        """For each axis of the manual region, the mesh axes that it consists of; empty if the op is not one."""
        return {}

    def allowing_divergence(self) -> Self:
        """Return the op with devices allowed to decide differently, as in a manual region."""
        return self

    # Bindings and their endpoints.

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of bindings of each group."""
        by_group = Counter(binding.group for binding in self.bindings)
        return tuple(by_group[group] for group in range(max(by_group, default=-1) + 1))

    def endpoint_marks(self, marks: Sequence[bool], kind: str, program: int = 0) -> tuple[bool, ...]:
        """Turn marks of bindings into marks of the endpoints of this kind, in order."""
        by_number = {
            end.number: mark
            for binding, mark in zip(self.bindings, marks, strict=True)
            for end in binding.endpoints
            if end.kind == kind and end.program == program
        }
        return tuple(by_number[index] for index in range(len(by_number)))

    def propagate_marks(
        self, operands: Sequence[bool], step: Callable[[int, tuple[bool, ...]], Sequence[bool]]
    ) -> tuple[bool, ...]:
        """Propagate marks of operands to all bindings, to a fixpoint.

        Args:
            operands: the marks of the operands.
            step: takes the number of a program and the marks of its inputs; returns the marks of its outputs.
        """
        marks = tuple(self._any_source(binding, {"operand": [operands]}) for binding in self.bindings)
        while True:
            exits = [step(n, self.endpoint_marks(marks, "entry", n)) for n in range(len(self.programs))]
            more = tuple(
                mark or self._any_source(binding, {"exit": exits})
                for binding, mark in zip(self.bindings, marks, strict=True)
            )
            if more == marks:
                return marks
            marks = more

    def _any_source(self, binding: Binding, marks: dict[str, list[Sequence[bool]]]) -> bool:
        return any(end.kind in marks and marks[end.kind][end.program][end.number] for end in binding.sources)

    def ports(
        self, operands: Sequence[Any], entries: Sequence[Sequence[Any]], exits: Sequence[Sequence[Any]]
    ) -> list[Port]:
        """Return a port for each binding, with these operands, inputs of programs and outputs of programs."""
        ports = []
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
            ports.append(port)
        return ports

    def rebuild(self, ports: Sequence[Port], programs: Sequence[Program]) -> tuple[Self, list[Any], list[int]]:
        """Build the op that has these ports, from the equations of `programs`.

        Returns:
            The op, its operands, and for each of its results the number of the port that it belongs to.
        """
        order = sorted(range(len(ports)), key=lambda number: ports[number].group)
        ordered = [ports[number] for number in order]
        bodies = [
            replace(
                program,
                inputs=tuple(port.entries[n] for port in ordered if n in port.entries),
                outputs=tuple(port.exits[n] for port in ordered if n in port.exits),
            )
            for n, program in enumerate(programs)
        ]
        groups = Counter(port.group for port in ports)
        op = self.with_programs(bodies, [groups[group] for group in range(max(groups, default=-1) + 1)])
        operands = [port.operand for port in ordered if port.operand is not None]
        return op, operands, [number for number in order if ports[number].has_result]

    def apply(self, ports: Sequence[Port], programs: Sequence[Program]) -> list[Any]:
        """Apply the op that has these ports. Return the result of each port; None if it has none."""
        op, operands, port_numbers = self.rebuild(ports, programs)
        results = dict(zip(port_numbers, op(*operands), strict=True))
        return [results.get(index) for index in range(len(ports))]

    # Rules.

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        count = sum(end.kind == "operand" for binding in self.bindings for end in binding.sources)
        if len(types) != count:
            raise TypeError(f"{self.name}: takes {count} operands, not {len(types)}")
        source_types = {operand(index): type for index, type in enumerate(types)}
        for n, program in enumerate(self.programs):
            source_types |= {exit_(index, n): type for index, type in enumerate(program.out_types)}
        results: dict[int, ArrayType] = {}
        for binding in self.bindings:
            try:
                target_types = binding.boundary.out_types(*(source_types[end] for end in binding.sources))
            except TypeError as error:
                endpoints = _describe_endpoints(binding.sources)
                raise TypeError(f"{self.name}: {binding.boundary.name} of {endpoints}: {error}") from None
            for end, type in zip(binding.targets, target_types, strict=True):
                if end.kind == "result":
                    results[end.number] = type
                elif self.programs[end.program].in_types[end.number] != type:
                    expected = self.programs[end.program].in_types[end.number]
                    source, target = _describe_endpoints(binding.sources), _describe_endpoints((end,))
                    raise TypeError(f"{self.name}: {source} is {type}, but {target} is {expected}")
        return tuple(results[index] for index in range(len(results)))

    def operand_varying(self, *types: ArrayType) -> tuple[tuple[str, ...], ...]:
        """Return the axes over which the programs expect each operand to vary."""
        axes = [type.varying for type in types]
        for binding in self.bindings:
            inner = [self.programs[end.program].in_types[end.number] for end in binding.targets if end.kind == "entry"]
            for end in binding.sources:
                if end.kind == "operand" and inner:
                    axes[end.number] = binding.boundary.outer_varying(inner[0].varying)
        return tuple(axes)

    def active_bindings(self, tangents: Sequence[Any], linearizing: bool = False) -> tuple[bool, ...]:
        """Return for each binding whether it has a tangent, given the tangents of the operands.

        Args:
            tangents: the tangents; None is zero.
            linearizing: whether programs are differentiated by `linearize` and not by `jvp`: some ops have only one
                of the two rules.
        """
        transforms = installed.transforms

        def step(n: int, entries: tuple[bool, ...]) -> tuple[bool, ...]:
            program = self.programs[n]
            return transforms.linearize(program, entries)[2] if linearizing else transforms.jvp(program, entries)[1]

        return self.propagate_marks(present_mask(tangents), step)

    def instantiate_tangents(
        self, active: Sequence[bool], primals: Sequence[Any], tangents: Sequence[Any]
    ) -> list[Any]:
        """Return the tangents of the operands, with zeros instead of None for active bindings.

        A carry whose initial value has no tangent may get one in an iteration.
        """
        return [
            zeros_of(primal.type) if tangent is None and is_active else tangent
            for primal, tangent, is_active in zip(
                primals, tangents, self.endpoint_marks(active, "operand"), strict=True
            )
        ]

    def jvp_programs(self, tangents: Sequence[Any]) -> tuple[tuple[bool, ...], list[Program]]:
        """Return which bindings are active, and the programs that also compute tangents."""
        active = self.active_bindings(tangents)
        programs = [
            installed.transforms.jvp(
                program, self.endpoint_marks(active, "entry", n), self.endpoint_marks(active, "exit", n)
            )[0]
            for n, program in enumerate(self.programs)
        ]
        return active, programs

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Every active binding gets a second one for its tangent."""
        active, programs = self.jvp_programs(tangents)
        entries = [self.endpoint_marks(active, "entry", n) for n in range(len(self.programs))]
        exits = [self.endpoint_marks(active, "exit", n) for n in range(len(self.programs))]
        primal_ports = self.ports(
            primals,
            [program.inputs[: len(mask)] for program, mask in zip(programs, entries, strict=True)],
            [program.outputs[: len(mask)] for program, mask in zip(programs, exits, strict=True)],
        )
        tangent_ports = self.ports(
            self.instantiate_tangents(active, primals, tangents),
            [insert_none(p.inputs[len(mask) :], mask) for p, mask in zip(programs, entries, strict=True)],
            [insert_none(p.outputs[len(mask) :], mask) for p, mask in zip(programs, exits, strict=True)],
        )
        active_ports = [port for port, is_active in zip(tangent_ports, active, strict=True) if is_active]
        results = self.apply([*primal_ports, *active_ports], programs)
        result_tangents = insert_none(results[len(primal_ports) :], active)
        numbers = [number for number, port in enumerate(primal_ports) if port.has_result]
        return [results[number] for number in numbers], [result_tangents[number] for number in numbers]

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self.vmap_bindings(axis, operands, dims, self.batched_bindings(axis, present_mask(dims)))

    def batched_bindings(self, axis: BatchAxis, operands: Sequence[bool]) -> tuple[bool, ...]:
        """Return for each binding whether it is batched, given which operands are."""

        def step(n: int, entries: tuple[bool, ...]) -> tuple[bool, ...]:
            return present_mask(installed.transforms.vmap(self.programs[n], axis, batch_dims(entries))[1])

        return self.propagate_marks(operands, step)

    def vmap_bindings(
        self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None], batched: Sequence[bool]
    ) -> tuple[Any, Any]:
        """Apply the op with a batch dim in the marked bindings, in front of the dims that values inside have."""
        programs = [
            installed.transforms.vmap(
                program,
                axis,
                batch_dims(self.endpoint_marks(batched, "entry", n)),
                self.endpoint_marks(batched, "exit", n),
            )[0]
            for n, program in enumerate(self.programs)
        ]
        batch_places = [
            (end, binding.boundary.leading, is_batched)
            for binding, is_batched in zip(self.bindings, batched, strict=True)
            for end in binding.endpoints
        ]
        batched_operands = list(operands)
        for end, leading, is_batched in batch_places:
            if end.kind == "operand" and is_batched:
                batched_operand = batch_dim_at(operands[end.number], dims[end.number], leading, axis.size)
                batched_operands[end.number] = shard_batch_dim(batched_operand, leading, axis)
        out_dims = {
            end.number: leading if is_batched else None
            for end, leading, is_batched in batch_places
            if end.kind == "result"
        }
        results = self.with_programs(programs)(*batched_operands)
        return results, [out_dims[index] for index in range(len(results))]

    def run_on_shards(self, mesh: AbstractMesh, operands: list[Shards], run: ProgramRunner) -> list[Shards]:
        return self.interpret(run, operands, mesh.device_count)

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        def run(n: int, args: list[Shards]) -> list[Shards]:
            return [[y] for y in evaluate(self.programs[n], [shards[0] for shards in args])]

        return tuple(shards[0] for shards in self.interpret(run, [[x] for x in operands]))


class DataDependentControl(Control):
    """A control op in which a scalar computed at run time decides what runs.

    `may_diverge`: devices may decide differently. They may only do so in a manual region.
    """

    may_diverge: bool

    def allowing_divergence(self) -> Self:
        raise self.missing_rule("allowing_divergence")

    def choice_per_device(self, shards: Sequence[NumpyArray]) -> list[int]:
        """Return the scalar of each device, and check that all agree unless devices may diverge."""
        choices = [int(shard) for shard in shards]
        if not self.may_diverge and len(set(choices)) > 1:
            raise ProgramError(f"{self.name}: devices must take the same branch, but their predicates are {choices}")
        return choices


def select_per_device(
    choices: Sequence[int], choice: int, on_match: Sequence[Shards], otherwise: Sequence[Shards]
) -> list[Shards]:
    """Select `on_match` on devices with this choice, and `otherwise` on the others."""
    return [
        [x if own == choice else y for own, x, y in zip(choices, xs, ys, strict=True)]
        for xs, ys in zip(on_match, otherwise, strict=True)
    ]


def _describe_endpoints(ends: Sequence[Endpoint]) -> str:
    return " and ".join(
        f"{end.kind} {end.number}" + (f" of program {end.program}" if end.kind in ("entry", "exit") else "")
        for end in ends
    )


def batch_dims(batched: Sequence[bool]) -> tuple[int | None, ...]:
    """Return batch dims for `vmap`: 0 for batched values, None for the others."""
    return tuple(0 if is_batched else None for is_batched in batched)
