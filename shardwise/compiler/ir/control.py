"""Control ops: ops that hold programs and decide when these run. Bindings connect the values inside and outside.

Transformations and passes read and rebuild a control op through its bindings, independently of its class. Result types
and the numpy reference are derived from the bindings. `control/control_rules.py` adds jvp and vmap.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import NumpyArray, Op, ProgramRunner, Shards
from shardwise.compiler.ir.program import Program, Source, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.mesh import AbstractMesh


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


class BoundaryOp(Op):
    """The base class of boundary ops: how a value enters or leaves the programs of a control op.

    Attributes:
        leading: the number of leading dims of values outside that values inside lack.
    """

    single = False
    leading: ClassVar[int] = 0
    is_boundary = True

    def outer_varying(self, varying: tuple[str, ...]) -> tuple[str, ...]:
        """Return the axes over which an operand varies if the program's input varies over `varying`."""
        return varying


class Binding(NamedTuple):
    """The endpoints that one boundary op connects: `sources` are its operands, `targets` its results.

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

    `entries` are inputs and `exits` are outputs of programs, keyed by the index of the program.
    """

    group: int
    operand: Any = None
    entries: dict[int, Value] = field(default_factory=dict)
    exits: dict[int, Value] = field(default_factory=dict)
    has_result: bool = False


class KeyTracker(Protocol):
    """The ids of PRNG keys, and where each key was used, for `Control.track_keys`; see `transforms/key_uses.py`."""

    def new_keys(self, shape: tuple[int, ...]) -> NumpyArray: ...
    def used_at(self, key: int) -> Source | None: ...
    def mark(self, key: int, source: Source) -> None: ...
    def run(self, program: Program, inputs: Sequence[NumpyArray | None]) -> list[NumpyArray | None]: ...
    def run_branches(
        self, branches: Sequence[Program], operands: Sequence[NumpyArray | None], types: Sequence[ArrayType]
    ) -> list[NumpyArray | None]: ...


class Control(Op):
    """The base class of control ops. Bindings, and the endpoints of each kind, are ordered by group.

    Attributes:
        is_manual: whether the programs run on the shards of one device, along the Manual axes of the op.
    """

    single = False
    accepts_keys = infers_varying = True
    is_manual: ClassVar[bool] = False

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        raise self.missing_rule("bindings")

    @property
    def const_groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """For each program, the binding group of its constants, and the programs that receive these constants."""
        raise self.missing_rule("const_groups")

    def with_programs(self, programs: Sequence[Program], counts: Sequence[int] | None = None) -> Self:
        """Return the op with other programs. `counts` are the numbers of bindings per group, if they have changed."""
        raise self.missing_rule("with_programs")

    @property
    def mesh_axes(self) -> Mapping[str, tuple[str, ...]]:
        """For each axis of the manual region, its mesh axes; empty if the op is not a manual region."""
        return {}

    def allowing_divergence(self) -> Self:
        """Return the op with divergence allowed: devices may take different paths, as in a manual region."""
        return self

    @property
    def stack_length(self) -> int | None:
        """The size of the dim along which outputs of the program can be stacked, and inputs sliced.

        None if the op does not stack the outputs of its program.
        """
        return None

    def track_keys(
        self, uses: KeyTracker, operands: list[NumpyArray | None], types: Sequence[ArrayType]
    ) -> list[NumpyArray | None] | None:
        """Return the key ids of the results, and mark the keys that the programs use.

        Args:
            uses: the keys.
            operands: key ids, or known small arrays; None for other operands.
            types: the types of the results.

        Returns:
            For each result, its key ids; None for a result without keys. None instead of a list means that any key of
            an
            operand may be any key of a result.
        """
        return None

    def mesh_inside(self, mesh: AbstractMesh) -> AbstractMesh:
        """Return the mesh with its axis types inside the programs."""
        return mesh

    def without_varying(self) -> Self:
        """Return the op for programs whose types do not record over which Manual axes values vary."""
        return self

    def without_explicit(self) -> Self:
        """Return the op for programs whose types have no shardings along Explicit axes."""
        return self

    # Bindings and their endpoints.

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of bindings of each group."""
        by_group = Counter(binding.group for binding in self.bindings)
        return tuple(by_group[group] for group in range(max(by_group, default=-1) + 1))

    def endpoint_marks(self, marks: Sequence[bool], kind: str, program: int = 0) -> tuple[bool, ...]:
        """Map marks of bindings to marks of the endpoints of this kind, in order."""
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
            step: maps the index of a program and the marks of its inputs to the marks of its outputs.
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
        """Return a port for each binding, from these operands, program inputs and program outputs."""
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
            The op, its operands, and for each result the index of its port.
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

    def run_on_shards(self, mesh: AbstractMesh, operands: list[Shards], run: ProgramRunner) -> list[Shards]:
        return self.interpret(run, operands, mesh.device_count)

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        def run(n: int, args: list[Shards]) -> list[Shards]:
            return [[y] for y in evaluate(self.programs[n], [shards[0] for shards in args])]

        return tuple(shards[0] for shards in self.interpret(run, [[x] for x in operands]))


def _describe_endpoints(ends: Sequence[Endpoint]) -> str:
    return " and ".join(
        f"{end.kind} {end.number}" + (f" of program {end.program}" if end.kind in ("entry", "exit") else "")
        for end in ends
    )
