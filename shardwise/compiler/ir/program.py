"""Program: a function as straight-line equations over typed values (JAX: jaxpr), the input of every stage up to lower.

program ::= inputs equation* outputs          every value is defined once, before its uses
equation ::= outputs = op inputs              with the user's source line
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, final

from shardwise.base.call_site import format_line
from shardwise.compiler.ir.format import format_equation, format_program
from shardwise.compiler.ir.types import ArrayType

if TYPE_CHECKING:
    from shardwise.compiler.ir.op import Op


class Source(NamedTuple):
    """A line of the user's program.

    Attributes:
        file: the path of the file.
        line: the number of the line.
        function: the name of the function.
        scope: the names of the `named_scope`s around the line, outermost first.
        metadata: the setting `xla_metadata` at the line: attributes of its ops, as JSON, or "".
        no_collectives: the setting `no_collectives` at the line: the mesh axes along which its ops must not
            communicate.
    """

    file: str
    line: int
    function: str
    scope: tuple[str, ...] = ()
    metadata: str = ""
    no_collectives: frozenset[str] = frozenset()

    @property
    def place(self) -> str:
        """The file and line, such as `train.py:41`, or the cell and line of a notebook."""
        return format_line(self.file, self.line) if self.file else "an unknown line"

    def __str__(self) -> str:
        """Return `train.py:41`, or `train.py:41 in encoder/attention` if there are scopes."""
        return f"{self.place} in {'/'.join(self.scope)}" if self.scope else self.place

    def within(self, scope: tuple[str, ...]) -> "Source":
        """Return the same line with `scope` added around its own scope, unless it is already there.

        Loop bodies are copied several times, each time with the scope of the loop.
        """
        if self.scope[: len(scope)] == scope:
            return self
        return self._replace(scope=(*scope, *self.scope))


NOWHERE = Source("", 0, "")


@final
class Value:
    """A typed name that is defined once (JAX: var). Values compare by identity."""

    __slots__ = ("type",)

    def __init__(self, type: ArrayType):
        self.type = type

    def __str__(self) -> str:
        """Return the type, because a value has a name only inside a program."""
        return str(self.type)


class Reason:
    """The reason why the partitioner inserted an equation; `str` formats it. Subclasses are in `partition.reason`."""


@final
class Equation:
    """One op applied to values (JAX: eqn).

    Attributes:
        op: the op.
        inputs: the operands.
        outputs: the results, which the equation defines.
        source: the user's line.
        reason: why the compiler inserted the equation; None if the user wrote the op.
    """

    __slots__ = ("inputs", "op", "outputs", "reason", "source")

    def __init__(
        self,
        op: "Op",
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        source: Source = NOWHERE,
        reason: Reason | None = None,
    ):
        self.op = op
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.source = source
        self.reason = reason

    def replace(
        self,
        *,
        op: "Op | None" = None,
        inputs: Sequence[Value] | None = None,
        outputs: Sequence[Value] | None = None,
        source: Source | None = None,
        reason: Reason | None = None,
    ) -> "Equation":
        """Return a copy in which the given parts are replaced."""
        return Equation(
            self.op if op is None else op,
            self.inputs if inputs is None else inputs,
            self.outputs if outputs is None else outputs,
            self.source if source is None else source,
            self.reason if reason is None else reason,
        )

    def __str__(self) -> str:
        return format_equation(self)


def strongest_effect(effects: Iterable[str]) -> str:
    """Return the strongest of several effects: "ordered", else "unordered", else ""."""
    return max(effects, key=("", "unordered", "ordered").index, default="")


@final
class SourceLines:
    """The source lines of a program as a cache key with a cached hash."""

    __slots__ = ("_hash", "lines")

    def __init__(self, lines: tuple[Source, ...]):
        self.lines = lines
        self._hash = hash(lines)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SourceLines) and self._hash == other._hash and self.lines == other.lines


@final
@dataclass(frozen=True, eq=False)
class Program:
    """Inputs, equations and outputs. Equality compares the structure, ignoring names and source lines."""

    inputs: tuple[Value, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Value, ...]
    name: str = "main"

    @property
    def in_types(self) -> tuple[ArrayType, ...]:
        return tuple(value.type for value in self.inputs)

    @property
    def out_types(self) -> tuple[ArrayType, ...]:
        return tuple(value.type for value in self.outputs)

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """The structure that equality compares, with values numbered in order of definition."""
        numbers = {value: index for index, value in enumerate(self.inputs)}
        rows = []
        for equation in self.equations:
            rows.append((equation.op, tuple(numbers[value] for value in equation.inputs)))
            for value in equation.outputs:
                numbers[value] = len(numbers)
        return self.in_types, tuple(rows), tuple(numbers[value] for value in self.outputs)

    @cached_property
    def _hash(self) -> int:
        return hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Program) and self._hash == other._hash and self.key == other.key

    def __str__(self) -> str:
        return format_program(self)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.in_types))}) -> ({', '.join(map(str, self.out_types))})"

    @cached_property
    def sources(self) -> "SourceLines":
        """The source lines of all equations, including equations of nested programs."""
        return SourceLines(tuple(equation.source for equation in self.walk()))

    @cached_property
    def effect(self) -> str:
        """The strongest effect of the program's ops."""
        return strongest_effect(equation.op.effect for equation in self.equations)

    @cached_property
    def axis_names(self) -> frozenset[Any]:
        """The names of the mapped axes that the program's ops use. The program's context must bind them."""
        return frozenset().union(*(equation.op.axis_names for equation in self.equations))

    def walk(self) -> Iterator[Equation]:
        """Yield all equations, including equations of nested programs."""
        for equation in self.equations:
            yield equation
            for program in equation.op.programs:
                yield from program.walk()

    def outputs_depending_on(self, inputs: Sequence[bool]) -> list[bool]:
        """Return, for each output, whether it depends on an input that is marked with True."""
        dependent = {value for value, marked in zip(self.inputs, inputs, strict=True) if marked}
        for equation in self.equations:
            if not dependent.isdisjoint(equation.inputs):
                dependent.update(equation.outputs)
        return [value in dependent for value in self.outputs]

    def with_equations(self, equations: Iterable[Equation], outputs: Iterable[Value] | None = None) -> "Program":
        """Return the program with other equations, and optionally other outputs."""
        return Program(self.inputs, tuple(equations), self.outputs if outputs is None else tuple(outputs), self.name)

    @cached_property
    def used(self) -> frozenset[Value]:
        """The values that an equation reads or the program returns."""
        return frozenset(value for equation in self.equations for value in equation.inputs) | {*self.outputs}

    def producers(self) -> dict[Value, Equation]:
        """Return the equation that defines each value, except for inputs."""
        return {value: equation for equation in self.equations for value in equation.outputs}

    def values(self) -> Iterable[Value]:
        """Yield all values in order of definition."""
        yield from self.inputs
        for equation in self.equations:
            yield from equation.outputs
