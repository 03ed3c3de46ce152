"""Candidates: the ways to shard one equation along one mesh axis (Alpa: strategies).

Along an axis, a value is replicated, sharded along a dim, or partial (a term of a sum, a max, …). A candidate is the
state of every operand and result:

    replicated       all are replicated
    factor f         dims with factor f are sharded, other values are replicated; results are partial if f is reduced
    partial          operands in which the op is jointly linear are terms of a sum, and so are the results
    partial maximum  the same for operands of which the op only moves the elements or returns the larger ones

Partial terms may be multiplied by a finite constant but not by data: 2 and -1 are terms of 1, and 1 · inf is inf, but
2 · inf - 1 · inf is NaN.
"""

from dataclasses import dataclass
from typing import final

from shardwise.base.caches import registered_cache
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.op import Op, factor_rule
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.reduction import MAX, SUM, Reduction
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.layout import Layout, Pin

State = int | str | Reduction  # the dim that is sharded; or REPLICATED; or the reduction that a partial value awaits
REPLICATED = "replicated"
PARTIAL_SUM = SUM
PARTIAL_MAX = MAX


def state_along(layout: Layout, axis: str) -> State:
    """Return the state of a value with this layout along an axis."""
    dim = layout.dim_of(axis)
    return dict(layout.partial).get(axis, REPLICATED) if dim is None else dim


@final
@dataclass(frozen=True)
class Candidate:
    """One way to shard an equation along one mesh axis.

    Attributes:
        operands: the state of each operand.
        results: the state of each result.
        factor: the factor that is sharded, if one is.
        replicated_as_partial: whether a replicated operand may enter as a term of the sum or of the maximum.
    """

    operands: tuple[State, ...]
    results: tuple[State, ...]
    factor: int | None = None
    replicated_as_partial: bool = False

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.operands))} -> {', '.join(map(str, self.results))}"


def factor_candidate(rule: FactorRule, factor: int) -> Candidate:
    """Return the candidate that shards one factor."""
    reduced: State = rule.reduce.get(factor, REPLICATED)
    # Every shard adds its addends to its part of the sum. A replicated addend would be counted once per shard, so
    # addends must be partial.
    addends = rule.addends if reduced is PARTIAL_SUM else frozenset()

    def state(dims: tuple[tuple[int, ...], ...], without_factor: State) -> State:
        return next((dim for dim, factors in enumerate(dims) if factor in factors), without_factor)

    operands = [
        state(dims, PARTIAL_SUM if index in addends else REPLICATED) for index, dims in enumerate(rule.operands)
    ]
    results = [state(dims, reduced) for dims in rule.results]
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
    maxima: frozenset[int] = frozenset(),
    needs_sharding: bool = True,
) -> tuple[Candidate, ...]:
    """Return the candidates of an op on an axis, without duplicates; cached, so that equal arguments return one object.

    The order decides between candidates of equal cost: replicated first, then factors, then partial.

    Args:
        op: the op.
        types: the types of its operands.
        results: the number of its results.
        axis: the mesh axis.
        factors: the factors that the axis may shard.
        partial: the operands that may be partial sums.
        scales: the operands all of whose elements are the same finite, nonzero number.
        maxima: the operands that may be partial maxima.
        needs_sharding: whether a contraction is sharded along this axis if it can be.
    """
    rule = factor_rule(op, types)
    if (pin := op.constraint) and op.pins(axis):
        return _pinned(pin, axis, factors)
    options = [factor_candidate(rule, factor) for factor in sorted(factors)]
    if not (options and op.is_contraction and needs_sharding):
        options.insert(0, replicated_candidate(len(types), results))
    for linear in op.linear_in(*types):
        joint = len(linear) > 1  # add, select: no products, and replicated operands can be terms
        # Integer and boolean operands of inexact ops are indices or predicates, which do not multiply either. In
        # integer ops any multiplier is allowed: integers have no infinities, and sums of products wrap around exactly.
        multipliers = {i for i, type in enumerate(types) if i not in linear and is_inexact(type.dtype)}
        if not partial.isdisjoint(linear) and (joint or multipliers <= scales or not is_inexact(types[0].dtype)):
            operands = tuple(PARTIAL_SUM if i in linear else REPLICATED for i in range(len(types)))
            options.append(Candidate(operands, (PARTIAL_SUM,) * results, replicated_as_partial=joint))
    for joint_operands in op.maxima_in(*types) if maxima else ():
        if not maxima.isdisjoint(joint_operands):  # a replicated operand is a term of a maximum as it is
            operands = tuple(PARTIAL_MAX if i in joint_operands else REPLICATED for i in range(len(types)))
            options.append(Candidate(operands, (PARTIAL_MAX,) * results, replicated_as_partial=True))
    return tuple(dict.fromkeys(options))


@registered_cache(maxsize=65536)
def manual_candidates(op: Op, types: tuple[ArrayType, ...], results: int, axis: str) -> tuple[Candidate, ...]:
    """Return the only candidate of an equation in a manual region along one of the region's axes.

    Each device computes with its own shards, so nothing is sharded further. At the boundary of the region, the value
    outside is sharded as the user specified.
    """
    if (factor := op.shard_index_factors.get(axis)) is not None:
        return (factor_candidate(factor_rule(op, types), factor),)
    if axis in op.terms_entering:
        return (Candidate((PARTIAL_SUM,), (REPLICATED,), replicated_as_partial=True),)
    if axis in op.terms_leaving:
        return (Candidate((REPLICATED,), (PARTIAL_SUM,)),)
    return (replicated_candidate(len(types), results),)


def replicated_candidate(operands: int, results: int) -> Candidate:
    """Return the candidate in which all operands and results are replicated."""
    return Candidate((REPLICATED,) * operands, (REPLICATED,) * results)


def _pinned(pin: Pin, axis: str, factors: frozenset[int]) -> tuple[Candidate, ...]:
    if pin.layout.is_partial(axis):
        return (Candidate((PARTIAL_SUM,), (PARTIAL_SUM,), replicated_as_partial=True),)
    dim = pin.layout.dim_of(axis)
    states: list[State] = [REPLICATED, *sorted(factors & pin.open_dims)] if dim is None else [dim]
    return tuple(Candidate((state,), (state,), state if isinstance(state, int) else None) for state in states)
