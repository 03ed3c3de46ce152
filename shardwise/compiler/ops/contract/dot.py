"""dot: the product of two arrays, summed over contracting dims, for each index of the batch dims (`dot_general`)."""

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, final

import numpy as np

from shardwise.base.config import PRECISIONS, config
from shardwise.compiler.dtypes import DType, is_float, is_inexact, is_integer, numpy_carrier, short_name
from shardwise.compiler.ir.jax_checks import dim_axes
from shardwise.compiler.ir.op import (
    BatchAxis,
    Hlo,
    HloValue,
    NumpyArray,
    Op,
    Primal,
    UndefinedPrimal,
    ignore_float_errors,
)
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.aligned_dot import lower_aligned
from shardwise.compiler.ops.elementwise.arithmetic import add_tangents
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.shape.movement import inverse_permutation, lower_permute, permute
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import FactorRule

Pair = tuple[tuple[int, ...], tuple[int, ...]]
_DotOperand = tuple[Any, tuple[int, ...], tuple[int, ...]]  # an array, its contracting dims, its batch dims
_DEFAULT = ("DEFAULT", "DEFAULT")


def default_precision() -> tuple[str, str]:
    """Return the default precision of products, from the setting `default_matmul_precision`."""
    level = config.default_matmul_precision
    return _DEFAULT if level is None else (PRECISIONS[level], PRECISIONS[level])


@final
@record
class Dot(Op):
    """A contraction. Dims of the result: batch dims, free dims of the left operand, free dims of the right operand.

    Attributes:
        contract, batch: pairs of dims, of the left operand and of the right: x @ w is `Dot(((1,), (0,)))`.
        dtype: the dtype of the result, if it is wider than the operands' dtype.
        precision: the precision of each operand, as in XLA.
    """

    name = "dot"
    is_contraction = is_product = True
    contract: Pair
    batch: Pair = ((), ())
    dtype: DType | None = field(default=None, repr=False)
    precision: tuple[str, str] = field(default_factory=default_precision, repr=False, metadata={"omitted": _DEFAULT})

    def out_type(self, x: ArrayType, y: ArrayType) -> ArrayType:
        for role, (left, right) in (("contracting", self.contract), ("batch", self.batch)):
            if len(left) != len(right):
                raise TypeError(f"dot: {role} dims must come in pairs, not {left} and {right}")
            for a, b in zip(left, right, strict=True):
                if not (0 <= a < x.ndim and 0 <= b < y.ndim):
                    raise TypeError(f"dot: {role} dims {a} and {b} do not exist in {x} and {y}")
                if x.shape[a] != y.shape[b]:
                    raise TypeError(
                        f"dot: {role} dims must agree, but dim {a} of {x} has size {x.shape[a]} "
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
        """Return the dims of each operand that are neither contracting nor batch dims."""
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

    def types_as_jax(self, x: ArrayType, y: ArrayType) -> tuple[ArrayType, ...]:
        """Replicate the batch dims of `y` that `x` does not shard: JAX gathers them."""
        for left, right in zip(*self.batch, strict=True):
            if y.explicit is not None and not dim_axes(x, left):
                y = y.with_explicit(y.explicit.replicating(right))
        return x, y

    def copied_bytes(self, platform: str, *types: ArrayType) -> tuple[int, ...]:
        """On CPU, also operands whose dims are not in the order of a matrix product are copied.

        On GPUs, cuBLASLt multiplies int8 only along the minor dims of both operands. XLA transposes others.
        """
        if platform == "gpu":
            minors = (
                tuple(range(type.ndim - len(dims), type.ndim)) for type, dims in zip(types, self.contract, strict=True)
            )
            return tuple(
                type.nbytes if type.dtype == np.int8 and tuple(sorted(dims)) != minor else 0
                for type, dims, minor in zip(types, self.contract, minors, strict=True)
            )
        wide = super().copied_bytes(platform, *types)
        orders = self.copied_orders(platform, *types)
        return tuple(
            max(size, type.nbytes) if order else size for size, order, type in zip(wide, orders, types, strict=True)
        )

    def copied_orders(self, platform: str, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        """Return the order of the dims of each operand that XLA transposes on CPU.

        It multiplies matrices: batch dims, rows, columns. It reads a matrix in either order, but transposes other
        operands: those whose batch dims are not the first, and those of which several dims are rows or columns.
        """
        if platform != "cpu":
            return ((), ())
        free = self.free(types[0].ndim, types[1].ndim)
        orders = []
        for side, (type, rest) in enumerate(zip(types, free, strict=True)):
            batch, contracting = self.batch[side], self.contract[side]
            order = (*batch, *rest, *contracting) if side == 0 else (*batch, *contracting, *rest)
            if len(rest) <= 1 and len(contracting) <= 1:  # matrices, in the order in which they are
                order = (*batch, *sorted((*rest, *contracting)))
            orders.append(() if order == tuple(range(type.ndim)) else order)
        return orders[0], orders[1]

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        # Partial sums of integers may have wrapped around, so they must not be summed in a wider dtype.
        return ((0,), (1,)) if self.dtype in (None, types[0].dtype) or is_inexact(types[0].dtype) else ()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x, y), (dx, dy) = primals, tangents
        return self(x, y), add_tangents(None if dx is None else self(dx, y), None if dy is None else self(x, dy))

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        x, y = operands
        free = self.free(x.type.ndim, y.type.ndim)
        batch = tuple(range(len(self.batch[0])))
        rows = tuple(range(len(batch), len(batch) + len(free[0])))
        columns = tuple(range(len(batch) + len(free[0]), cotangent.type.ndim))
        if isinstance(x, UndefinedPrimal):
            return self._cotangent(0, free, x.type, (cotangent, columns, batch), (y, free[1], self.batch[1])), None
        return None, self._cotangent(1, free, y.type, (cotangent, rows, batch), (x, free[0], self.batch[0]))

    def _cotangent(self, side: int, free: Pair, to: ArrayType, result: _DotOperand, other: _DotOperand) -> Any:
        """Return the cotangent of one operand: the product of the result's cotangent and the other operand.

        The order of the two factors is chosen so that the dims of the product are in the order of the operand, if
        possible.

        Args:
            side: 0 for the left operand, 1 for the right.
            free: the free dims of both operands.
            to: the type of the operand.
            result: the cotangent of the result, which may have a wider dtype.
            other: the other operand.
        """
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
        op, dim = self.vmapped(operands, dims)
        return op(*operands), dim

    def vmapped(self, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple["Dot", int]:
        """Return the op on operands with these batch dims, and the batch dim of its result."""
        pairs = [self._shift_dims(side, dims[side]) for side in (0, 1)]
        contract = (pairs[0][0], pairs[1][0])
        batch = (pairs[0][1], pairs[1][1])
        left, right = dims
        if left is not None and right is not None:
            both = ((left, *batch[0]), (right, *batch[1]))
            return replace(self, contract=contract, batch=both), 0
        op = replace(self, contract=contract, batch=batch)
        free = op.free(operands[0].type.ndim, operands[1].type.ndim)
        if left is not None:
            return op, len(batch[0]) + free[0].index(left)
        assert right is not None
        return op, len(batch[0]) + len(free[0]) + free[1].index(right)

    def _shift_dims(self, side: int, dim: int | None) -> Pair:
        """Return the contracting and batch dims of one side after a dim is inserted at `dim`."""
        if dim is None:
            return self.contract[side], self.batch[side]
        return (
            tuple(d + (d >= dim) for d in self.contract[side]),
            tuple(d + (d >= dim) for d in self.batch[side]),
        )

    def lower(self, hlo: Hlo, x: HloValue, y: HloValue) -> Any:
        leading = tuple(range(len(self.batch[0])))
        if hlo.platform == "cpu" and self.batch != (leading, leading):
            # XLA's CPU backend moves batch dims to the front with a copy per product. Copies made here are shared by
            # products.
            orders = [
                (*dims, *(d for d in range(z.type.ndim) if d not in dims))
                for dims, z in zip(self.batch, (x, y), strict=True)
            ]
            left, right = (tuple(map(order.index, dims)) for order, dims in zip(orders, self.contract, strict=True))
            operands = [lower_permute(hlo, z, order) for z, order in zip((x, y), orders, strict=True)]
            return replace(self, contract=(left, right), batch=(leading, leading)).lower(hlo, *operands)
        if hlo.platform == "cuda" and (aligned := lower_aligned(self, hlo, x, y)) is not None:
            return aligned
        roles = zip(("contracting", "batching"), (self.contract, self.batch), strict=True)
        lists = [
            f"{side}_{role}_dimensions = {list(pair[i])}"
            for role, pair in roles
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
    """Return whether sums of products of `narrower` may have `dtype`."""
    same_kind = any(is_kind(dtype) and is_kind(narrower) for is_kind in (is_integer, is_float, _is_complex))
    return dtype == narrower or (same_kind and dtype.itemsize > narrower.itemsize)


def _is_complex(dtype: DType) -> bool:
    return dtype.kind == "c"
