"""Search: try moves from one plan to others, and keep the cheapest.

A move is a change of the program's constraints, after which it is planned and partitioned again. An objective maps the
result to a cost: a number, or a tuple whose first entries matter most. The cost of a result that is not acceptable is
infinite. The callers supply both: `improve`, `move_exchanges` and `fit_memory` for the compiler, `avoidable_gathers`
for warnings, `explain` for advice, and `layout_search` for autoshard.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar, final

from shardwise.compiler.partition.local_program import LocalProgram

_MAX_EQUATIONS = 20_000  # planned again in all moves together

Change = TypeVar("Change")
Result = TypeVar("Result")
Cost = TypeVar("Cost", float, tuple[float, ...])


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
class Trial(Generic[Change, Result, Cost]):
    """A move that was tried, with its result and cost."""

    change: Change
    result: Result
    cost: Cost


@final
class Search(Generic[Change, Result, Cost]):
    """Tries at most `limit` moves.

    Args:
        objective: the cost of a result.
        bound: the cost below which a result is worth a change.
        limit: the most moves to try.

    Attributes:
        tried: how many moves were tried.
    """

    def __init__(self, objective: Callable[[Result], Cost], bound: Cost, limit: float = math.inf):
        self._objective: Callable[[Result], Cost] = objective
        self._bound: Cost = bound
        self._limit = limit
        self.tried = 0

    def best(self, moves: Iterable[Move[Change, Result]]) -> Trial[Change, Result, Cost] | None:
        """Return the cheapest of these moves; None if none is below the bound. It is the bound of later calls."""
        best: Trial[Change, Result, Cost] | None = None
        for best in self._improvements(moves):
            self._bound = best.cost
        return best

    def first(self, moves: Iterable[Move[Change, Result]]) -> Trial[Change, Result, Cost] | None:
        """Return the first of these moves that is below the bound."""
        return next(self._improvements(moves), None)

    @property
    def is_exhausted(self) -> bool:
        """Whether no more moves may be tried."""
        return self.tried >= self._limit

    def _improvements(self, moves: Iterable[Move[Change, Result]]) -> Iterator[Trial[Change, Result, Cost]]:
        remaining = iter(moves)
        # The limit is checked before the next move is generated: that may be the result of planning the one before.
        while not self.is_exhausted and (move := next(remaining, None)) is not None:
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
