"""choose: one candidate for every equation on every axis, by cost.

One mesh axis at a time, the others held: a variable for each equation, a table of reshard costs for each edge, and the
exact minimum by elimination. A value with several uses has a variable of its own: the state it is produced in and one
shared copy, of which every use takes the cheaper. Rounds over the axes go on until nothing changes.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import final

import numpy as np

from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.plan.cost import CPU, Hardware, compute_cost, reshard_cost
from shardwise.compiler.plan.eliminate import Table, eliminate
from shardwise.compiler.plan.plan import Choice, Plan
from shardwise.compiler.propagate.candidates import REPLICATED, Candidate, State
from shardwise.compiler.propagate.sharded import ShardedProgram
from shardwise.compiler.shardings.layout import Layout, Pin

Picks = dict[str, dict[Equation, Candidate]]  # by axis
ROUNDS = 3


def choose(sharded: ShardedProgram, hardware: Hardware = CPU) -> Plan:
    """The cheapest plan that keeps every pin."""
    if not sharded.mesh.axis_names:
        return Plan({}, tuple(Layout.replicated(value.type.ndim) for value in sharded.program.outputs))
    picks: Picks = {}
    seen: list[Picks] = []
    against: dict[str, Picks] = {}  # the others' picks when an axis was last solved
    for _ in range(ROUNDS):
        for axis in sharded.mesh.axis_names:
            others = {name: rows for name, rows in picks.items() if name != axis}
            if against.get(axis) != others:
                against[axis] = others
                picks = {**picks, axis: _Axis(sharded, axis, others, hardware).solve()}
        if seen and picks == seen[-1]:
            break
        seen.append(picks)
    else:
        # An axis does not see what its choice costs the others: rounds that go on need not get better.
        picks = min(seen, key=lambda each: picks_cost(sharded, each, hardware))
    return settle(sharded, picks)


def picks_cost(sharded: ShardedProgram, picks: Picks, hardware: Hardware = CPU) -> float:
    """What picks cost on all axes together: compute once, and the moves along every axis."""
    moves = 0.0
    for axis, rows in picks.items():
        others = {name: theirs for name, theirs in picks.items() if name != axis}
        moves += _Axis(sharded, axis, others, hardware).moves(rows)
    work = 0.0
    for equation in sharded.options[next(iter(picks))] if picks else ():
        cut = [sharded.mesh.shape[axis] for axis, rows in picks.items() if rows[equation].factor is not None]
        work += compute_cost(equation, math.prod(cut), hardware)
    return moves + work


@final
class _Axis:
    """The choice on one axis, given the picks on the others."""

    def __init__(self, sharded: ShardedProgram, axis: str, others: Picks, hardware: Hardware):
        self.sharded = sharded
        self.axis = axis
        self.count = sharded.mesh.shape[axis]
        self.others = others
        self.hardware = hardware
        self.options = {
            equation: [c for c in options if divides(sharded, axis, equation, c, self.others)]
            for equation, options in sharded.options[axis].items()
        }
        self.number = {equation: number for number, equation in enumerate(self.options)}
        self.labels = [len(options) for options in self.options.values()]
        self.shared: dict[Value, int] = {}  # the variables of values with several uses
        self.tables: list[Table] = []
        self._edges()

    def solve(self) -> dict[Equation, Candidate]:
        """The cheapest candidates."""
        for equation, options in self.options.items():
            split = math.prod(
                self.sharded.mesh.shape[name] for name, rows in self.others.items() if rows[equation].factor is not None
            )
            costs = [
                compute_cost(equation, split * (1 if c.factor is None else self.count), self.hardware) for c in options
            ]
            self.tables.append(((self.number[equation],), np.array(costs)))
        chosen = eliminate(self.labels, self.tables, self._greedy())
        return {equation: options[chosen[self.number[equation]]] for equation, options in self.options.items()}

    def moves(self, rows: dict[Equation, Candidate]) -> float:
        """What it costs to bring values where these candidates want them."""
        labels = [1] * len(self.labels)
        at = {self.number[equation]: options.index(rows[equation]) for equation, options in self.options.items()}
        tables = []
        for scope, costs in self.tables:
            tables.append((scope, costs[np.ix_(*([at[v]] if v in at else range(self.labels[v]) for v in scope))]))
        for variable in self.shared.values():
            labels[variable] = self.labels[variable]
        found = eliminate(labels, tables, [0] * len(labels))
        return float(sum(costs[tuple(found[variable] for variable in scope)] for scope, costs in tables))

    def _edges(self) -> None:
        program = self.sharded.program
        uses: dict[Value, list[tuple[Equation, int]]] = defaultdict(list)
        for equation in self.options:
            for place, value in enumerate(equation.inputs):
                uses[value].append((equation, place))
        ends: dict[Value, list[Pin | None]] = defaultdict(list)
        for value, pin in zip(program.outputs, self.sharded.out_pins, strict=True):
            ends[value].append(pin)
        producer = {value: equation for equation in self.options for value in equation.outputs}
        for value in program.values():
            if value in self.sharded.free or not (uses[value] or ends[value]):
                continue
            made = self._produced(value, producer.get(value))
            whole_bytes = self._bytes(value, producer.get(value))
            source: tuple[int, ...] = (self.number[producer[value]],) if value in producer else ()
            if len(uses[value]) + len(ends[value]) > 1:
                source, made = self._shared(value, source, made, uses[value], whole_bytes)
            for pin in ends[value]:
                self._table(source, (), [[self._leave(state, pin, whole_bytes)] for state in made])
            for equation, place in uses[value]:
                costs = [
                    [
                        min(self._reshard(s, c.operands[place], whole_bytes, c.adopts) for s in _copies(state))
                        for c in self.options[equation]
                    ]
                    for state in made
                ]
                self._table(source, (self.number[equation],), costs)

    def _produced(self, value: Value, producer: Equation | None) -> list[State | tuple[State, State]]:
        if producer is None:
            dim = self.sharded.pinned[value].layout.dim_of(self.axis)
            return [REPLICATED if dim is None else dim]
        place = producer.outputs.index(value)
        return [candidate.results[place] for candidate in self.options[producer]]

    def _shared(
        self,
        value: Value,
        source: tuple[int, ...],
        made: list[State | tuple[State, State]],
        uses: Sequence[tuple[Equation, int]],
        whole_bytes: float,
    ) -> tuple[tuple[int, ...], list[State | tuple[State, State]]]:
        """A variable of (state produced, one shared copy) for a value with several uses."""
        wanted = [c.operands[place] for equation, place in uses for c in self.options[equation]]
        pairs: list[tuple[State, State]] = []
        for state in dict.fromkeys(made):
            assert not isinstance(state, tuple)
            copies = [w for w in dict.fromkeys(wanted) if w in (REPLICATED,) or isinstance(w, int)]
            pairs += [(state, copy) for copy in dict.fromkeys([state, *copies])]
        self.labels.append(len(pairs))
        self.shared[value] = variable = len(self.labels) - 1
        self.tables.append(
            ((variable,), np.array([self._reshard(before, after, whole_bytes, False) for before, after in pairs]))
        )
        if source:
            agree = [[0.0 if pair[0] == state else np.inf for pair in pairs] for state in made]
            self.tables.append(((*source, variable), np.array(agree)))
        return (variable,), list(pairs)

    def _reshard(self, before: State, after: State, whole_bytes: float, adopts: bool) -> float:
        return reshard_cost(before, after, whole_bytes, self.count, adopts, self.hardware)

    def _leave(self, state: State | tuple[State, State], pin: Pin | None, whole_bytes: float) -> float:
        """What it costs to give a value out: as pinned, or in any state that is not partial."""
        costs = []
        for copy in _copies(state):
            dim = None if pin is None else pin.layout.dim_of(self.axis)
            if dim is not None:
                costs.append(self._reshard(copy, dim, whole_bytes, False))
            elif isinstance(copy, int) and (pin is None or copy in pin.open_dims):
                costs.append(0.0)
            else:
                costs.append(self._reshard(copy, REPLICATED, whole_bytes, False))
        return min(costs)

    def _table(self, source: tuple[int, ...], target: tuple[int, ...], costs: list[list[float]]) -> None:
        """Costs by the source's label and the target's; either may be fixed, and then has no dim."""
        array = np.array(costs)
        array = array if source else array[0]
        array = array if target else array[..., 0]
        if source == target and source:
            array, target = array.diagonal(), ()
        if source or target:
            self.tables.append(((*source, *target), array))

    def _bytes(self, value: Value, producer: Equation | None) -> float:
        """The value's bytes on one device, were it whole along this axis."""
        split = 1
        for name, rows in self.others.items():
            if producer is None:
                cut = self.sharded.pinned[value].layout.dim_of(name) is not None
            else:
                cut = isinstance(rows[producer].results[producer.outputs.index(value)], int)
            split *= self.sharded.mesh.shape[name] if cut else 1
        return value.type.nbytes / split

    def _greedy(self) -> list[int]:
        """Each variable in turn at its cheapest label, given those before: what elimination holds where it must.

        It is never forbidden: every equation has a candidate whose operands can be had from any state.
        """
        order = [self.shared[value] for value in self.sharded.program.inputs if value in self.shared]
        for equation, number in self.number.items():
            order += [number, *(self.shared[value] for value in equation.outputs if value in self.shared)]
        place = {variable: number for number, variable in enumerate(order)}
        closing: dict[int, list[Table]] = defaultdict(list)
        for scope, costs in self.tables:
            closing[max(scope, key=place.__getitem__)].append((scope, costs))
        chosen = [0] * len(self.labels)
        for variable in order:
            total = np.zeros(self.labels[variable])
            for scope, costs in closing[variable]:
                total = total + costs[tuple(slice(None) if v == variable else chosen[v] for v in scope)]
            chosen[variable] = int(total.argmin())
        return chosen


def divides(sharded: ShardedProgram, axis: str, equation: Equation, candidate: Candidate, others: Picks) -> bool:
    """Whether the picks on other axes leave room: a factor that shares a dim is cut evenly or not at all."""
    rule = factor_rule(equation.op, tuple(value.type for value in equation.inputs))
    if candidate.factor is None or candidate.factor not in rule.compound:
        return True
    cut = sharded.mesh.shape[axis]
    for name, rows in others.items():
        if rows[equation].factor == candidate.factor:
            cut *= sharded.mesh.shape[name]
    return rule.sizes[candidate.factor] % cut == 0


def _copies(state: State | tuple[State, State]) -> tuple[State, ...]:
    return state if isinstance(state, tuple) else (state,)


def settle(sharded: ShardedProgram, picks: Picks) -> Plan:
    """Picks on each axis as layouts. The axes of one dim keep the order in which an operand has them."""
    layouts: dict[Value, Layout] = {value: pin.layout for value, pin in sharded.pinned.items()}
    axes = sharded.mesh.axis_names
    choices = {}
    for equation in sharded.program.equations:
        if sharded.free.issuperset(equation.outputs):
            continue
        picked = {axis: picks[axis][equation] for axis in axes}
        order = _order(equation, picked, layouts, axes)
        operands = tuple(
            _layout(value, {axis: pick.operands[i] for axis, pick in picked.items()}, order)
            for i, value in enumerate(equation.inputs)
        )
        results = tuple(
            _layout(value, {axis: pick.results[i] for axis, pick in picked.items()}, order)
            for i, value in enumerate(equation.outputs)
        )
        choices[equation] = Choice(operands, results)
        layouts.update(zip(equation.outputs, results, strict=True))
    outputs = tuple(
        _out_layout(layouts.get(value, Layout.replicated(value.type.ndim)), pin)
        for value, pin in zip(sharded.program.outputs, sharded.out_pins, strict=True)
    )
    return Plan(choices, outputs)


def _order(
    equation: Equation, picked: dict[str, Candidate], layouts: dict[Value, Layout], axes: tuple[str, ...]
) -> list[str]:
    """All axes, in the order that the operands' dims have; the pinned order of a constraint comes first."""
    known = [layouts[value] for value in equation.inputs if value in layouts]
    pin = getattr(equation.op, "pin", None)
    orders = [dim for layout in ([pin.layout] if pin else []) + known for dim in layout.dims]
    best: list[str] = []
    for factor in dict.fromkeys(candidate.factor for candidate in picked.values()):
        together = [axis for axis in axes if picked[axis].factor == factor]
        found = next((dim for dim in orders if set(together) <= set(dim)), together)
        best += [axis for axis in found if axis in together]
    return best


def _layout(value: Value, states: dict[str, State], order: list[str]) -> Layout:
    dims = tuple(tuple(axis for axis in order if states[axis] == dim) for dim in range(value.type.ndim))
    partial = tuple(
        (axis, str(states[axis]))
        for axis in sorted(states)
        if states[axis] not in (REPLICATED, *range(value.type.ndim))
    )
    return Layout(dims, partial)


def _out_layout(made: Layout, pin: Pin | None) -> Layout:
    """The layout in which an output leaves: pinned dims as pinned, open ones as they were made; never partial."""
    if pin is None:
        return Layout(made.dims)
    taken = set(pin.layout.axes)
    return Layout(
        tuple(
            (*axes, *(axis for axis in made.dims[dim] if axis not in taken)) if dim in pin.open_dims else axes
            for dim, axes in enumerate(pin.layout.dims)
        )
    )
