"""fp8_grouped: the equations of a grouped product with float8 numbers."""

from collections.abc import Sequence
from typing import Any, final

from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.fp8_equations import Fp8Equations, Fp8Form, as_dtype
from shardwise.compiler.kernels.grouped_dot import GroupedDot, GroupedOuter, masked_rows
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.shape.movement import permute


@final
class GroupedEquations(Fp8Equations):
    """The equations of a `GroupedDot`. `others` has the offsets of the groups.

    The forward product copies the float8 numbers of the weights in transposed order, which is one byte per element.
    """

    batch, rows, weight_rows = 0, 1, 2
    x_order = (0, 1)

    def __init__(self, form: Fp8Form, types: tuple[ArrayType, ArrayType]):
        assert isinstance(form.product, GroupedDot)
        self.form, self.types = form, types
        self.weight_order = (0, 2, 1) if form.product.transposed else (0, 1, 2)

    @property
    def result_shape(self) -> tuple[int, ...]:
        x, weights = self.types
        return x.shape[0], weights.shape[self.weight_order[2]]

    def result(self, x: Operand, weight: Operand, others: Sequence[Operand], *scales: Operand) -> Any:
        return self._multiply(x, permute(weight, (0, 2, 1)), others, scales)

    def x_cotangent(self, cotangent: Operand, weight: Operand, others: Sequence[Operand], *scales: Operand) -> Any:
        return self._multiply(cotangent, weight, others, scales, self.form.split_accumulator)

    def weight_cotangent(
        self, transposed: Operand, ct_transposed: Operand, others: Sequence[Operand], *scales: Operand
    ) -> Any:
        if scales:
            outer = GroupedOuter(self.form.dtype, split_accumulator=self.form.split_accumulator)
            return outer(transposed, ct_transposed, *others, *scales)[0]
        wide = (as_dtype(permute(x, (1, 0)), self.form.dtype) for x in (transposed, ct_transposed))
        return GroupedOuter()(*wide, *others)[0]

    def weight_tangent(self, transposed: Operand, tangent: Operand, others: Sequence[Operand]) -> Any:
        return self.result(permute(transposed, (1, 0)), tangent, others)

    def _multiply(
        self, x: Operand, weight: Operand, others: Sequence[Operand], scales: Sequence[Operand], split: bool = False
    ) -> Any:
        """Multiply rows by weights [groups, columns of the result, columns of x]."""
        if scales:
            dot = GroupedDot(self.form.dtype, transposed=True, split_accumulator=split)
            return dot(x, weight, *others, *scales)[0]
        wide = (as_dtype(z, self.form.dtype) for z in (x, weight))
        return GroupedDot(transposed=True)(*wide, *others)[0]


def as_dot(product: GroupedDot, x: Operand, offsets: Operand) -> tuple[Dot, Any]:
    """Return a product of all weights that computes a grouped product, and the rows that it multiplies."""
    return Dot(((0, 2), (0, 2 if product.transposed else 1))), masked_rows(x, offsets)
