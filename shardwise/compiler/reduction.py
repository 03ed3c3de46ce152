"""Reduction: one record with the properties of an associative operation that compiler stages use.

Factor rules and layouts refer to a reduction, collectives perform it, padding is masked with its neutral element, and
lowering emits its StableHLO op. A new reduction is one more record here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType, highest, lowest


@final
@dataclass(frozen=True, eq=False, repr=False)
class Reduction:
    """An associative and commutative operation on two elements.

    Attributes:
        name: the name in printed programs, layouts and factor rules.
        hlo_op: the StableHLO op for two numbers; empty if there is no single op.
        boolean_hlo_op: the StableHLO op for two booleans.
        ufunc: the numpy function for two elements.
        neutral: the neutral element of a dtype.
        selects: the compare direction ("GT", "LT") if the result is one of the two elements; empty if it is computed.
            A reduction that selects returns NaN if any element is NaN, and is undefined for complex numbers.
        has_collective: whether all_reduce and reduce_scatter exist for it.
    """

    name: str
    hlo_op: str
    boolean_hlo_op: str
    ufunc: np.ufunc
    neutral: Callable[[DType], Any]
    selects: str = ""
    has_collective: bool = False

    def neutral_scalar(self, dtype: DType) -> Any:
        """Return the neutral element as a numpy scalar of `dtype`."""
        return np.asarray(self.neutral(dtype)).astype(dtype)[()]

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return reduction_named, (self.name,)


SUM = Reduction("sum", "add", "or", np.add, lambda dtype: 0, has_collective=True)
PROD = Reduction("prod", "multiply", "and", np.multiply, lambda dtype: 1)
MAX = Reduction("max", "maximum", "or", np.maximum, lowest, "GT", has_collective=True)
MIN = Reduction("min", "minimum", "and", np.minimum, highest, "LT", has_collective=True)
AND = Reduction("and", "and", "and", np.bitwise_and, lambda dtype: True if dtype == np.bool_ else -1)
OR = Reduction("or", "or", "or", np.bitwise_or, lambda dtype: 0)
LOGSUMEXP = Reduction("logsumexp", "", "", np.logaddexp, lambda dtype: -np.inf)
XOR = Reduction("xor", "xor", "xor", np.bitwise_xor, lambda dtype: 0)
REDUCTIONS = {reduction.name: reduction for reduction in (SUM, PROD, MAX, MIN, AND, OR, XOR, LOGSUMEXP)}


def reduction_named(name: str) -> Reduction:
    """Return the reduction that prints as `name`.

    Raises:
        ValueError: if there is none.
    """
    if name not in REDUCTIONS:
        raise ValueError(f"there is no reduction {name!r}; reductions: {', '.join(REDUCTIONS)}")
    return REDUCTIONS[name]
