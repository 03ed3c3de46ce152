"""dot: the product of two arrays summed over contracting dims, one product for each index of the batch dims."""

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType, is_float, is_inexact, is_integer, numpy_carrier, short_name
from shardwise.compiler.ir.op import BatchAxis, Hlo, NumpyArray, Op, UndefinedPrimal, ignore_float_errors
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.arithmetic import add_tangents
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.shape.movement import inverse_permutation, lower_permute, permute
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.config import PRECISIONS, config

Pair = tuple[tuple[int, ...], tuple[int, ...]]
_Factor = tuple[Any, tuple[int, ...], tuple[int, ...]]  # of a product: an array, its contracted and its batch dims
_DEFAULT = ("DEFAULT", "DEFAULT")


def default_precision() -> tuple[str, str]:
    """The precision of products that ask for none, as `default_matmul_precision` has it."""
    level = config.default_matmul_precision
    return _DEFAULT if level is None else (PRECISIONS[level], PRECISIONS[level])


@final
@record
class Dot(Op):
    """Result dims: batch, then the free dims of the left operand, then those of the right.

    `contract` and `batch` pair dims of the left operand with dims of the right: x @ w is `Dot(((1,), (0,)))`.
    `dtype` is the result's, where that is wider than the operands'; `precision` says how exact each operand is taken.
    """

    name = "dot"
    is_contraction = True
    contract: Pair
    batch: Pair = ((), ())
    dtype: DType | None = field(default=None, repr=False)
    precision: tuple[str, str] = field(default_factory=default_precision, repr=False, metadata={"omitted": _DEFAULT})

    def out_type(self, x: ArrayType, y: ArrayType) -> ArrayType:
        for what, (left, right) in (("contracting", self.contract), ("batch", self.batch)):
            if len(left) != len(right):
                raise TypeError(f"dot: {what} dims must come in pairs, not {left} and {right}")
            for a, b in zip(left, right, strict=True):
                if not (0 <= a < x.ndim and 0 <= b < y.ndim):
                    raise TypeError(f"dot: {what} dims {a} and {b} do not exist in {x} and {y}")
                if x.shape[a] != y.shape[b]:
                    raise TypeError(
                        f"dot: {what} dims must agree, but dim {a} of {x} has size {x.shape[a]} "
                        f"and dim {b} of {y} has size {y.shape[b]}"
                    )
        for used in (self.contract[0] + self.batch[0], self.contract[1] + self.batch[1]):
            if len(set(used)) != len(used):
                raise TypeError(f"dot: a dim repeats in contract={self.contract}, batch={self.batch}")
        if x.dtype != y.dtype:
            raise TypeError(f"dot: operands must have one dtype, not {x} and {y}")
        if self.dtype is not None and not sums_in(self.dtype, x.dtype):
            raise TypeError(f"dot: {short_name(self.dtype)} is too narrow for sums of products of {x}")
        free_x, free_y = self.free(x.ndim, y.ndim)
        shape = [x.shape[d] for d in (*self.batch[0], *free_x)] + [y.shape[d] for d in free_y]
        return ArrayType(tuple(shape), self.dtype or x.dtype, x.weak and y.weak)

    def free(self, left: int, right: int) -> Pair:
        """The dims of either operand that are neither contracted nor batch."""
        return (
            tuple(d for d in range(left) if d not in self.contract[0] + self.batch[0]),
            tuple(d for d in range(right) if d not in self.contract[1] + self.batch[1]),
        )

    def factors(self, x: ArrayType, y: ArrayType) -> FactorRule:
        free_x, free_y = self.free(x.ndim, y.ndim)
        of_x = {d: f for f, d in enumerate((*self.batch[0], *free_x, *self.contract[0]))}
        of_y = {b: of_x[a] for pair in (self.batch, self.contract) for a, b in zip(*pair, strict=True)}
        of_y |= {d: len(of_x) + i for i, d in enumerate(free_y)}
        sizes = [x.shape[d] for d in of_x] + [y.shape[d] for d in free_y]
        result = [of_x[d] for d in (*self.batch[0], *free_x)] + [of_y[d] for d in free_y]
        return FactorRule(
            (tuple((of_x[d],) for d in range(x.ndim)), tuple((of_y[d],) for d in range(y.ndim))),
            (tuple((f,) for f in result),),
            tuple(sizes),
            {of_x[d]: SUM for d in self.contract[0]},
        )

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        # Terms of integers are sums that may have wrapped around: they say nothing of a wider result.
        return ((0,), (1,)) if self.dtype in (None, types[0].dtype) or is_inexact(types[0].dtype) else ()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, y), (dx, dy) = primals, tangents
        return self(x, y), add_tangents(None if dx is None else self(dx, y), None if dy is None else self(x, dy))

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        x, y = operands
        free = self.free(x.type.ndim, y.type.ndim)
        batch = tuple(range(len(self.batch[0])))
        rows = tuple(range(len(batch), len(batch) + len(free[0])))
        columns = tuple(range(len(batch) + len(free[0]), cotangent.type.ndim))
        if isinstance(x, UndefinedPrimal):
            return self._back(0, free, x.type, (cotangent, columns, batch), (y, free[1], self.batch[1])), None
        return None, self._back(1, free, y.type, (cotangent, rows, batch), (x, free[0], self.batch[0]))

    def _back(self, side: int, free: Pair, to: ArrayType, result: _Factor, other: _Factor) -> Any:
        """For the operand on a side, of type `to`: the product of the result's cotangent, which may be wider, and the
        other operand; in the order that has dims as the operand has them, so that none need move."""
        others = self.contract[1 - side]
        contracted = tuple(self.contract[side][i] for i in sorted(range(len(others)), key=others.__getitem__))
        result_first = min(contracted, default=0) > max(free[side], default=0)
        (a, a_dims, a_batch), (b, b_dims, b_batch) = (result, other) if result_first else (other, result)
        wide = self.dtype or to.dtype
        a, b = (z if z.type.dtype == wide else Convert(wide, z.type.weak)(z) for z in (a, b))
        product = Dot((a_dims, b_dims), (a_batch, b_batch), None, self.precision)(a, b)
        product = product if wide == to.dtype else Convert(to.dtype, to.weak)(product)
        rest = (*free[side], *contracted) if result_first else (*contracted, *free[side])
        return permute(product, inverse_permutation((*self.batch[side], *rest)))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        pairs = [self._shifted(side, dims[side]) for side in (0, 1)]
        contract = (pairs[0][0], pairs[1][0])
        batch = (pairs[0][1], pairs[1][1])
        left, right = dims
        if left is not None and right is not None:
            both = ((left, *batch[0]), (right, *batch[1]))
            return replace(self, contract=contract, batch=both)(*operands), 0
        op = replace(self, contract=contract, batch=batch)
        free = op.free(operands[0].type.ndim, operands[1].type.ndim)
        if left is not None:
            return op(*operands), len(batch[0]) + free[0].index(left)
        assert right is not None
        return op(*operands), len(batch[0]) + len(free[0]) + free[1].index(right)

    def _shifted(self, side: int, dim: int | None) -> Pair:
        """This side's contracting and batch dims, once a batch dim has been put in at `dim`."""
        if dim is None:
            return self.contract[side], self.batch[side]
        return (
            tuple(d + (d >= dim) for d in self.contract[side]),
            tuple(d + (d >= dim) for d in self.batch[side]),
        )

    def lower(self, hlo: Hlo, x: Any, y: Any) -> Any:
        leading = tuple(range(len(self.batch[0])))
        if hlo.platform == "cpu" and self.batch != (leading, leading):
            # XLA wants them in front, and copies for every product. These copies are shared by all that take x or y.
            orders = [
                (*dims, *(d for d in range(z.type.ndim) if d not in dims))
                for dims, z in zip(self.batch, (x, y), strict=True)
            ]
            left, right = (tuple(map(order.index, dims)) for order, dims in zip(orders, self.contract, strict=True))
            operands = [lower_permute(hlo, z, order) for z, order in zip((x, y), orders, strict=True)]
            return replace(self, contract=(left, right), batch=(leading, leading)).lower(hlo, *operands)
        names = zip(("contracting", "batching"), (self.contract, self.batch), strict=True)
        lists = [
            f"{side}_{what}_dimensions = {list(pair[i])}"
            for what, pair in names
            for i, side in enumerate(("lhs", "rhs"))
        ]
        numbers = ", ".join(sorted(lists, key=lambda text: ("batching" not in text, text)))
        attributes = f"dot_dimension_numbers = #stablehlo.dot<{numbers}>"
        if self.precision != _DEFAULT:
            levels = ", ".join(f"#stablehlo<precision {level}>" for level in self.precision)
            attributes += f", precision_config = [{levels}]"
        return hlo.op("stablehlo.dot_general", (x, y), self.out_type(x.type, y.type), attributes)

    @ignore_float_errors
    def reference(self, x: NumpyArray, y: NumpyArray) -> NumpyArray:
        rule = self.factors(ArrayType(x.shape, x.dtype), ArrayType(y.shape, y.dtype))
        out = self.dtype or x.dtype
        left, right = (operand.astype(numpy_carrier(out)) for operand in (x, y))
        letters = ["".join(chr(ord("a") + f) for (f,) in dims) for dims in (*rule.operands, *rule.results)]
        return np.asarray(np.einsum(f"{letters[0]},{letters[1]}->{letters[2]}", left, right)).astype(out)


def sums_in(dtype: DType, narrower: DType) -> bool:
    """Whether sums of products may have `dtype` where the operands have another."""
    of_one_kind = any(kind(dtype) and kind(narrower) for kind in (is_integer, is_float, _is_complex))
    return dtype == narrower or (of_one_kind and dtype.itemsize > narrower.itemsize)


def _is_complex(dtype: DType) -> bool:
    return dtype.kind == "c"
