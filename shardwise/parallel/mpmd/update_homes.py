"""UpdateHomes: the stages that compute the values of a training step after its gradients.

A value is computed by the stage whose parameters it depends on; or by each stage for its own layers, if its rows are
layers; or by every stage. Numbers such as norms may depend on several stages: these compute their parts first and
exchange them. A value's level is the number of exchanges before it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import final

from shardwise.compiler.candidates.unfold import unfold
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.reduction import Reduction
from shardwise.errors import StrategyError
from shardwise.parallel.rows import Rows

LAYERS = "layers"
EVERYWHERE = "everywhere"
Home = int | str  # a stage, LAYERS for rows on all stages, EVERYWHERE for a value that every stage has

_MOST_EXCHANGED = 4096  # elements of a value that stages exchange: norms, not arrays of the size of parameters


@final
@dataclass(frozen=True, eq=False)
class Exchange:
    """A value that stages exchange.

    Attributes:
        level: the level of the programs that read it; those of the level before compute it.
        home: the stage that computes it; LAYERS if each stage reduces its own layers.
        reduction: combines the results of all stages, if its home is LAYERS.
    """

    level: int
    home: Home
    reduction: Reduction | None = None


@final
@dataclass(frozen=True, eq=False)
class UpdateHomes:
    """Where the values of a program are computed.

    Attributes:
        inputs: the home of each input.
        homes: the home of each value. That of a value that stages exchange is EVERYWHERE.
        exchanges: the values that stages exchange.
        levels: the number of exchanges before the last results are computed.
        rows: the dims of values that are layers; None if there are none.
    """

    inputs: tuple[Home, ...]
    homes: dict[Value, Home]
    exchanges: dict[Value, Exchange]
    levels: int
    rows: Rows | None

    def is_by_layer(self, equation: Equation) -> bool:
        """Return whether each stage applies an op to its own layers."""
        return any(self.homes[value] == LAYERS for value in (*equation.inputs, *equation.outputs))


def assign_homes(
    program: Program,
    known: Sequence[Home | None],
    next_outputs: dict[int, int],
    label: str,
    auxiliary: Collection[int] = (),
) -> UpdateHomes:
    """Return where the values of a program are computed.

    Args:
        program: the program.
        known: the homes of its inputs; None for an input that is placed where it is used.
        next_outputs: for each input that is state, the output that is passed as this input to the next call. It has the
            same home.
        label: the step, for errors.
        auxiliary: the inputs that are auxiliary results of the loss. One with layers is divided among the stages.

    Raises:
        StrategyError: if an op mixes arrays of several stages, or several layers.
    """
    pairs = [(program.inputs[number], program.outputs[output]) for number, output in next_outputs.items()]
    stacked = [value for value, home in zip(program.inputs, known, strict=True) if home == LAYERS]
    rows = Rows.from_values(stacked, unfold(program).equations, pairs) if stacked else None
    known = [
        LAYERS if index in auxiliary and _has_rows(rows, value) else home
        for index, (value, home) in enumerate(zip(program.inputs, known, strict=True))
    ]
    inputs = _Placement(program, known, rows, pairs).inputs()
    return _Homes(program, inputs, rows, label).assign(pairs)


def _has_rows(rows: Rows | None, value: Value) -> bool:
    return rows is not None and bool(rows.dims(value))


@final
class _Placement:
    """Places inputs with unknown homes, such as the optimizer's state, where the values are that they are used with."""

    def __init__(
        self, program: Program, known: Sequence[Home | None], rows: Rows | None, pairs: Sequence[tuple[Value, Value]]
    ):
        self._program = program
        self._rows = rows
        self._pairs = pairs
        self._inputs: dict[Value, Home] = {}
        self._group: dict[Value, Value] = {}  # union-find over inputs with an unknown home
        for value, home in zip(program.inputs, known, strict=True):
            if home is not None:
                self._inputs[value] = home
            elif _has_rows(rows, value):
                self._inputs[value] = LAYERS
            elif not value.type.ndim:
                self._inputs[value] = EVERYWHERE
            else:
                self._group[value] = value

    def inputs(self) -> dict[Value, Home]:
        """Return the homes of all inputs."""
        while self._propagate():
            pass
        return {
            value: self._inputs[value] if value in self._inputs else self._inputs.get(self._find(value), EVERYWHERE)
            for value in self._program.inputs
        }

    def _find(self, value: Value) -> Value:
        while (above := self._group[value]) is not value:
            value = above
        return value

    def _propagate(self) -> bool:
        """Go through the program once, and return whether an input was placed or two were joined."""
        where: dict[Value, Home | Value] = dict(self._inputs)  # a Value is an input whose home is unknown
        where.update({value: self._placed(value) for value in self._group})
        changed = False
        for equation in self._program.equations:
            if any(_has_rows(self._rows, value) for value in (*equation.inputs, *equation.outputs)):
                where.update(
                    {value: LAYERS if _has_rows(self._rows, value) else EVERYWHERE for value in equation.outputs}
                )
                continue
            homes = [where[value] for value in equation.inputs]
            arrays = [home for home, value in zip(homes, equation.inputs, strict=True) if value.type.ndim]
            changed |= self._join(arrays)
            found = [home for home in arrays or homes if home != EVERYWHERE]
            home = next((each for each in found if isinstance(each, int)), found[0] if found else EVERYWHERE)
            where.update(dict.fromkeys(equation.outputs, home))
        for value, output in self._pairs:
            changed |= self._join([where[value], where[output]])
        return changed

    def _placed(self, value: Value) -> Home | Value:
        group = self._find(value)
        return self._inputs.get(group, group)

    def _join(self, homes: Sequence[Home | Value]) -> bool:
        """Place inputs beside each other, and where others are that have one home. Return whether that is new."""
        groups = list(dict.fromkeys(self._find(home) for home in homes if isinstance(home, Value)))
        groups = [group for group in groups if group not in self._inputs]
        if not groups:
            return False
        stages = {home for home in homes if isinstance(home, int)}
        for group in groups[1:]:
            self._group[group] = groups[0]
        if len(stages) == 1:
            self._inputs[groups[0]] = stages.pop()
            return True
        return len(groups) > 1


@final
@dataclass(frozen=True, eq=False)
class _Homes:
    """Assigns homes and levels to the values of a program, in order.

    Attributes:
        program: the program.
        homes: the homes of its inputs, and of all values so far.
        rows: the dims of values that are layers.
        label: the step, for errors.
        levels: the levels of all values so far.
        exchanges: the exchanges so far.
    """

    program: Program
    homes: dict[Value, Home]
    rows: Rows | None
    label: str
    levels: dict[Value, int] = field(default_factory=dict)
    exchanges: dict[Value, Exchange] = field(default_factory=dict)

    def assign(self, pairs: Sequence[tuple[Value, Value]]) -> UpdateHomes:
        inputs = tuple(self.homes[value] for value in self.program.inputs)
        self.levels.update(dict.fromkeys(self.program.inputs, 0))
        self._check_layers(self.program.inputs, "an argument")
        for equation in self.program.equations:
            if any(_has_rows(self.rows, value) for value in (*equation.inputs, *equation.outputs)):
                self._assign_rows(equation)
            else:
                self._assign(equation, self._single_home(equation), self._level(equation))
        for value, output in pairs:
            home, new = self.homes[value], self.homes[output]
            if home == EVERYWHERE and new != EVERYWHERE:
                self._exchange(output, f"a result of {self.label}")
            elif isinstance(home, int) and isinstance(new, int) and home != new:
                raise StrategyError(
                    f"mpmd_step: {self.label} returns an array of stage {new} of type {output.type} as the next value "
                    f"of one of stage {home}."
                )
        state = {output for _, output in pairs}
        for output in self.program.outputs:  # metrics, which every process can read
            if isinstance(self.homes[output], int) and output not in state and output.type.size <= _MOST_EXCHANGED:
                self._exchange(output, f"a result of {self.label}")
        self._check_layers(self.program.outputs, "a result")
        last = max((self.levels[value] for value in self.program.outputs), default=0)
        return UpdateHomes(inputs, self.homes, self.exchanges, last, self.rows)

    def _check_layers(self, values: Sequence[Value], kind: str) -> None:
        """Check that layers are dim 0 of arguments and results."""
        for value in values:
            if self.homes[value] == LAYERS and (
                self.rows is None or self.rows.dims(value) != [0] or value.type.shape[0] != self.rows.count
            ):
                raise StrategyError(
                    f"mpmd_step: {kind} of type {value.type} of {self.label} depends on the layers, but its layers are "
                    "not dim 0: transpose or reshape it to (layers, ...), so that each stage has some of its rows."
                )

    def _level(self, equation: Equation) -> int:
        return max((self.levels[value] for value in equation.inputs), default=0)

    def _assign(self, equation: Equation, home: Home, level: int) -> None:
        self.homes.update(dict.fromkeys(equation.outputs, home))
        self.levels.update(dict.fromkeys(equation.outputs, level))

    def _single_home(self, equation: Equation) -> Home:
        """Return the home of an op without layers. Operands of several stages are exchanged first."""
        stages = {home for value in equation.inputs if isinstance(home := self.homes[value], int)}
        if len(stages) > 1:
            for value in equation.inputs:
                if isinstance(self.homes[value], int):
                    self._exchange(value, self._describe(equation))
            return EVERYWHERE
        if stages:
            return stages.pop()
        return 0 if equation.op.effect else EVERYWHERE

    def _assign_rows(self, equation: Equation) -> None:
        """Assign homes to the results of an op on layers, which each stage applies to its own."""
        assert self.rows is not None
        for value in equation.inputs:
            if isinstance(self.homes[value], int):
                self._exchange(value, self._describe(equation))
        level = self._level(equation)
        if self.rows.pass_through(equation):
            self._assign(equation, LAYERS, level)
            return
        reduction = self.rows.reduction(equation)
        if reduction is None:
            raise StrategyError(
                f"mpmd_step: {self._describe(equation)} mixes the layers of several stages: after the gradients, a "
                "step may compute each layer from this layer alone, or reduce all of them to numbers, such as norms."
            )
        self._assign(equation, EVERYWHERE, level + 1)
        for value in equation.outputs:
            self._check_size(value, self._describe(equation))
            self.exchanges[value] = Exchange(level + 1, LAYERS, reduction)

    def _exchange(self, value: Value, reader: str) -> None:
        """Let all stages have a value of one stage."""
        home = self.homes[value]
        if value not in self.exchanges:
            self._check_size(value, reader)
            self.exchanges[value] = Exchange(self.levels[value] + 1, home)
        self.homes[value], self.levels[value] = EVERYWHERE, self.exchanges[value].level

    def _check_size(self, value: Value, reader: str) -> None:
        if value.type.size > _MOST_EXCHANGED:
            raise StrategyError(
                f"mpmd_step: {reader} reads arrays of several stages, one of type {value.type}: stages exchange only "
                f"values of at most {_MOST_EXCHANGED} elements. After the gradients, a step may combine arrays of one "
                "stage, and numbers, such as norms, of all."
            )

    def _describe(self, equation: Equation) -> str:
        return f"`{equation.op.name}` at {equation.source} in {self.label}"
