"""Rows: the dims of the values of a program that have the same rows, and the ops that compute each row alone."""

from collections.abc import Iterable, Sequence
from typing import final

from shardwise.compiler.candidates.dim_groups import DimGroups, dim_groups
from shardwise.compiler.candidates.unfold import unfold
from shardwise.compiler.dtypes import is_integer
from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.op import Op, factor_rule
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.reduction import AND, MAX, MIN, OR, SUM, Reduction
from shardwise.compiler.schedule.part_equations import part_equations, part_type
from shardwise.compiler.schedule.split_region import SplitDims
from shardwise.compiler.shardings.factors import FactorRule

_IDEMPOTENT = (MAX, MIN, AND, OR)


@final
class Rows:
    """The dims of values that are rows.

    Attributes:
        count: the number of rows.
    """

    def __init__(self, groups: DimGroups, group: int, count: int, zeros: frozenset[Value]):
        self._groups = groups
        self._group = group
        self._zeros = zeros
        self.count = count

    @staticmethod
    def from_values(
        values: Sequence[Value], equations: Sequence[Equation], alike: Iterable[tuple[Value, Value]] = ()
    ) -> "Rows":
        """Return the rows of all values that equations compute, if dim 0 of `values` has the same rows.

        Args:
            values: values with rows.
            equations: the equations.
            alike: pairs of values of one shape that have the same rows, if one of them has.
        """
        pairs = [((value, dim), (other, dim)) for value, other in alike for dim in range(value.type.ndim)]
        return Rows.from_dims([(value, 0) for value in values], equations, values[0].type.shape[0], pairs)

    @staticmethod
    def from_dims(
        dims: Sequence[tuple[Value, int]],
        equations: Sequence[Equation],
        count: int,
        alike: Iterable[tuple[tuple[Value, int], tuple[Value, int]]] = (),
    ) -> "Rows":
        """Return the rows of all values that equations compute, if these dims have the same rows.

        Args:
            dims: dims of values.
            equations: the equations.
            count: the number of rows.
            alike: pairs of dims of one size that have the same rows, if one of them has.
        """
        groups = dim_groups(equations)
        for pair in dims[1:]:
            groups.join(pair, dims[0])
        for one, other in alike:
            groups.join(one, other)
        return Rows(groups, groups.find(*dims[0]), count, _zeros(equations))

    def dims(self, value: Value) -> list[int]:
        """Return the dims of a value that are rows, or products of rows and other dims."""
        return [dim for dim in range(value.type.ndim) if self._groups.find(value, dim) == self._group]

    def pass_through(self, equation: Equation) -> bool:
        """Return whether an op computes each row of its results from the same row of its operands.

        A control op does if each op in its programs does.
        """
        op = equation.op
        if isinstance(op, Control):
            alone = Program(equation.inputs, (equation,), equation.outputs)
            return all(map(self.pass_through, unfold(alone).equations))
        read = [self.dims(value) for value in equation.inputs]
        written = [self.dims(value) for value in equation.outputs]
        if not any(read):  # rows that are not computed from rows must be equal
            return not any(written) or isinstance(op, (Broadcast, Full)) or self._is_iota_of_another_dim(op, written)
        if op.user_mesh is not None or any(len(dims) > 1 for dims in read) or any(len(dims) != 1 for dims in written):
            return False
        rule = factor_rule(op, tuple([value.type for value in equation.inputs]))
        factor = self._factor(rule, read, written)
        if factor is None or factor in {*rule.need_replication, *rule.exchange, *rule.reduce}:
            return False
        return not self._depends_on_position(equation)

    def reduction(self, equation: Equation) -> Reduction | None:
        """Return how an op without rows in its results reduces those of its operands; None if in another way."""
        op = equation.op
        read = [self.dims(value) for value in equation.inputs]
        written = [self.dims(value) for value in equation.outputs]
        if isinstance(op, Control) or op.user_mesh is not None or any(len(dims) > 1 for dims in read) or any(written):
            return None
        rule = factor_rule(op, tuple([value.type for value in equation.inputs]))
        factor = self._factor(rule, read, written)
        if factor is None or factor in {*rule.need_replication, *rule.exchange} or self._has_indices(equation):
            return None
        reduction = rule.reduce.get(factor)
        # A scatter combines the rows with an operand without rows, which would be combined with each part of them.
        others = [value for value, dims in zip(equation.inputs, read, strict=True) if not dims]
        if reduction in _IDEMPOTENT or (reduction is SUM and self._zeros.issuperset(others)) or not others:
            return reduction
        return None

    @staticmethod
    def _is_iota_of_another_dim(op: Op, written: Sequence[Sequence[int]]) -> bool:
        return isinstance(op, Iota) and op.dim not in written[0]

    def _factor(self, rule: FactorRule, read: Sequence[Sequence[int]], written: Sequence[Sequence[int]]) -> int | None:
        """Return the factor of the rows of an op; None if they have several, or none."""
        pairs = [*zip(rule.operands, read, strict=True), *zip(rule.results, written, strict=True)]
        if any(dims and not factors[dims[0]] for factors, dims in pairs):
            return None
        found = {factors[dims[0]][0] for factors, dims in pairs if dims}
        # A reshape may split the rows into several dims.
        return (
            next(iter(found)) if len(found) == 1 and not any(rule.sizes[each] % self.count for each in found) else None
        )

    def _depends_on_position(self, equation: Equation) -> bool:
        """Return whether an op may compute rows from their indices, as a scatter to given rows does.

        Its factor passes through, but on a shard the op subtracts the position of the shard from its operand with
        indices: the first row alone and the second one alone need different programs.
        """
        if self.count == 1 or not self._has_indices(equation):
            return False
        if len(equation.outputs) > 1:
            return True
        inputs = equation.inputs
        dims = [self.dims(value) for value in inputs]
        split = SplitDims(tuple(rows[0] if rows else None for rows in dims), self.dims(equation.outputs[0])[0])
        operands = [
            Value(value.type if dim is None else part_type(value.type, dim, self.count))
            for value, dim in zip(inputs, split.operands, strict=True)
        ]
        first, second = (part_equations(equation, operands, split, self.count, part)[0] for part in range(2))
        return [each.op for each in first] != [each.op for each in second]

    def _has_indices(self, equation: Equation) -> bool:
        """Return whether an op may have an operand with indices of rows."""
        op = equation.op
        return not (op.is_elementwise or op.is_contraction) and any(
            is_integer(value.type.dtype) and not self.dims(value) for value in equation.inputs
        )


def _zeros(equations: Sequence[Equation]) -> frozenset[Value]:
    """Return the values that are zeros."""
    zeros: set[Value] = set()
    for equation in equations:
        op = equation.op
        if (isinstance(op, Full) and op.is_zero) or (isinstance(op, Broadcast) and zeros.issuperset(equation.inputs)):
            zeros.update(equation.outputs)
    return frozenset(zeros)
