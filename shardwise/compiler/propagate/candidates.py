"""Candidates: the ways in which one equation can lie along one mesh axis.

Along an axis a value is in one of these states: replicated, cut along a dim, or partial (a term of a sum, a max, …).
A candidate gives the state of every operand and result:

    whole            all replicated
    by factor f      cut where a dim has f, replicated elsewhere; partial where f is reduced away
    partial through  operands in which the op is linear are terms of a sum, and so is the result

Terms of a sum may be scaled by a constant, but not multiplied by data: 2 and -1 are the terms of 1, and 1 · inf is inf,
but 2 · inf - 1 · inf is NaN.
"""

from dataclasses import dataclass
from typing import final

from shardwise.caches import registered_cache
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.op import Op, factor_rule
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.region_boundary import Join, Split
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.reduction import SUM, Reduction
from shardwise.compiler.shardings.factors import FactorRule

State = int | str | Reduction  # the dim that is sharded; or REPLICATED; or the reduction that a partial value awaits
REPLICATED = "replicated"
PARTIAL_SUM = SUM


@final
@dataclass(frozen=True)
class Candidate:
    """One way to shard an equation along one mesh axis.

    Attributes:
        operands: the state of each operand.
        results: the state of each result.
        factor: the factor that is sharded, if one is.
        replicated_as_partial: whether a replicated operand may enter as a term of the sum.
    """

    operands: tuple[State, ...]
    results: tuple[State, ...]
    factor: int | None = None
    replicated_as_partial: bool = False

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.operands))} -> {', '.join(map(str, self.results))}"


def factor_candidate(rule: FactorRule, factor: int) -> Candidate:
    """Cut along one factor."""
    absent: State = rule.reduce.get(factor, REPLICATED)
    terms = rule.addends if absent is PARTIAL_SUM else frozenset()

    def state(dims: tuple[tuple[int, ...], ...], absent: State) -> State:
        return next((dim for dim, factors in enumerate(dims) if factor in factors), absent)

    operands = [
        state(dims, PARTIAL_SUM if number in terms else REPLICATED) for number, dims in enumerate(rule.operands)
    ]
    results = [state(dims, absent) for dims in rule.results]
    return Candidate(tuple(operands), tuple(results), factor, replicated_as_partial=PARTIAL_SUM in operands)


@registered_cache(maxsize=65536)
def candidates(
    op: Op,
    types: tuple[ArrayType, ...],
    results: int,
    axis: str,
    factors: frozenset[int],
    partial: frozenset[int],
    scales: frozenset[int],
) -> tuple[Candidate, ...]:
    """The candidates of an op on an axis, lowest first; equal ones are one object.

    `factors` are those whose colour has the axis; `partial` are the operands that could arrive as terms of a sum;
    `scales` are those that hold one finite number, and not zero.
    """
    rule = factor_rule(op, types)
    if isinstance(op, Constrain):
        return _pinned(op, axis, factors)
    found = [factor_candidate(rule, factor) for factor in sorted(factors)]
    if not (found and op.is_contraction):  # replicating a product to save bytes is not done by default
        found.insert(0, _whole(len(types), results))
    for linear in op.linear_in(*types):
        together = len(linear) > 1  # a sum or a choice: whole operands join as terms, and nothing is multiplied
        # An index or a choice does not multiply.
        others = {i for i, type in enumerate(types) if i not in linear and is_inexact(type.dtype)}
        if not partial.isdisjoint(linear) and (together or others <= scales or not is_inexact(types[0].dtype)):
            operands = tuple(PARTIAL_SUM if i in linear else REPLICATED for i in range(len(types)))
            found.append(Candidate(operands, (PARTIAL_SUM,) * results, replicated_as_partial=together))
    return tuple(dict.fromkeys(found))


@registered_cache(maxsize=65536)
def manual_candidates(op: Op, types: tuple[ArrayType, ...], results: int, axis: str) -> tuple[Candidate, ...]:
    """The one way in which an equation of a manual region lies along an axis of that: each device has its own. On the
    border, the whole is cut as the user said."""
    if isinstance(op, (Split, Join)) and (dim := op.pin.layout.dim_of(axis)) is not None:
        return (factor_candidate(factor_rule(op, types), op.shard_index_factor(dim)),)
    return (_whole(len(types), results),)


def _whole(operands: int, results: int) -> Candidate:
    return Candidate((REPLICATED,) * operands, (REPLICATED,) * results)


def _pinned(op: Constrain, axis: str, factors: frozenset[int]) -> tuple[Candidate, ...]:
    dim = op.pin.layout.dim_of(axis)
    states: list[State] = [REPLICATED, *sorted(factors & op.pin.open_dims)] if dim is None else [dim]
    return tuple(Candidate((state,), (state,), state if isinstance(state, int) else None) for state in states)
