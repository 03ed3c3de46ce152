"""Search: try moves from one plan to others, and keep the cheapest.

A move is a change of the program's constraints, after which it is planned and partitioned again. An objective maps the
result to a cost, which is infinite if the move is not acceptable. Who searches supplies both: `improve` and
`move_exchanges` for the compiler, `avoidable_gathers` for warnings, and `explain` for advice.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar, final

from shardwise.compiler.partition.local_program import LocalProgram

_MAX_EQUATIONS = 20_000  # planned again in all moves together

Change = TypeVar("Change")
Result = TypeVar("Result")
Objective = Callable[[Result], float]


@final
@dataclass(frozen=True)
class Move(Generic[Change, Result]):
    """A change of a program's constraints.

    Attributes:
        change: what is changed, in the terms of whoever searches.
        plan: plans and partitions the changed program.
    """

    change: Change
    plan: Callable[[], Result]


@final
@dataclass(frozen=True)
class Trial(Generic[Change, Result]):
    """A move that was tried, with its result and cost."""

    change: Change
    result: Result
    cost: float


@final
class Search(Generic[Change, Result]):
    """Tries at most `limit` moves.

    Args:
        objective: the cost of a result.
        bound: the cost below which a result is worth a change.
        limit: the most moves to try.

    Attributes:
        tried: how many moves were tried.
    """

    def __init__(self, objective: "Objective[Result]", bound: float, limit: int):
        self._objective = objective
        self._bound = bound
        self._limit = limit
        self.tried = 0

    def best(self, moves: Iterable[Move[Change, Result]]) -> Trial[Change, Result] | None:
        """Return the cheapest of these moves; None if none is below the bound. It is the bound of later calls."""
        best = None
        for best in self._improvements(moves):
            self._bound = best.cost
        return best

    def first(self, moves: Iterable[Move[Change, Result]]) -> Trial[Change, Result] | None:
        """Return the first of these moves that is below the bound."""
        return next(self._improvements(moves), None)

    @property
    def is_exhausted(self) -> bool:
        """Whether no more moves may be tried."""
        return self.tried >= self._limit

    def _improvements(self, moves: Iterable[Move[Change, Result]]) -> Iterator[Trial[Change, Result]]:
        for move in moves:
            if self.is_exhausted:
                return
            self.tried += 1
            result = move.plan()
            cost = self._objective(result)
            if cost < self._bound:
                yield Trial(move.change, result, cost)


def move_limit(equations: int, fewest: int, most: int) -> int:
    """Return how many moves to try on a program: fewer if it is large, so that users need not wait."""
    return max(fewest, min(most, _MAX_EQUATIONS // max(1, equations)))


def bytes_sent(local: LocalProgram) -> float:
    """The objective of fewer bytes."""
    return local.sent


INADMISSIBLE = math.inf
