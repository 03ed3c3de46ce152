"""reshape_factors: the finest common factors of the two shapes of a reshape.

The input is two shapes with equal numbers of elements. The output is the factors of every dim, in the form that
`FactorRule` holds. A walk goes through both shapes from major to minor. 8×4 → 2×16 yields (i j) k -> i (j k):

    left dim 0, 8 left    right dim 0, 2 left     gcd 2: factor i=2, right dim 0 is covered
    left dim 0, 4 left    right dim 1, 16 left    gcd 4: factor j=4, left dim 0 is covered
    left dim 1, 4 left    right dim 1, 4 left     gcd 4: factor k=4, both are covered

If the remaining sizes have no common factor, the dims do not nest: 6×4 → 4×6 shares i=2, and then 3×4 would have to be
2×6. Every dim up to the next common boundary gets its own factor, which needs replication:
(i a) b -> (i c) d with a=3, b=4, c=2, d=6.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, final


class ReshapeFactors(NamedTuple):
    """The factors of each dim before and after, the size of each factor, and the factors that need replication."""

    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    need_replication: frozenset[int]


def reshape_factors(before: Sequence[int], after: Sequence[int]) -> ReshapeFactors:
    """Split the dims of two shapes of one array into their finest common factors."""
    if 0 in before:  # no elements to shard: every dim gets its own factor
        split, count = len(before), len(before) + len(after)
        dims = tuple((factor,) for factor in range(count))
        return ReshapeFactors(dims[:split], dims[split:], (*before, *after), frozenset(range(count)))
    return _Walk(before, after).factors()


@final
class _Side:
    """One of the two shapes: the current dim, its size that factors do not cover yet, and the factors of all dims."""

    def __init__(self, shape: Sequence[int]):
        self.shape = shape
        self.factors: list[list[int]] = [[] for _ in shape]
        self.dim = 0
        self.rest = shape[0] if shape else 1

    @property
    def is_done(self) -> bool:
        return self.dim >= len(self.shape)

    def cover(self, factor: int, size: int) -> None:
        """Add a factor of this size to the current dim."""
        self.factors[self.dim].append(factor)
        self.rest //= size

    def advance(self) -> None:
        """Go to the next dim."""
        self.dim += 1
        self.rest = 1 if self.is_done else self.shape[self.dim]


@final
class _Walk:
    """The walk through both shapes; see the module docstring for an example."""

    def __init__(self, before: Sequence[int], after: Sequence[int]):
        self.left, self.right = _Side(before), _Side(after)
        self.sizes: list[int] = []
        self.need_replication: list[int] = []

    def factors(self) -> ReshapeFactors:
        left, right = self.left, self.right
        while not (left.is_done or right.is_done):
            common = math.gcd(left.rest, right.rest)
            if common != 1:
                self._share(common)
            elif left.rest != 1 and right.rest != 1:
                self._replicate_to_common_boundary()
            for side in (left, right):
                if side.rest == 1:
                    side.advance()
        before, after = (tuple(map(tuple, side.factors)) for side in (left, right))
        return ReshapeFactors(before, after, tuple(self.sizes), frozenset(self.need_replication))

    def _share(self, size: int) -> None:
        """Add one factor to the current dims of both sides."""
        factor = self._new_factor(size)
        self.left.cover(factor, size)
        self.right.cover(factor, size)

    def _replicate_to_common_boundary(self) -> None:
        """Cover the rest of both dims, and further dims until both sides have covered the same number of elements."""
        left, right = self.left, self.right
        left_size, right_size = left.rest, right.rest
        self._replicate_rest(left)
        self._replicate_rest(right)
        while left_size != right_size:
            if left_size < right_size:
                left.advance()
                left_size *= left.rest
                self._replicate_rest(left)
            else:
                right.advance()
                right_size *= right.rest
                self._replicate_rest(right)

    def _replicate_rest(self, side: _Side) -> None:
        """Cover the rest of a side's current dim with a factor that needs replication."""
        factor = self._new_factor(side.rest)
        self.need_replication.append(factor)
        side.cover(factor, side.rest)

    def _new_factor(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1
