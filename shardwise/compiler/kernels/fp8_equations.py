"""fp8_equations: the equations of a product with float8 numbers: of its result, its cotangents and its tangents.

x is permuted to [batch…, free…, contracted…], and the weight to [batch…, contracted…, free…]. Subclasses multiply them.
"""

from collections.abc import Sequence
from typing import Any, final

import ml_dtypes
import numpy as np

from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.grouped_dot import GroupedDot
from shardwise.compiler.kernels.quantize import Quantize
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.contract.scaled_dot import ScaledDot
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.movement import Reshape, inverse_permutation, permute
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along

E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
SCALES = ArrayType((3,), np.dtype(np.float32))


@final
@record
class Fp8Form:
    """How a product is computed with float8 numbers.

    Attributes:
        product: the product.
        dtype: the dtype of the result, and of the cotangents before they are converted.
        forward, backward: the float8 dtypes of operands, and of cotangents.
        measures: whether the product is not computed with float8 numbers, and only the magnitudes are measured.
        split_accumulator: whether the products of the backward pass add the parts of a sum in float32.
    """

    product: Dot | GroupedDot
    dtype: DType
    forward: DType = E4M3
    backward: DType = E5M2
    measures: bool = False
    split_accumulator: bool = False


class Fp8Equations:
    """The equations of one product.

    Residuals are x8ᵀ, w8, their largest magnitudes, the scale of x, the scales, and the operands `others` of the
    product beside x and the weight.

    Attributes:
        form: how the product is computed.
        types: the types of x and of the weight.
        x_order, weight_order: the dims of x and of the weight, in the order in which they are multiplied.
        batch: the number of leading dims of x that are batch dims.
        rows: the number of free dims of x.
        weight_rows: the number of leading dims of the weight that are batch dims, or are summed.
    """

    form: Fp8Form
    types: tuple[ArrayType, ArrayType]
    x_order: tuple[int, ...]
    weight_order: tuple[int, ...]
    batch: int
    rows: int
    weight_rows: int

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The shape of the product."""
        raise NotImplementedError

    def result(self, x: Operand, weight: Operand, others: Sequence[Operand], *scales: Operand) -> Any:
        """Multiply x and the weight, which are float8 numbers with scales, or wide ones without."""
        raise NotImplementedError

    def x_cotangent(self, cotangent: Operand, weight: Operand, others: Sequence[Operand], *scales: Operand) -> Any:
        """Multiply the cotangent of the product and the weight."""
        raise NotImplementedError

    def weight_cotangent(
        self, transposed: Operand, ct_transposed: Operand, others: Sequence[Operand], *scales: Operand
    ) -> Any:
        """Multiply x and the cotangent of the product, both with columns before rows."""
        raise NotImplementedError

    def weight_tangent(self, transposed: Operand, tangent: Operand, others: Sequence[Operand]) -> Any:
        """Multiply x with columns before rows and the tangent of the weight."""
        raise NotImplementedError

    def quantize_x(self, x: Operand, scale: Operand) -> Sequence[Any]:
        """Return the float8 numbers of x, the same with columns before rows, and the largest magnitude."""
        return self._quantize_rows(permute(x, self.x_order), scale, self.form.forward)

    def _quantize_rows(self, x: Operand, scale: Operand, dtype: DType) -> Sequence[Any]:
        """Return the same for an array whose rows are those of x."""
        results = Quantize(dtype, True, self.batch, self.rows)(x, scale)
        if not self.form.measures:
            return results  # type: ignore[no-any-return]
        columns = range(self.batch + self.rows, x.type.ndim)
        order = (*range(self.batch), *columns, *range(self.batch, self.batch + self.rows))
        return [x, permute(x, order), results[-1]]

    def _quantize_weight(self, weight: Operand, scale: Operand) -> Sequence[Any]:
        """Return the float8 numbers of the weight, and the largest magnitude.

        There is no transposed copy, so that a gather of the weight sends one byte per element.
        """
        weight = permute(weight, self.weight_order)
        numbers, largest = Quantize(self.form.forward, rows=self.weight_rows)(weight, scale)
        return weight if self.form.measures else numbers, largest

    def forward(
        self,
        x: Operand,
        weight: Operand,
        scales: Operand,
        x_scale: Operand,
        x8: Operand,
        transposed: Operand,
        largest: Operand,
        *others: Operand,
    ) -> Any:
        """Return the product and the residuals."""
        weight_scale = _split(scales)[1]
        weight8, weight_largest = self._quantize_weight(weight, weight_scale)
        result = self.result(x8, weight8, others, *self._used(x_scale, weight_scale))
        return [result, transposed, weight8, largest, weight_largest, x_scale, scales, *others]

    def cotangents(self, residuals: Sequence[Any], cotangent: Operand) -> list[Any]:
        """Return the cotangents of x and of the weight, and the magnitudes as those of the scales."""
        transposed, weight8, *largest, x_scale, scales = residuals[:6]
        others = residuals[6:]
        _, weight_scale, scale = _split(scales)
        ct, ct_transposed, ct_largest = self._quantize_rows(cotangent, scale, self.form.backward)
        x_ct = self.x_cotangent(ct, weight8, others, *self._used(scale, weight_scale))
        weight_ct = self.weight_cotangent(transposed, ct_transposed, others, *self._used(x_scale, scale))
        orders = inverse_permutation(self.x_order), inverse_permutation(self.weight_order)
        pairs = zip((x_ct, weight_ct), orders, self.types, strict=True)
        found = [permute(as_dtype(ct, type.dtype), order) for ct, order, type in pairs]
        return [*found, Concatenate(0)(*(Reshape((1,))(x) for x in (*largest, ct_largest)))]

    def tangent(self, residuals: Sequence[Any], tangents: Sequence[Any], active: Sequence[bool]) -> Any:
        """Return the tangent of the product of the numbers as they were rounded.

        `tangents` are those of the operands that are `active`.
        """
        transposed, weight8, _, _, x_scale, scales, *others = residuals
        weight_scale = _split(scales)[1]
        remaining = iter(tangents)
        x_tangent, weight_tangent, *_ = (next(remaining) if is_active else None for is_active in active)
        total = None
        if x_tangent is not None:
            tangent = as_dtype(permute(x_tangent, self.x_order), self.form.dtype)
            total = self.result(tangent, self._wide(weight8, weight_scale), others)
        if weight_tangent is not None:
            tangent = as_dtype(permute(weight_tangent, self.weight_order), self.form.dtype)
            product = self.weight_tangent(self._wide(transposed, x_scale), tangent, others)
            total = product if total is None else Add()(total, product)
        return full(self.result_shape, 0, self.form.dtype) if total is None else total

    def _used(self, *scales: Operand) -> tuple[Operand, ...]:
        """Return the scales of numbers, none if these are not float8."""
        return () if self.form.measures else scales

    def _wide(self, numbers: Operand, scale: Operand) -> Any:
        """Return float8 numbers times their scale, in the dtype of the result."""
        wide = as_dtype(numbers, self.form.dtype)
        if self.form.measures:
            return wide
        return Mul()(wide, Broadcast(wide.type.shape, ())(as_dtype(scale, self.form.dtype)))


@final
class DotEquations(Fp8Equations):
    """The equations of a `Dot`."""

    def __init__(self, form: Fp8Form, types: tuple[ArrayType, ArrayType]):
        dot = form.product
        assert isinstance(dot, Dot)
        free = dot.free(types[0].ndim, types[1].ndim)
        self.form, self.types, self._dot = form, types, dot
        self.x_order = (*dot.batch[0], *free[0], *dot.contract[0])
        self.weight_order = (*dot.batch[1], *dot.contract[1], *free[1])
        self.batch = len(dot.batch[0])
        self.rows, self._contracted, self._columns = len(free[0]), len(dot.contract[0]), len(free[1])
        self.weight_rows = self.batch + self._contracted

    @property
    def result_shape(self) -> tuple[int, ...]:
        return self._dot.out_type(*(type.with_dtype(self.form.dtype) for type in self.types)).shape

    def result(self, x: Operand, weight: Operand, others: Sequence[Operand], *scales: Operand) -> Any:
        return self._multiply(
            x, weight, self._dims(self.rows, self._contracted), self._dims(0, self._contracted), scales
        )

    def x_cotangent(self, cotangent: Operand, weight: Operand, others: Sequence[Operand], *scales: Operand) -> Any:
        left, right = self._dims(self.rows, self._columns), self._dims(self._contracted, self._columns)
        return self._multiply(cotangent, weight, left, right, scales, self.form.split_accumulator)

    def weight_cotangent(
        self, transposed: Operand, ct_transposed: Operand, others: Sequence[Operand], *scales: Operand
    ) -> Any:
        left, right = self._dims(self._contracted, self.rows), self._dims(self._columns, self.rows)
        return self._multiply(transposed, ct_transposed, left, right, scales, self.form.split_accumulator)

    def weight_tangent(self, transposed: Operand, tangent: Operand, others: Sequence[Operand]) -> Any:
        dims = self._dims(0, self._contracted)
        return self._multiply(transposed, tangent, dims, dims, ())

    def _dims(self, before: int, count: int) -> tuple[int, ...]:
        """Return `count` dims, after the batch dims and `before` others."""
        return tuple(range(self.batch + before, self.batch + before + count))

    def _multiply(
        self,
        left: Operand,
        right: Operand,
        left_dims: tuple[int, ...],
        right_dims: tuple[int, ...],
        scales: Sequence[Operand],
        split: bool = False,
    ) -> Any:
        batch, dtype = tuple(range(self.batch)), self.form.dtype
        if scales:
            dot = ScaledDot((left_dims, right_dims), (batch, batch), dtype, split_accumulator=split)
            return dot(left, right, *scales)
        wide = as_dtype(left, dtype), as_dtype(right, dtype)
        return Dot((left_dims, right_dims), (batch, batch), None, self._dot.precision)(*wide)


def _split(scales: Operand) -> list[Any]:
    return [Reshape(())(slice_along(scales, 0, index, index + 1)) for index in range(3)]


def as_dtype(x: Operand, dtype: DType) -> Any:
    """Return an array converted to a dtype."""
    return x if x.type.dtype == dtype else Convert(dtype)(x)
