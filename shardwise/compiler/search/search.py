"""Search: try moves from one plan to others, and keep the cheapest.

A move is a change of the program's constraints, after which the program is planned and partitioned again. An objective
maps the result to a cost: a number, or a tuple that is compared lexicographically. The cost of an unacceptable result
is infinite. The callers supply moves and objective: `improve`, `move_exchanges` and `fit_memory` for the compiler,
`avoidable_gathers` for warnings, `explain` for advice, and `layout_search` for autoshard.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar, final

from shardwise.compiler.partition.local_program import LocalProgram

_MAX_EQUATIONS = 20_000  # the most equations to replan, summed over all moves

Change = TypeVar("Change")
Result = TypeVar("Result")
Cost = TypeVar("Cost", float, tuple[float, ...])


@final
@dataclass(frozen=True)
class Move(Generic[Change, Result]):
    """A change of a program's constraints.

    Attributes:
        change: a description of the change, of a type that the caller chooses.
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
        bound: the cost that a result must beat.
        limit: the most moves to try.

    Attributes:
        tried: the number of moves tried.
    """

    def __init__(self, objective: Callable[[Result], Cost], bound: Cost, limit: float = math.inf):
        self._objective: Callable[[Result], Cost] = objective
        self._bound: Cost = bound
        self._limit = limit
        self.tried = 0

    def best(self, moves: Iterable[Move[Change, Result]]) -> Trial[Change, Result, Cost] | None:
        """Return the cheapest of these moves; None if none is below the bound. Its cost is the new bound."""
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
        # Check the limit before generating the next move, because generating it may replan a program.
        while not self.is_exhausted and (move := next(remaining, None)) is not None:
            self.tried += 1
            result = move.plan()
            cost = self._objective(result)
            if cost < self._bound:
                yield Trial(move.change, result, cost)


def move_limit(equations: int, fewest: int, most: int) -> int:
    """Return how many moves to try on a program: fewer for a large program, to bound the planning time."""
    return max(fewest, min(most, _MAX_EQUATIONS // max(1, equations)))


def bytes_sent(local: LocalProgram) -> float:
    """The objective of fewer bytes."""
    return local.sent


INADMISSIBLE = math.inf
