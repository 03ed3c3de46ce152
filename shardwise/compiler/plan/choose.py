"""choose: select one candidate for every equation on every mesh axis, by cost.

The input is a LayoutProblem and a chip, the output is a LayoutPlan. Axes are optimized one at a time, with the others
fixed. Each equation is a variable with a cost table for its work, and each edge between equations is a table of reshard
costs. Variable elimination finds the exact minimum. A value with several uses is a variable too, with labels (the state
in which it is produced, the state of one shared copy); every use reads the cheaper of the two. Rounds over the axes
repeat until nothing changes.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple, final

import numpy as np

from shardwise.compiler.candidates.candidate import (
    PARTIAL_SUM,
    REPLICATED,
    Candidate,
    State,
    replicated_candidate,
    state_along,
)
from shardwise.compiler.candidates.layout_problem import LayoutProblem
from shardwise.compiler.ir.op import factor_rule
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.cost import Costs, compute_cost, joint_gather, reshard_cost
from shardwise.compiler.plan.eliminate import IdentityCache, Table, eliminate
from shardwise.compiler.plan.hardware import CPU
from shardwise.compiler.plan.plan import LayoutPlan
from shardwise.compiler.plan.plan_from_picks import Picks, plan_from_picks
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.traffic import sends_bytes

Produced = State | tuple[State, State]  # the produced state, or (produced state, state of a shared copy)
ROUNDS = 3


def choose(problem: LayoutProblem, chip: Chip = CPU, cache: IdentityCache | None = None) -> LayoutPlan:
    """Return the cheapest plan on a mesh of such chips that satisfies all pins.

    Args:
        problem: the program and the candidates of its equations.
        chip: the chip.
        cache: a cache of cost tables that may be shared between plans for the same chip.
    """
    if not problem.mesh.axis_names:
        return LayoutPlan({}, tuple(Layout.replicated(value.type.ndim) for value in problem.program.outputs), chip)
    return plan_from_picks(problem, choose_candidates(problem, Costs(chip, problem.mesh), cache=cache), chip)


def choose_candidates(
    problem: LayoutProblem,
    costs: Costs,
    work: Mapping[Equation, float] = MappingProxyType({}),
    cache: IdentityCache | None = None,
) -> Picks:
    """Return the cheapest combination of candidates.

    Args:
        problem: the program and the candidates of its equations.
        costs: the costs on the mesh of the program.
        work: for some equations, a cost that replaces their compute cost; sharding an equation divides it.
        cache: a cache of cost tables that may be shared between plans for the same chip.
    """
    cache = cache or IdentityCache()
    cache.trim()  # a long search would otherwise keep the tables of all its plans
    planner = _Planner(problem, costs, cache)
    planner.work.update(work)
    picks: Picks = {}
    seen: list[Picks] = []
    solved_for: dict[str, Picks] = {}  # for each axis, the picks on the others when it was last optimized
    # Explicit axes come first, because types decide there: a choice along another axis must not exclude their
    # shardings.
    axes = sorted(problem.mesh.axis_names, key=lambda axis: axis not in problem.mesh.explicit_axes)
    for _ in range(ROUNDS):
        for axis in axes:
            others = {name: rows for name, rows in picks.items() if name != axis}
            if solved_for.get(axis) != others:
                solved_for[axis] = others
                picks = {**picks, axis: _AxisProblem(planner, axis, others).solve(picks.get(axis))}
        if seen and picks == seen[-1]:
            break
        seen.append(picks)
    else:
        # The optimization of an axis ignores how its choice affects the other axes, so a later round may be worse.
        picks = min(seen, key=planner.cost)
    return picks


class _Uses(NamedTuple):
    """The producer and the consumers of a value that is not free.

    Attributes:
        value: the value.
        producer: the equation that defines it; None for inputs.
        number: the index of the value among the producer's results.
        consumers: the equations that read it, with the index of the operand.
        outputs: the pins of the program outputs that are this value.
    """

    value: Value
    producer: Equation | None
    number: int
    consumers: list[tuple[Equation, int]]
    outputs: list[Pin | None]


class _Weight(NamedTuple):
    """The facts about a value that determine what it costs to reshard it along one axis.

    Attributes:
        unsharded_bytes: its bytes per device, with padding, if it is not sharded along this axis.
        times: how many times it is produced.
        paddings: for each dim, the factor by which padding enlarges the value if the axis shards this dim too; empty if
            there is no padding.
        gathered: the other axes along which the value is gathered.
        links: the number of the links along them in the cache.
        unscattered: what reduce-scatters of the value along earlier axes cost more if it is partial along this
            axis, and not scattered first.
        prices_others: whether the cost contains that of gathering more bytes along the other axes if the value is not
            sharded along this one.
    """

    unsharded_bytes: float
    times: int
    paddings: tuple[float, ...]
    gathered: tuple[str, ...] = ()
    links: int = 0
    unscattered: float = 0.0
    prices_others: bool = False


@final
class _Planner:
    """State shared by the optimizations of all axes: uses of values, compute costs of equations, and cached tables."""

    def __init__(self, problem: LayoutProblem, costs: Costs, cache: IdentityCache):
        self.problem = problem
        self.costs = costs
        self.cache = cache
        self.uses = self._uses()
        times = problem.unfolded.run_counts
        self.work = {e: compute_cost(e, 1, costs) * times[e] for e in problem.planned}
        rules = [(e, factor_rule(e.op, tuple([value.type for value in e.inputs]))) for e in problem.planned]
        self.compound = [e for e, rule in rules if rule.compound]
        devices = problem.mesh.device_count
        self.uneven = {e: rule.sizes for e, rule in rules if any([size % devices for size in rule.sizes])}
        self.exchanging = dict.fromkeys(e for e, rule in rules if rule.exchange)

    def _uses(self) -> list[_Uses]:
        problem = self.problem
        consumers: dict[Value, list[tuple[Equation, int]]] = defaultdict(list)
        for equation in problem.planned:
            for number, value in enumerate(equation.inputs):
                consumers[value].append((equation, number))
        outputs: dict[Value, list[Pin | None]] = defaultdict(list)
        for value, pin in zip(problem.program.outputs, problem.out_pins, strict=True):
            outputs[value].append(pin)
        producers = {value: (e, number) for e in problem.planned for number, value in enumerate(e.outputs)}
        return [
            _Uses(value, producer, number, consumers.get(value, []), outputs.get(value, []))
            for value in problem.values
            if value not in problem.free and (value in consumers or value in outputs)
            for producer, number in [producers.get(value, (None, 0))]
        ]

    def cost(self, picks: Picks) -> float:
        """Return the cost of picks on all axes."""
        communication = 0.0
        for axis, rows in picks.items():
            others = {name: other_rows for name, other_rows in picks.items() if name != axis}
            communication += _AxisProblem(self, axis, others, prices_others=False).communication_cost(rows)
        compute = sum(cost / self.split(equation, picks) for equation, cost in self.work.items())
        return communication + compute

    def weight(
        self,
        axis: str,
        others: Picks,
        uses: _Uses,
        consumers: Sequence[tuple[Equation, int]],
        prices_others: bool,
    ) -> _Weight:
        """Return the bytes and the number of reshards of a value along an axis, given its states along other axes.

        A sum over several axes is scattered along the last ones first, whose links are the fastest. So it counts as
        sharded along a later axis along which it is partial, if all `consumers` need it so.

        If one of `consumers` (of all uses, if there are none) gathers the value along another axis, a gather along this
        axis costs the difference between both axes and the other one alone. With `prices_others` False only earlier
        axes count, so that the costs of all axes add up.
        """
        type, mesh = uses.value.type, self.problem.mesh
        position = mesh.axis_names.index(axis)
        counts = [1] * type.ndim  # the number of shards of each dim along the other axes
        gathered: list[str] = []
        for name, rows in others.items():
            if uses.producer is None:
                state = state_along(self.problem.pinned[uses.value].layout, name)
            else:
                state = rows[uses.producer].results[uses.number]
            if state == PARTIAL_SUM and position < mesh.axis_names.index(name):
                needed = {rows[equation].operands[number] for equation, number in consumers}
                state = needed.pop() if len(needed) == 1 else state
            elif (
                isinstance(state, int)
                and (prices_others or mesh.axis_names.index(name) < position)
                and _is_gathered(uses, consumers, name, rows, state)
            ):
                gathered.append(name)
            if isinstance(state, int):
                counts[state] *= mesh.shape[name]
        links = self._links(axis, tuple(gathered)) if gathered else 0
        joint = tuple(gathered), links, 0.0, prices_others and bool(gathered)
        unsharded_bytes, times = type.nbytes / math.prod(counts), self.problem.unfolded.run_counts[uses.value]
        if not any([size % mesh.device_count for size in type.shape]):
            return _Weight(unsharded_bytes, times, (), *joint)
        shards = mesh.shape[axis]
        padded = [_padding(size, count) for size, count in zip(type.shape, counts, strict=True)]
        with_axis = [_padding(size, count * shards) for size, count in zip(type.shape, counts, strict=True)]
        paddings = tuple([further / own for further, own in zip(with_axis, padded, strict=True)])
        return _Weight(unsharded_bytes * math.prod(padded), times, paddings, *joint)

    def _links(self, axis: str, others: tuple[str, ...]) -> int:
        """Return the number in the cache of the links along other axes, and along these with `axis`."""
        costs = self.costs
        return self.cache.number((costs.mesh.extent(others), costs.ring(*others), costs.ring(axis, *others)))

    def split(self, equation: Equation, picks: Picks) -> float:
        """Return how much smaller the work of a device is than that of the equation. Padding is work too."""
        extents = self.problem.mesh.shape
        counts: dict[int, int] = {}
        for axis, rows in picks.items():
            if (factor := rows[equation].factor) is not None:
                counts[factor] = counts.get(factor, 1) * extents[axis]
        split = math.prod(counts.values())
        if sizes := self.uneven.get(equation):
            return split / math.prod([_padding(sizes[factor], count) for factor, count in counts.items()])
        return split


@final
class _AxisProblem:
    """The optimization of one axis, with the picks on the other axes fixed.

    Variables are indices: first the equations, whose labels are their candidates, then the shared values.

    Args:
        planner: the state that all optimizations share.
        axis: the axis.
        others: the picks on the other axes.
        prices_others: whether costs contain the effect of this axis on the reductions along the others.
    """

    def __init__(self, planner: _Planner, axis: str, others: Picks, prices_others: bool = True):
        self.planner = planner
        self.problem = problem = planner.problem
        self.axis = axis
        self.count = problem.mesh.shape[axis]
        self.position = problem.mesh.axis_names.index(axis)
        self.ring = planner.costs.ring(axis)
        # A part of the cache keys of reshard costs.
        self.network = planner.cache.number((self.count, self.ring, planner.costs.exposes_hops))
        self.others = others
        self.prices_others = prices_others
        self.options = dict(problem.candidates[axis])
        for equation in planner.compound:
            self.options[equation] = compatible_candidates(problem, axis, equation, self.options[equation], others)
        self.number = {equation: index for index, equation in enumerate(self.options)}
        self.labels = [len(options) for options in self.options.values()]
        self.shared: dict[Value, int] = {}  # the variable of each value with several uses
        self.tables: list[Table] = []
        for uses in planner.uses:
            self._add_edges(uses)

    def solve(self, before: dict[Equation, Candidate] | None = None) -> dict[Equation, Candidate]:
        """Return the cheapest candidate of each equation; in large programs, candidates no worse than `before`."""
        planner = self.planner
        for equation, options in self.options.items():
            if len(options) > 1:
                work = self._compute_costs(equation, options)
                exchange = self._exchange_costs(equation, options) if equation in planner.exchanging else ()
                key = ("work", work, exchange, id(options))
                costs = self._array(key, partial(_sums, work, exchange), options)
                self.tables.append(((self.number[equation],), costs))
        chosen = eliminate(self.labels, self.tables, partial(self._hint, before), cache=planner.cache)
        return {equation: options[chosen[self.number[equation]]] for equation, options in self.options.items()}

    def _exchange_costs(self, equation: Equation, options: tuple[Candidate, ...]) -> tuple[float, ...]:
        """Return the cost of the communication inside the op, for each candidate."""
        types = tuple([value.type for value in equation.inputs])
        rule = factor_rule(equation.op, types)
        times = self.problem.unfolded.run_counts[equation]
        split = self.planner.split(equation, self.others)

        def cost(candidate: Candidate) -> float:
            if candidate.factor not in rule.exchange:
                return 0.0
            traffic = equation.op.exchange_traffic(candidate.factor, self.count, *types)
            if not sends_bytes(traffic):
                return 0.0
            per_device = tuple([algorithm._replace(bytes_sent=algorithm.bytes_sent / split) for algorithm in traffic])
            return self.planner.costs.price(self.ring, per_device, times=times)

        return tuple([cost(candidate) for candidate in options])

    def _compute_costs(self, equation: Equation, options: tuple[Candidate, ...]) -> tuple[float, ...]:
        """Return the cost of the compute inside the op, for each candidate."""
        planner = self.planner
        work = planner.work[equation]
        if equation in planner.uneven:
            picks = [{**self.others, self.axis: {equation: candidate}} for candidate in options]
            return tuple([work / planner.split(equation, pick) for pick in picks])
        work /= planner.split(equation, self.others)
        return tuple([work if candidate.factor is None else work / self.count for candidate in options])

    def communication_cost(self, rows: dict[Equation, Candidate]) -> float:
        """Return the cost of the reshards between these candidates and of the communication inside their ops.

        It is infinite if a candidate is no longer an option: the op was replicated along this axis because nothing else
        was compatible with other axes, whose picks have changed since.
        """
        if any(rows[equation] not in options for equation, options in self.options.items()):
            return math.inf
        labels = [1] * len(self.labels)
        chosen = {self.number[equation]: options.index(rows[equation]) for equation, options in self.options.items()}
        tables = []
        for scope, costs in self.tables:
            indices = [[chosen[v]] if v in chosen else range(self.labels[v]) for v in scope]
            tables.append((scope, costs[np.ix_(*indices)]))
        for variable in self.shared.values():
            labels[variable] = self.labels[variable]
        best = eliminate(labels, tables, lambda: [0] * len(labels))
        reshards = sum(costs[tuple(best[variable] for variable in scope)] for scope, costs in tables)
        exchanges = sum(sum(self._exchange_costs(e, (rows[e],))) for e in self.planner.exchanging)
        return float(reshards) + exchanges

    def _add_edges(self, uses: _Uses) -> None:
        """Add the tables of one value: the costs of resharding it for each of its uses."""
        produced: tuple[Produced, ...]
        source: tuple[int, ...] = ()
        if uses.producer is None:
            produced = (state_along(self.problem.pinned[uses.value].layout, self.axis),)
        else:
            produced = tuple([candidate.results[uses.number] for candidate in self.options[uses.producer]])
            source = (self.number[uses.producer],)
        consumers = uses.consumers if not uses.outputs else ()
        weight = self.planner.weight(self.axis, self.others, uses, consumers, self.prices_others)
        if len(uses.consumers) + len(uses.outputs) > 1:
            source, produced = self._add_shared_copy(uses, source, produced, weight)
            weight = weight._replace(prices_others=False)  # the copy has these costs, because it is gathered once
        for pin in uses.outputs:
            pinned = REPLICATED if pin is None else state_along(pin.layout, self.axis)
            open_dims = None if pin is None else pin.open_dims
            out_key = ("output", produced, pinned, open_dims, *weight)
            costs = self._array(out_key, partial(self._output_costs, produced, pinned, open_dims, weight))
            self._add_table(source, (), costs)
        unscattered = self._unscattered_cost(uses) if self.prices_others else 0.0
        depends_on_use = self._weight_depends_on_use(uses)
        weight = weight._replace(unscattered=unscattered)
        for use in uses.consumers:
            equation, number = use
            options = self.options[equation]
            if depends_on_use:
                weight = self.planner.weight(self.axis, self.others, uses, [use], self.prices_others)
                weight = weight._replace(unscattered=unscattered, prices_others=False)
            key = ("operand", produced, id(options), number, *weight)
            costs = self._array(key, partial(self._operand_costs, produced, options, number, weight), options)
            self._add_table(source, (self.number[equation],), costs)

    def _weight_depends_on_use(self, uses: _Uses) -> bool:
        """Return whether the weight of a value may differ between its uses.

        That is so if there are several, and it is sharded along another axis, or partial along a later one.
        """
        if len(uses.consumers) + len(uses.outputs) < 2:
            return False
        if uses.producer is None:
            return bool(self.problem.pinned[uses.value].layout.axes)
        return any(
            isinstance(state, int)
            or (state == PARTIAL_SUM and self.problem.mesh.axis_names.index(name) > self.position)
            for name, rows in self.others.items()
            for state in [rows[uses.producer].results[uses.number]]
        )

    def _add_shared_copy(
        self, uses: _Uses, source: tuple[int, ...], produced: tuple[Produced, ...], weight: _Weight
    ) -> tuple[tuple[int, ...], tuple[Produced, ...]]:
        """Add a variable with labels (produced state, state of a shared copy) for a value with several uses."""
        needed = dict.fromkeys(
            c.operands[number] for equation, number in uses.consumers for c in self.options[equation]
        )
        copies = [state for state in needed if state == REPLICATED or isinstance(state, int)]
        states: tuple[Any, ...] = tuple(dict.fromkeys(produced))
        # A replicated value needs no copy: it can be sliced at no cost for every use.
        pairs: tuple[tuple[State, State], ...] = tuple(
            [
                (state, copy)
                for state in states
                for copy in dict.fromkeys([state, *(copies if state != REPLICATED else ())])
            ]
        )
        self.labels.append(len(pairs))
        self.shared[uses.value] = variable = len(self.labels) - 1
        copy_costs = self._array(("copy", pairs, *weight), partial(self._copy_costs, pairs, weight))
        self.tables.append(((variable,), copy_costs))
        if source:
            consistency = self._array(("consistent", produced, pairs), partial(_consistency_costs, produced, pairs))
            self.tables.append(((*source, variable), consistency))
        return (variable,), pairs

    def _array(self, key: tuple[Any, ...], rows: Callable[[], Any], *keyed: object) -> np.ndarray:
        """Return a cost table as an array, one object per key. `keyed` are the objects whose ids are in the key."""
        return self.planner.cache.get((self.network, *key), keyed, lambda: np.array(rows()))  # type: ignore[no-any-return]

    def _reshard(self, before: State, after: State, weight: _Weight, replicated_as_partial: bool) -> float:
        """Return the cost of resharding a value. Collectives send the padding of the dims that they shard or gather."""
        unsharded_bytes, times, paddings, gathered, _, unscattered, prices_others = weight
        if paddings:
            unsharded_bytes *= max(
                [paddings[state] for state in (before, after) if isinstance(state, int)], default=1.0
            )
        costs = self.planner.costs
        cost = reshard_cost(before, after, unsharded_bytes, self.axis, replicated_as_partial, costs, times)
        if gathered and not isinstance(after, int):
            gather = joint_gather(unsharded_bytes, self.axis, gathered, costs, times)
            if isinstance(before, int) and after == REPLICATED:
                cost = max(0.0, gather.joint - gather.sharded)
            elif prices_others:
                cost += gather.whole - gather.sharded
        stays_whole = before == PARTIAL_SUM and not isinstance(after, int)
        return cost + unscattered if stays_whole else cost

    def _operand_costs(
        self, produced: tuple[Produced, ...], options: tuple[Candidate, ...], number: int, weight: _Weight
    ) -> list[list[float]]:
        """Return, for each candidate, the cost of resharding a value for one operand, from the cheaper copy."""
        needs = [(candidate.operands[number], candidate.replicated_as_partial) for candidate in options]
        different_needs = dict.fromkeys(needs)
        from_state = {
            state: {need: self._reshard(state, need[0], weight, need[1]) for need in different_needs}
            for state in dict.fromkeys(copy for state in produced for copy in _copies(state))
        }
        return [[min([from_state[copy][need] for copy in _copies(state)]) for need in needs] for state in produced]

    def _copy_costs(self, pairs: tuple[tuple[State, State], ...], weight: _Weight) -> list[float]:
        """Return the costs of making the shared copy."""
        return [self._reshard(before, after, weight, False) for before, after in pairs]

    def _output_costs(
        self,
        produced: tuple[Produced, ...],
        pinned: State,
        open_dims: frozenset[int] | None,
        weight: _Weight,
    ) -> list[list[float]]:
        """Return the costs of resharding an output to its pin, or to any state that is not partial if it has none."""

        def cost(copy: State) -> float:
            if pinned == REPLICATED and isinstance(copy, int) and (open_dims is None or copy in open_dims):
                return 0.0
            return self._reshard(copy, pinned, weight, replicated_as_partial=True)

        return [[min(map(cost, _copies(state)))] for state in produced]

    def _add_table(self, source: tuple[int, ...], target: tuple[int, ...], costs: np.ndarray) -> None:
        """Add a cost table by (source label, target label). An endpoint without a variable has a dim of size 1."""
        if source == target and source:
            self.tables.append((source, self._part(costs, "diagonal")))
        elif source and target:
            self.tables.append(((*source, *target), costs))
        elif source or target:
            self.tables.append(((*source, *target), self._part(costs, "column" if source else "row")))

    def _part(self, costs: np.ndarray, part: str) -> np.ndarray:
        parts = {"diagonal": costs.diagonal, "column": lambda: costs[:, 0], "row": lambda: costs[0]}
        return self.planner.cache.get((part, id(costs)), [costs], parts[part])  # type: ignore[no-any-return]

    def _unscattered_cost(self, uses: _Uses) -> float:
        """Return what reduce-scatters of a sum along earlier axes cost more per use if this axis does not scatter it.

        Without this cost, each axis would leave the larger sum to the other, and the rounds would not converge.
        """
        mesh = self.problem.mesh
        if uses.producer is None or uses.outputs:
            return 0.0
        cost = 0.0
        for name in mesh.axis_names[: self.position]:
            rows = self.others.get(name)
            if rows is None or rows[uses.producer].results[uses.number] != PARTIAL_SUM:
                continue
            needed = {rows[equation].operands[number] for equation, number in uses.consumers}
            if len(needed) > 1 or not all(isinstance(state, int) for state in needed):
                continue  # an all-reduce along both axes is one launch
            others = {other: other_rows for other, other_rows in self.others.items() if other != name}
            (state,), weight = needed, self.planner.weight(name, others, uses, uses.consumers, False)
            whole, scattered = (
                reshard_cost(PARTIAL_SUM, state, nbytes, name, False, self.planner.costs, weight.times)
                for nbytes in (weight.unsharded_bytes, weight.unsharded_bytes / self.count)
            )
            cost += (whole - scattered) / len(uses.consumers)
        return cost

    def _hint(self, before: dict[Equation, Candidate] | None) -> list[int]:
        """Return the hint of `eliminate`: the candidates of the last round, or a greedy solution if that is cheaper."""
        greedy = self._greedy()
        if before is None or any(before[equation] not in options for equation, options in self.options.items()):
            return greedy
        return min(self._labels_of(before), greedy, key=self._total)

    def _total(self, chosen: list[int]) -> float:
        """Return the cost of a label of each variable."""
        return sum(float(costs[tuple([chosen[variable] for variable in scope])]) for scope, costs in self.tables)

    def _labels_of(self, rows: dict[Equation, Candidate]) -> list[int]:
        """Return the labels of these candidates, and the cheapest shared copies for them."""
        chosen = [options.index(rows[equation]) for equation, options in self.options.items()]
        chosen += [0] * len(self.shared)
        totals = {variable: np.zeros(self.labels[variable]) for variable in self.shared.values()}
        for scope, costs in self.tables:
            for variable in scope:
                if variable in totals:
                    index = tuple([slice(None) if other == variable else chosen[other] for other in scope])
                    totals[variable] = totals[variable] + costs[index]
        for variable, total in totals.items():
            chosen[variable] = int(total.argmin())
        return chosen

    def _greedy(self) -> list[int]:
        """Return a greedy solution: each variable in turn at its cheapest label.

        Its cost is finite, because every equation has a candidate whose operands can be resharded from any state.
        """
        order = [self.shared[value] for value in self.problem.program.inputs if value in self.shared]
        for equation, number in self.number.items():
            order += [number, *(self.shared[value] for value in equation.outputs if value in self.shared)]
        position = {variable: number for number, variable in enumerate(order)}
        tables_by_last: dict[int, list[Table]] = defaultdict(list)  # by the last variable of their scope
        for scope, costs in self.tables:
            tables_by_last[max(scope, key=position.__getitem__)].append((scope, costs))
        chosen = [0] * len(self.labels)
        for variable in order:
            total = np.zeros(self.labels[variable])
            for scope, costs in tables_by_last[variable]:
                total = total + costs[tuple(slice(None) if v == variable else chosen[v] for v in scope)]
            chosen[variable] = int(total.argmin())
        return chosen


def _padding(size: int, count: int) -> float:
    """Return the factor by which padding enlarges a dim that is sharded into `count` shards of equal size."""
    return -(-size // count) * count / size if size else 1.0


def _is_gathered(
    uses: _Uses, consumers: Sequence[tuple[Equation, int]], axis: str, rows: Mapping[Equation, Candidate], dim: int
) -> bool:
    """Return whether a sharded value is gathered along an axis for one of `consumers`, or without any for a use."""
    if any([rows[equation].operands[number] == REPLICATED for equation, number in consumers or uses.consumers]):
        return True
    pins = [] if consumers else [pin for pin in uses.outputs if pin is not None]
    return any(state_along(pin.layout, axis) == REPLICATED and dim not in pin.open_dims for pin in pins)


def _sums(compute: tuple[float, ...], exchange: tuple[float, ...]) -> list[float]:
    """Return the cost of the compute and communication inside an op, for each candidate."""
    return [cost + sent for cost, sent in zip(compute, exchange, strict=True)] if exchange else list(compute)


def _consistency_costs(produced: tuple[Produced, ...], pairs: tuple[tuple[State, State], ...]) -> list[list[float]]:
    """Return 0 where the first state of a pair is the produced state, else infinity."""
    return [[0.0 if pair[0] == state else np.inf for pair in pairs] for state in produced]


def compatible_candidates(
    problem: LayoutProblem, axis: str, equation: Equation, options: tuple[Candidate, ...], others: Picks
) -> tuple[Candidate, ...]:
    """Return the candidates that are compatible with the picks on other axes; `options` itself if all are.

    If there is none, the op is replicated: a contraction whose dims the other axes use up has no other candidate.
    """
    # Along Explicit axes types decide, so a later pick on an axis without picks may make a candidate compatible.
    explicit = problem.mesh.explicit_axes
    open_axes = [name for name in explicit if name != axis and name not in others] if axis in explicit else []

    def may_be_compatible(candidate: Candidate) -> bool:
        return any(
            is_compatible(problem, axis, equation, candidate, {**others, **dict(zip(open_axes, rows, strict=True))})
            for rows in product(*[[{equation: c} for c in problem.candidates[name][equation]] for name in open_axes])
        )

    compatible = tuple([candidate for candidate in options if may_be_compatible(candidate)])
    if len(compatible) == len(options):
        return options
    return compatible or (replicated_candidate(len(equation.inputs), len(equation.outputs)),)


def is_compatible(problem: LayoutProblem, axis: str, equation: Equation, candidate: Candidate, others: Picks) -> bool:
    """Return whether a candidate is compatible with the picks on other axes: no strided shards of compound dims."""
    rule = factor_rule(equation.op, tuple(value.type for value in equation.inputs))
    counts: dict[int, int] = {}
    for name, pick in ((axis, candidate), *((name, rows[equation]) for name, rows in others.items())):
        if pick.factor is not None:
            counts[pick.factor] = counts.get(pick.factor, 1) * problem.mesh.shape[name]
    return rule.allows_sharding(counts)


def _copies(state: Produced) -> tuple[State, ...]:
    """Return the states of the copies of a value."""
    return state if isinstance(state, tuple) else (state,)
