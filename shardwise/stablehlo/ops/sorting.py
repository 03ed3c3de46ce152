"""Sorts, by the comparators that can be expressed as sort keys."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.dtypes import is_float
from shardwise.errors import UnsupportedError
from shardwise.stablehlo.elements import constant_elements
from shardwise.stablehlo.operation import Operation
from shardwise.stablehlo.ops.elementwise import total_order_key


@final
@dataclass(frozen=True)
class _Key:
    """One key of a sort.

    Attributes:
        operand: the index of the operand.
        direction: LT for ascending, GT for descending.
        is_total: whether floats are compared by the total order of their bits: -0 before +0.
    """

    operand: int
    direction: str
    is_total: bool


def _sort(op: Operation, *operands: Array) -> Any:
    dim = op.integer("dimension")
    keys = _Comparator(op).keys()
    if len({key.direction for key in keys}) != 1 or len({key.operand for key in keys}) != len(keys):
        raise UnsupportedError("the comparator must compare distinct operands, all in the same direction")
    columns = [_column(operands[key.operand], key) for key in keys]
    # Reversed twice, an ascending stable sort is a descending one that keeps the order of equal elements.
    arrays = [*columns, *operands]
    if keys[0].direction == "GT":
        arrays = [lax.rev(x, (dim,)) for x in arrays]
    if [key.operand for key in keys] == list(range(len(keys))) and not any(key.is_total for key in keys):
        results = lax.sort(tuple(arrays[len(keys) :]), dim, num_keys=len(keys))
    else:
        results = lax.sort(tuple(arrays), dim, num_keys=len(keys))[len(keys) :]
    return [lax.rev(x, (dim,)) for x in results] if keys[0].direction == "GT" else list(results)


def _column(x: Array, key: _Key) -> Array:
    return total_order_key(x) if key.is_total else x


@final
class _Comparator:
    """The comparator of a sort, a region with two arguments for each operand."""

    def __init__(self, op: Operation):
        self._op = op
        self._block = op.regions[0]
        self._arguments = list(self._block.arguments)
        self._definitions = {
            result: view.operation for view in self._block.operations for result in view.operation.results
        }

    def keys(self) -> list[_Key]:
        """Return the sort keys, the most significant first."""
        final = self._block.operations[len(self._block.operations) - 1].operation
        return self._lexicographic(final.operands[0])

    def _lexicographic(self, value: Any) -> list[_Key]:
        """Return the keys of `first precedes, or first is equal and the others precede`, or of one comparison."""
        operation = self._definition(value)
        if operation.name == "stablehlo.compare":
            return [self._comparison(operation, ("LT", "GT"))]
        if operation.name == "stablehlo.or":
            first, rest = map(self._definition, operation.operands)
            if first.name == "stablehlo.compare" and rest.name == "stablehlo.and":
                key = self._comparison(first, ("LT", "GT"))
                equality, others = rest.operands
                equal = self._comparison(self._definition(equality), ("EQ",))
                if (equal.operand, equal.is_total) == (key.operand, key.is_total):
                    return [key, *self._lexicographic(others)]
        raise self._error()

    def _comparison(self, operation: Any, directions: tuple[str, ...]) -> _Key:
        if operation.name != "stablehlo.compare":
            raise self._error()
        compare = Operation(operation, self._op.module, self._op.source, self._op.evaluate)
        direction, kind = compare.enum("comparison_direction"), compare.enum("compare_type")
        (first, is_first_canonical), (second, is_second_canonical) = map(self._argument, operation.operands)
        is_pair = first % 2 == 0 and second == first + 1 and is_first_canonical == is_second_canonical
        if direction not in directions or not is_pair:
            raise self._error()
        is_total = kind == "TOTALORDER" and not is_first_canonical
        x = self._op.out_types[first // 2]
        return _Key(first // 2, direction, is_total and is_float(x.dtype))

    def _argument(self, value: Any) -> tuple[int, bool]:
        """Return the index of the argument that a value is, and whether its zeros and NaNs are canonical.

        JAX compares `select(x != x, NaN, select(x == 0, 0, x))`, so that all zeros are equal, and all NaNs.
        """
        if value in self._arguments:
            return self._arguments.index(value), False
        nan, zero = self._select(value), None
        if nan is not None:
            test, constant, other = nan
            zero = self._select(other)
            if zero is not None and np.isnan(constant):
                zero_test, zero_constant, argument = zero
                is_nan = self._compares(test, "NE", argument, argument)
                if is_nan and zero_constant == 0 and self._compares(zero_test, "EQ", argument, 0.0):
                    return self._arguments.index(argument), True
        raise self._error()

    def _select(self, value: Any) -> tuple[Any, Any, Any] | None:
        """Return the condition, the constant and the other operand of `select(condition, constant, other)`."""
        operation = self._definitions.get(value)
        if operation is None or operation.name != "stablehlo.select":
            return None
        condition, case, other = operation.operands
        constant = self._constant(case)
        return None if constant is None else (condition, constant, other)

    def _compares(self, value: Any, direction: str, x: Any, y: Any) -> bool:
        operation = self._definitions.get(value)
        if operation is None or operation.name != "stablehlo.compare":
            return False
        compare = Operation(operation, self._op.module, self._op.source, self._op.evaluate)
        left, right = operation.operands
        is_same = right == y if not isinstance(y, float) else self._constant(right) == y
        return compare.enum("comparison_direction") == direction and left == x and bool(is_same)

    def _constant(self, value: Any) -> Any:
        operation = self._definitions.get(value)
        if operation is None or operation.name != "stablehlo.constant":
            return None
        return constant_elements(operation)

    def _definition(self, value: Any) -> Any:
        if value not in self._definitions:
            raise self._error()
        return self._definitions[value]

    def _error(self) -> UnsupportedError:
        return UnsupportedError(
            "the comparator is not supported: it must compare pairs of its arguments by LT or GT, one after the other"
        )


OPS: dict[str, Callable[..., Any]] = {"stablehlo.sort": _sort}
