"""named_dot: a product of two arrays, summed over contracting dims and over all members of named axes.

Under `vmap` over a name, the batch dims of both operands are one more pair of contracting dims, so the product of each
member is never materialized.
"""

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, final

from shardwise.compiler.ir.op import BatchAxis, LocalContext, Primal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import AllReduce
from shardwise.compiler.ops.collective.named import Named, mesh_axes_of, sum_of_copies
from shardwise.compiler.ops.contract.dot import Dot, Pair, default_precision
from shardwise.compiler.ops.elementwise.arithmetic import add_tangents
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import FactorRule


@final
@record
class NamedDot(Named):
    """A contraction over the dims of `contract`, as in `Dot`, and over `axes`, over which types do not track varying.

    All members have the same result. Its cotangent is therefore not summed over the members.
    """

    name = "named_dot"
    axes: tuple[Any, ...]
    contract: Pair
    batch: Pair = ((), ())
    precision: tuple[str, str] = field(default_factory=default_precision, repr=False)

    @property
    def axis_names(self) -> frozenset[Any]:
        return frozenset(self.axes)

    @property
    def dot(self) -> Dot:
        """The product of each member."""
        return Dot(self.contract, self.batch, None, self.precision)

    def out_type(self, x: ArrayType, y: ArrayType) -> ArrayType:
        return self.dot.out_type(x, y)

    def factors(self, *types: ArrayType) -> FactorRule:
        return self.dot.factors(*types)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return self.dot.linear_in(*types)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, y), (dx, dy) = primals, tangents
        return self(x, y), add_tangents(None if dx is None else self(dx, y), None if dy is None else self(x, dy))

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return self.dot.transpose(cotangent, *operands)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        return AllReduce(mesh_axes_of(context, self.axes), SUM)(self.dot(*operands))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        if axis.name not in self.axes:
            mapped, out_dim = self.dot.vmapped(operands, dims)
            return replace(self, contract=mapped.contract, batch=mapped.batch)(*operands), out_dim
        rest = tuple(name for name in self.axes if name != axis.name)
        x, y = operands
        left, right = dims
        if left is not None and right is not None:
            mapped, _ = self.dot.vmapped(operands, dims)
            contract = ((*mapped.contract[0], left), (*mapped.contract[1], right))
            batch = (mapped.batch[0][1:], mapped.batch[1][1:])
            return self._over(rest, contract, batch)(x, y), None
        x, y = (z if dim is None else Sum((dim,))(z) for z, dim in zip(operands, dims, strict=True))
        product = self._over(rest, self.contract, self.batch)(x, y)
        return sum_of_copies(product, axis.size) if left is None and right is None else product, None

    def _over(self, axes: tuple[Any, ...], contract: Pair, batch: Pair) -> "NamedDot | Dot":
        """Return the same product over other axes and dims."""
        op = replace(self, axes=axes, contract=contract, batch=batch)
        return op if axes else op.dot
