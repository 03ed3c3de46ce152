"""Fit integers that were observed at several sizes of the dimension variables by polynomials of the variables."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement, islice, product
from typing import final

import numpy as np

from shardwise.base.symbolic_dim import Dim, SymbolicScope, evaluate_dim, variable

# Small and large sizes, with few common factors: Python code that depends on a size then differs between samples.
_SIZES = (7, 64, 13, 257, 30, 3, 1021, 19, 5, 100, 2, 512, 11, 48, 8, 16, 24, 32, 40, 128, 4, 6, 9, 10, 1)
_SPARE = 2  # samples beyond the number of coefficients, which detect another dependence


def sample_sizes(variables: Sequence[str], scope: SymbolicScope) -> list[dict[str, int]]:
    """Return sizes of the variables that satisfy the constraints: enough to determine polynomials of degree two.

    Raises:
        ValueError: if the constraints leave too few.
    """
    count = len(_monomials(variables)) + _SPARE
    samples = list(islice(_valid_sizes(variables, scope), count))
    if len(samples) < count:
        raise ValueError(
            f"export: the constraints of {scope!r} leave only {len(samples)} of the sizes that are tried for "
            f"{', '.join(variables)}, and {count} are needed. Use integers in place of variables with few sizes."
        )
    return samples


def _valid_sizes(variables: Sequence[str], scope: SymbolicScope) -> Iterator[dict[str, int]]:
    """Yield sizes that satisfy the constraints. Several variables have different sizes first."""
    shifted = [_SIZES[start:] + _SIZES[:start] for start in range(len(variables))]
    diagonal = [
        sizes
        for stride in range(1, 5)
        for sizes in zip(*(s[:: stride + i] for i, s in enumerate(shifted)), strict=False)
    ]
    seen = set()
    for sizes in (*diagonal, *islice(product(_SIZES, repeat=len(variables)), 100_000)):
        assignment = dict(zip(variables, sizes, strict=True))
        if sizes not in seen and scope.violated(assignment) is None:
            seen.add(sizes)
            yield assignment


def _monomials(variables: Sequence[str]) -> list[tuple[str, ...]]:
    return [names for degree in range(3) for names in combinations_with_replacement(variables, degree)]


@final
class SizeFit:
    """The polynomials of the dimension variables that have observed values.

    Args:
        samples: the sizes of the variables at which values are observed.
        scope: the scope of the variables.
    """

    def __init__(self, samples: Sequence[Mapping[str, int]], scope: SymbolicScope):
        self.samples, self._scope = samples, scope
        self._monomials = _monomials(list(samples[0]))
        self._table = np.array(
            [[float(np.prod([sizes[name] for name in names])) for names in self._monomials] for sizes in samples]
        )

    def __call__(self, values: Sequence[int]) -> Dim | None:
        """Return the polynomial with these values at the samples, with integer coefficients; None if there is none."""
        if len(set(values)) == 1:
            return values[0]
        scale = np.abs(self._table).max(axis=0)
        solution, *_ = np.linalg.lstsq(self._table / scale, np.array(values, float), rcond=None)
        dim: Dim = 0
        for names, coefficient in zip(self._monomials, np.rint(solution / scale), strict=True):
            term: Dim = int(coefficient)
            for name in names:
                term = variable(name, self._scope) * term
            dim = dim + term
        is_exact = all(evaluate_dim(dim, sizes) == value for sizes, value in zip(self.samples, values, strict=True))
        return dim if is_exact else None
