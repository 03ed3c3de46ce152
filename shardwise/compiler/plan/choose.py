"""choose: one candidate for every equation on every axis, by cost.

One mesh axis at a time, the others held: a variable for each equation, a table of reshard costs for each edge, and the
exact minimum by elimination. A value with several uses has a variable of its own: the state it is produced in and one
shared copy, of which every use takes the cheaper. Rounds over the axes go on until nothing changes.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np

from shardwise.caches import registered_cache
from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.plan.cost import Costs, compute_cost, reshard_cost
from shardwise.compiler.plan.eliminate import IdentityCache, Table, eliminate
from shardwise.compiler.plan.hardware import CPU, Chip
from shardwise.compiler.plan.plan import Choice, LayoutPlan
from shardwise.compiler.propagate.candidates import REPLICATED, Candidate, State
from shardwise.compiler.propagate.propagate import ShardedProgram
from shardwise.compiler.reduction import Reduction
from shardwise.compiler.shardings.layout import Layout, Pin

Picks = dict[str, dict[Equation, Candidate]]  # by axis
Made = State | tuple[State, State]  # the state in which a value is made; and one shared copy
ROUNDS = 3


def choose(sharded: ShardedProgram, chip: Chip = CPU) -> LayoutPlan:
    """The cheapest plan on such chips that keeps every pin."""
    if not sharded.mesh.axis_names:
        return LayoutPlan({}, tuple(Layout.replicated(value.type.ndim) for value in sharded.program.outputs), chip)
    planner = _Planner(sharded, Costs(chip, sharded.mesh))
    picks: Picks = {}
    seen: list[Picks] = []
    against: dict[str, Picks] = {}  # the others' picks when an axis was last solved
    for _ in range(ROUNDS):
        for axis in sharded.mesh.axis_names:
            others = {name: rows for name, rows in picks.items() if name != axis}
            if against.get(axis) != others:
                against[axis] = others
                picks = {**picks, axis: _Axis(planner, axis, others).solve()}
        if seen and picks == seen[-1]:
            break
        seen.append(picks)
    else:
        # An axis does not see what its choice costs the others: rounds that go on need not get better.
        picks = min(seen, key=planner.cost)
    return plan_from_picks(sharded, picks, chip)


def picks_cost(sharded: ShardedProgram, picks: Picks, chip: Chip = CPU) -> float:
    """What picks cost on all axes together: compute once, and the moves along every axis."""
    return _Planner(sharded, Costs(chip, sharded.mesh)).cost(picks)


class _Uses(NamedTuple):
    """A value that is not free: who makes it (as which result), who takes it (as which operand), how it leaves."""

    value: Value
    maker: Equation | None
    number: int
    takers: list[tuple[Equation, int]]
    ends: list[Pin | None]


@final
class _Planner:
    """What the choices on all axes share: the uses of values, the work of equations, and tables that come again."""

    def __init__(self, sharded: ShardedProgram, costs: Costs):
        self.sharded = sharded
        self.costs = costs
        self.cache = IdentityCache()
        self.uses = self._uses()
        times = sharded.unfolded.run_counts
        self.work = {e: compute_cost(e, 1, costs) * times[e] for e in sharded.planned}
        rules = [(e, factor_rule(e.op, tuple([value.type for value in e.inputs]))) for e in sharded.planned]
        self.compound = [e for e, rule in rules if rule.compound]
        self.talking = dict.fromkeys(e for e, rule in rules if rule.exchange)

    def _uses(self) -> list[_Uses]:
        sharded = self.sharded
        takers: dict[Value, list[tuple[Equation, int]]] = defaultdict(list)
        for equation in sharded.planned:
            for place, value in enumerate(equation.inputs):
                takers[value].append((equation, place))
        ends: dict[Value, list[Pin | None]] = defaultdict(list)
        for value, pin in zip(sharded.program.outputs, sharded.out_pins, strict=True):
            ends[value].append(pin)
        makers = {value: (e, number) for e in sharded.planned for number, value in enumerate(e.outputs)}
        return [
            _Uses(value, maker, number, takers.get(value, []), ends.get(value, []))
            for value in sharded.values
            if value not in sharded.free and (value in takers or value in ends)
            for maker, number in [makers.get(value, (None, 0))]
        ]

    def cost(self, picks: Picks) -> float:
        """What picks cost on all axes together."""
        moves = 0.0
        for axis, rows in picks.items():
            others = {name: theirs for name, theirs in picks.items() if name != axis}
            moves += _Axis(self, axis, others).moves(rows)
        work = sum(cost / self.split(equation, picks) for equation, cost in self.work.items())
        return moves + work

    def split(self, equation: Equation, picks: Picks) -> int:
        """How many devices share the work of an equation."""
        sizes = self.sharded.mesh.shape
        return math.prod([sizes[axis] for axis, rows in picks.items() if rows[equation].factor is not None])


@final
class _Axis:
    """The choice on one axis, given the picks on the others."""

    def __init__(self, planner: _Planner, axis: str, others: Picks):
        self.planner = planner
        self.sharded = sharded = planner.sharded
        self.axis = axis
        self.count = sharded.mesh.shape[axis]
        self.link = planner.costs.link_cost(axis)
        self.others = others
        self.options = dict(sharded.candidates[axis])
        for equation in planner.compound:
            self.options[equation] = compatible_candidates(sharded, axis, equation, self.options[equation], others)
        self.number = {equation: number for number, equation in enumerate(self.options)}
        self.labels = [len(options) for options in self.options.values()]
        self.shared: dict[Value, int] = {}  # the variables of values with several uses
        self.tables: list[Table] = []
        for uses in planner.uses:
            self._edges(uses)

    def solve(self) -> dict[Equation, Candidate]:
        """The cheapest candidates."""
        planner = self.planner
        for equation, options in self.options.items():
            if len(options) > 1:
                whole = planner.work[equation] / planner.split(equation, self.others)
                talk = self._talk(equation, options) if equation in planner.talking else ()
                key = ("work", whole, talk, id(options))
                costs = self._array(key, partial(self._working, whole, talk, options), options)
                self.tables.append(((self.number[equation],), costs))
        chosen = eliminate(self.labels, self.tables, self._greedy, cache=planner.cache)
        return {equation: options[chosen[self.number[equation]]] for equation, options in self.options.items()}

    def _talk(self, equation: Equation, options: tuple[Candidate, ...]) -> tuple[float, ...]:
        """What each candidate sends from device to device inside the op."""
        types = tuple([value.type for value in equation.inputs])
        rule = factor_rule(equation.op, types)
        times = self.sharded.unfolded.run_counts[equation]
        split = self.planner.split(equation, self.others)

        def cost(candidate: Candidate) -> float:
            if candidate.factor not in rule.exchange:
                return 0.0
            sent = equation.op.exchanged_bytes(candidate.factor, self.count, *types)
            return times * (self.link.collective + self.link.byte * sent / split) if sent else 0.0

        return tuple([cost(candidate) for candidate in options])

    def _working(self, whole: float, talk: tuple[float, ...], options: tuple[Candidate, ...]) -> list[float]:
        """What each candidate computes, and what it sends while it does."""
        work = [whole / (1 if candidate.factor is None else self.count) for candidate in options]
        return [cost + sent for cost, sent in zip(work, talk, strict=True)] if talk else work

    def moves(self, rows: dict[Equation, Candidate]) -> float:
        """What it costs to bring values where these candidates want them, and what they send themselves."""
        labels = [1] * len(self.labels)
        at = {self.number[equation]: options.index(rows[equation]) for equation, options in self.options.items()}
        tables = []
        for scope, costs in self.tables:
            tables.append((scope, costs[np.ix_(*([at[v]] if v in at else range(self.labels[v]) for v in scope))]))
        for variable in self.shared.values():
            labels[variable] = self.labels[variable]
        found = eliminate(labels, tables, lambda: [0] * len(labels))
        brought = sum(costs[tuple(found[variable] for variable in scope)] for scope, costs in tables)
        return float(brought) + sum(sum(self._talk(equation, (rows[equation],))) for equation in self.planner.talking)

    def _edges(self, uses: _Uses) -> None:
        """The tables of one value: what it costs to bring it to each of its uses."""
        made: tuple[Made, ...]
        source: tuple[int, ...] = ()
        if uses.maker is None:
            dim = self.sharded.pinned[uses.value].layout.dim_of(self.axis)
            made = (REPLICATED if dim is None else dim,)
        else:
            made = tuple([candidate.results[uses.number] for candidate in self.options[uses.maker]])
            source = (self.number[uses.maker],)
        weight = (self._bytes(uses), self.sharded.unfolded.run_counts[uses.value])
        if len(uses.takers) + len(uses.ends) > 1:
            source, made = self._shared(uses, source, made, weight)
        for pin in uses.ends:
            wanted = None if pin is None else pin.layout.dim_of(self.axis)
            open_dims = None if pin is None else pin.open_dims
            key = ("leave", made, wanted, open_dims, *weight)
            self._table(source, (), self._array(key, partial(self._leaving, made, wanted, open_dims, weight)))
        for equation, place in uses.takers:
            options = self.options[equation]
            taken = ("take", made, id(options), place, *weight)
            costs = self._array(taken, partial(self._taking, made, options, place, weight), options)
            self._table(source, (self.number[equation],), costs)

    def _shared(
        self, uses: _Uses, source: tuple[int, ...], made: tuple[Made, ...], weight: tuple[float, int]
    ) -> tuple[tuple[int, ...], tuple[Made, ...]]:
        """A variable of (state produced, one shared copy) for a value with several uses."""
        wanted = dict.fromkeys(c.operands[place] for equation, place in uses.takers for c in self.options[equation])
        copies = [state for state in wanted if state == REPLICATED or isinstance(state, int)]
        states: tuple[Any, ...] = tuple(dict.fromkeys(made))
        pairs: tuple[tuple[State, State], ...] = tuple(
            [(state, copy) for state in states for copy in dict.fromkeys([state, *copies])]
        )
        self.labels.append(len(pairs))
        self.shared[uses.value] = variable = len(self.labels) - 1
        copying = self._array(("copy", pairs, *weight), partial(self._copying, pairs, weight))
        self.tables.append(((variable,), copying))
        if source:
            agree = self._array(("agree", made, pairs), partial(_agreeing, made, pairs))
            self.tables.append(((*source, variable), agree))
        return (variable,), pairs

    def _array(self, key: tuple[Any, ...], rows: Callable[[], Any], *named: Any) -> np.ndarray:
        """A table's costs; equal ones are one array. `named` are the objects whose identity is in the key."""
        return self.planner.cache.get((self.axis, *key), named, lambda: np.array(rows()))  # type: ignore[no-any-return]

    def _reshard(self, before: State, after: State, weight: tuple[float, int], replicated_as_partial: bool) -> float:
        whole_bytes, times = weight
        link = self.link if times == 1 else self.link.in_loop
        return times * reshard_cost(before, after, whole_bytes, self.count, replicated_as_partial, link)

    def _taking(
        self, made: tuple[Made, ...], options: tuple[Candidate, ...], place: int, weight: tuple[float, int]
    ) -> list[list[float]]:
        """What it costs to bring a value to an operand of each candidate: each takes the cheaper copy."""
        return [
            [
                min([self._reshard(s, c.operands[place], weight, c.replicated_as_partial) for s in _copies(state)])
                for c in options
            ]
            for state in made
        ]

    def _copying(self, pairs: tuple[tuple[State, State], ...], weight: tuple[float, int]) -> list[float]:
        """What the shared copy costs."""
        return [self._reshard(before, after, weight, False) for before, after in pairs]

    def _leaving(
        self,
        made: tuple[Made, ...],
        wanted: int | None,
        open_dims: frozenset[int] | None,
        weight: tuple[float, int],
    ) -> list[list[float]]:
        """What it costs to give a value out: as pinned, or in any state that is not partial."""

        def cost(copy: State) -> float:
            if wanted is not None:
                return self._reshard(copy, wanted, weight, False)
            if isinstance(copy, int) and (open_dims is None or copy in open_dims):
                return 0.0
            return self._reshard(copy, REPLICATED, weight, False)

        return [[min(map(cost, _copies(state)))] for state in made]

    def _table(self, source: tuple[int, ...], target: tuple[int, ...], costs: np.ndarray) -> None:
        """Costs by the source's label and the target's; either may be fixed, and then has no dim."""
        if source == target and source:
            self.tables.append((source, self._part(costs, "diagonal")))
        elif source and target:
            self.tables.append(((*source, *target), costs))
        elif source or target:
            self.tables.append(((*source, *target), self._part(costs, "column" if source else "row")))

    def _part(self, costs: np.ndarray, part: str) -> np.ndarray:
        parts = {"diagonal": costs.diagonal, "column": lambda: costs[:, 0], "row": lambda: costs[0]}
        return self.planner.cache.get((part, id(costs)), [costs], parts[part])  # type: ignore[no-any-return]

    def _bytes(self, uses: _Uses) -> float:
        """The value's bytes on one device, were it whole along this axis."""
        split = 1
        for name, rows in self.others.items():
            if uses.maker is None:
                cut = self.sharded.pinned[uses.value].layout.dim_of(name) is not None
            else:
                cut = isinstance(rows[uses.maker].results[uses.number], int)
            split *= self.sharded.mesh.shape[name] if cut else 1
        return uses.value.type.nbytes / split

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


def _agreeing(made: tuple[Made, ...], pairs: tuple[tuple[State, State], ...]) -> list[list[float]]:
    """Nothing where a pair's first state is the one produced; else it cannot be."""
    return [[0.0 if pair[0] == state else np.inf for pair in pairs] for state in made]


def compatible_candidates(
    sharded: ShardedProgram, axis: str, equation: Equation, options: tuple[Candidate, ...], others: Picks
) -> tuple[Candidate, ...]:
    """The candidates for which the picks on other axes leave room; the same object where that is all of them."""
    room = tuple([c for c in options if is_compatible(sharded, axis, equation, c, others)])
    return options if len(room) == len(options) else room


def is_compatible(sharded: ShardedProgram, axis: str, equation: Equation, candidate: Candidate, others: Picks) -> bool:
    """Whether it goes together with the picks on other axes: in a dim of several factors, pieces are contiguous."""
    rule = factor_rule(equation.op, tuple(value.type for value in equation.inputs))
    cuts: dict[int, int] = {}
    for name, pick in ((axis, candidate), *((name, rows[equation]) for name, rows in others.items())):
        if pick.factor is not None:
            cuts[pick.factor] = cuts.get(pick.factor, 1) * sharded.mesh.shape[name]
    return rule.allows_sharding(cuts)


def _copies(state: Made) -> tuple[State, ...]:
    return state if isinstance(state, tuple) else (state,)


def plan_from_picks(sharded: ShardedProgram, picks: Picks, chip: Chip = CPU) -> LayoutPlan:
    """Picks on each axis as layouts. The axes of one dim keep the order in which an operand has them."""
    layouts: dict[Value, Layout] = {value: pin.layout for value, pin in sharded.pinned.items()}
    leaving = {v: pin.layout for v, pin in zip(sharded.program.outputs, sharded.out_pins, strict=True) if pin}
    axes = sharded.mesh.axis_names
    choices = {}
    for equation in sharded.planned:
        picked = {axis: picks[axis][equation] for axis in axes}
        order = _order(equation, picked, layouts, leaving, axes)
        operands = tuple(
            [
                _layout(value.type.ndim, axes, tuple([pick.operands[i] for pick in picked.values()]), order)
                for i, value in enumerate(equation.inputs)
            ]
        )
        results = tuple(
            [
                _layout(value.type.ndim, axes, tuple([pick.results[i] for pick in picked.values()]), order)
                for i, value in enumerate(equation.outputs)
            ]
        )
        choices[equation] = Choice(operands, results)
        layouts.update(zip(equation.outputs, results, strict=True))
    outputs = tuple(
        _out_layout(layouts.get(value, Layout.replicated(value.type.ndim)), pin)
        for value, pin in zip(sharded.program.outputs, sharded.out_pins, strict=True)
    )
    return LayoutPlan(choices, outputs, chip)


def _order(
    equation: Equation,
    picked: dict[str, Candidate],
    layouts: dict[Value, Layout],
    leaving: dict[Value, Layout],
    axes: tuple[str, ...],
) -> tuple[str, ...]:
    """All axes, in the order that the operands' dims have; the pinned order of a constraint comes first, and that in
    which a result leaves the program last."""
    known = [layouts[value] for value in equation.inputs if value in layouts]
    known += [leaving[value] for value in equation.outputs if value in leaving]
    pin = getattr(equation.op, "pin", None)
    orders = [dim for layout in ([pin.layout] if pin else []) + known for dim in layout.dims]
    best: list[str] = []
    # In a dim of several factors the first is major.
    for factor in sorted({-1 if candidate.factor is None else candidate.factor for candidate in picked.values()}):
        together = [axis for axis in axes if picked[axis].factor == (None if factor < 0 else factor)]
        found = next((dim for dim in orders if set(together) <= set(dim)), together)
        best += [axis for axis in found if axis in together]
    return tuple(best)


@registered_cache(maxsize=65536)
def _layout(ndim: int, axes: tuple[str, ...], picked: tuple[State, ...], order: tuple[str, ...]) -> Layout:
    """The layout of a value of `ndim` dims whose states along `axes` were picked."""
    states = dict(zip(axes, picked, strict=True))
    dims = tuple(tuple(axis for axis in order if states[axis] == dim) for dim in range(ndim))
    partial = tuple((axis, state) for axis in sorted(states) if isinstance(state := states[axis], Reduction))
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
