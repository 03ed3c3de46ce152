"""Comparators of sorts: from the region of a sort to its keys."""

from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from shardwise.base._jaxlib import mlir_ir
from shardwise.compiler.dtypes import is_float
from shardwise.errors import UnsupportedError
from shardwise.stablehlo.elements import constant_elements
from shardwise.stablehlo.operation import Operation
from shardwise.stablehlo.types import array_type


@final
@dataclass(frozen=True)
class SortKey:
    """One key of a sort.

    Attributes:
        operand: the index of the operand.
        descending: whether larger elements come first.
        is_total: whether floats are compared by the total order of their bits, with -0 before +0; otherwise zeros are
            equal, and NaNs are equal and larger than all numbers.
    """

    operand: int
    descending: bool
    is_total: bool


@final
class Comparator:
    """The comparator of a sort: a region with two arguments for each operand.

    The region may state that floats have no NaN, by comparing them as numbers; the order of NaNs is then any.
    """

    def __init__(self, op: Operation):
        self._op = op
        block = op.regions[0]
        self._final = block.operations[len(block.operations) - 1].operation
        self._arguments = list(block.arguments)

    def keys(self) -> list[SortKey]:
        """Return the sort keys, the most significant first.

        Raises:
            UnsupportedError: if the region is no lexicographic comparison.
        """
        keys = self._lexicographic(self._final.operands[0])
        if keys is None:
            raise UnsupportedError(
                "the comparator is not supported: it must compare pairs of its arguments by LT or GT, one pair after "
                "the other"
            )
        return keys

    def _lexicographic(self, value: object) -> list[SortKey] | None:
        """Match `first precedes, or first is tied and the others precede`, or one comparison."""
        key = self._precedes(value)
        if key is not None:
            return [key]
        for first, rest in self._either_order(value, "or"):
            key = self._precedes(first)
            for tie, others in self._either_order(rest, "and"):
                if key is not None and self._ties(tie, key):
                    keys = self._lexicographic(others)
                    return None if keys is None else [key, *keys]
        return None

    def _precedes(self, value: object) -> SortKey | None:
        """Match a comparison of a pair, or `x < y, or y alone is NaN`."""
        key = self._comparison(value, ("LT", "GT"))
        if key is not None:
            return key
        for less, nan_last in self._either_order(value, "or"):
            key = self._comparison(less, ("LT",))
            for is_number, is_nan in self._either_order(nan_last, "and"):
                if key is None or key.is_total:
                    continue
                x, y = _definition(less).operands
                if self._compares(is_number, "EQ", x, x) and self._compares(is_nan, "NE", y, y):
                    return key
        return None

    def _ties(self, value: object, key: SortKey) -> bool:
        """Match `x == y`, or `neither precedes`, for the pair of a key."""
        equal = self._comparison(value, ("EQ",))
        if equal is not None:
            return (equal.operand, equal.is_total) == (key.operand, key.is_total)
        negation = _definition(value)
        if negation is None or negation.name != "stablehlo.not":
            return False
        pairs = self._either_order(negation.operands[0], "or")
        opposite = replace(key, descending=not key.descending)
        return any((self._precedes(x), self._precedes(y)) == (key, opposite) for x, y in pairs)

    def _either_order(self, value: object, name: str) -> list[tuple[Any, Any]]:
        """Return the operands of a logical op, in both orders; nothing for other ops."""
        operation = _definition(value)
        if operation is None or operation.name != f"stablehlo.{name}":
            return []
        x, y = operation.operands
        return [(x, y), (y, x)]

    def _comparison(self, value: object, directions: tuple[str, ...]) -> SortKey | None:
        """Match a comparison of the two arguments of one operand."""
        operation = _definition(value)
        if operation is None or operation.name != "stablehlo.compare":
            return None
        compare = self._op.inner(operation)
        direction = compare.enum("comparison_direction")
        left, right = map(self._argument, operation.operands)
        if direction not in directions or left is None or right is None or left[1] != right[1]:
            return None
        (x, is_canonical), (y, _) = left, right
        if x // 2 != y // 2 or x == y:
            return None
        is_total = compare.enum("compare_type") == "TOTALORDER" and not is_canonical
        descending = (direction == "GT") != (x > y)
        return SortKey(x // 2, descending, is_total and is_float(self._op.out_types[x // 2].dtype))

    def _argument(self, value: Any) -> tuple[int, bool] | None:
        """Return the index of the argument that a value is, and whether its zeros and NaNs are canonical.

        JAX compares `select(x != x, NaN, select(x == 0, 0, x))`, so that all zeros are equal, and all NaNs. Narrow
        floats may be widened.
        """
        if value in self._arguments:
            return self._arguments.index(value), False
        operation = _definition(value)
        if operation is not None and operation.name == "stablehlo.convert":
            (operand,) = operation.operands
            source, target = (array_type(each.type).dtype for each in (operand, value))
            widens = is_float(source) and is_float(target) and source.itemsize < target.itemsize
            return self._argument(operand) if widens else None
        return self._canonical(value)

    def _canonical(self, value: object) -> tuple[int, bool] | None:
        outer = self._select(value)
        inner = None if outer is None else self._select(outer[2])
        if outer is None or inner is None:
            return None
        (is_nan, nan, _), (is_zero, zero, x) = outer, inner
        matches = (
            np.isnan(nan)
            and zero == 0
            and self._compares(is_nan, "NE", x, x)
            and self._compares(is_zero, "EQ", x, None)
            and x in self._arguments
        )
        return (self._arguments.index(x), True) if matches else None

    def _select(self, value: object) -> tuple[Any, Any, Any] | None:
        """Return the condition, the constant and the other operand of `select(condition, constant, other)`."""
        operation = _definition(value)
        if operation is None or operation.name != "stablehlo.select":
            return None
        condition, case, other = operation.operands
        constant = self._constant(case)
        return None if constant is None else (condition, constant, other)

    def _compares(self, value: object, direction: str, x: object, y: object) -> bool:
        """Return whether a value compares `x` with `y`; None stands for the constant 0."""
        operation = _definition(value)
        if operation is None or operation.name != "stablehlo.compare":
            return False
        left, right = operation.operands
        compare = self._op.inner(operation)
        is_right = self._constant(right) == 0 if y is None else right == y
        is_number = compare.enum("compare_type") != "TOTALORDER"
        return compare.enum("comparison_direction") == direction and left == x and bool(is_right) and is_number

    def _constant(self, value: object) -> Any:
        operation = _definition(value)
        is_constant = operation is not None and operation.name == "stablehlo.constant"
        return constant_elements(operation) if is_constant else None


def _definition(value: Any) -> Any:
    """Return the op that defines a value, inside of the region or before it; None for an argument."""
    return None if isinstance(value, mlir_ir.BlockArgument) else value.owner.operation
