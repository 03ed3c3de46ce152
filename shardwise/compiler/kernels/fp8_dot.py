"""fp8_dot: a product of an array and a weight, computed with float8 numbers, whose scales are operands.

    x, weight, scales [3], scale of x, x8, x8ᵀ, largest magnitude of x → x · weight

The scales are those of x, of the weight, and of the cotangent of the product. The cotangent of the scales is no
derivative: it has the largest magnitudes of the three arrays, from which the scales of the next step are computed.

    before      x8, x8ᵀ = quantize x, once for all products of x
    forward     w8 = quantize weight                            x8 · w8
    backward    g8, g8ᵀ = quantize cotangent                    dx = g8 · w8ᵀ,  dw = x8ᵀ · g8

All three products sum over dims that are minor in memory where the kernel writes both orders, as libraries for float8
require. The weight is quantized without a transposed copy, so that a gather of it sends one byte per element.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import ml_dtypes
import numpy as np

from shardwise.base.caches import registered_cache
from shardwise.compiler.control.call import Call, CallLike
from shardwise.compiler.control.linear_call import LinearCall
from shardwise.compiler.control.scan import vmap_by_scan
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.masks import drop_none
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.quantize import Quantize
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.contract.scaled_dot import ScaledDot
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul, StopGradient
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.movement import Reshape, inverse_permutation, permute
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along
from shardwise.compiler.trace.build import rewrite

_OPERANDS = 7  # the number of operands
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
SCALES = ArrayType((3,), np.dtype(np.float32))


@final
@record
class Fp8Form:
    """How a product is computed with float8 numbers.

    Attributes:
        dot: the product.
        dtype: the dtype of the result, and of the cotangents before they are converted.
        forward, backward: the float8 dtypes of operands, and of cotangents.
        measures: whether the product is not computed with float8 numbers, and only the magnitudes are measured.
    """

    dot: Dot
    dtype: DType
    forward: DType = E4M3
    backward: DType = E5M2
    measures: bool = False


@final
@record
class Fp8Dot(CallLike):
    """(x, weight, scales, and the results of `quantize_operand`) → the product of x and weight.

    `program` computes it, and is inlined before layouts are planned. The operand x itself is only differentiated.
    """

    name = "fp8_dot"
    opaque = True
    form: Fp8Form

    @staticmethod
    def apply(form: Fp8Form, x: Operand, weight: Operand, scales: Operand, quantized: Sequence[Any]) -> Any:
        """Return the product. `quantized` is what `quantize_operand` returned for x."""
        x, weight = (Convert(z.type.dtype)(z) if z.type.weak else z for z in (x, weight))
        programs = _programs(form, (x.type.strong(), weight.type.strong()), (False,) * _OPERANDS)
        return Fp8Dot(programs.result, form)(x, weight, scales, *quantized)[0]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        active = tuple(tangent is not None for tangent in tangents)
        assert not any(active[3:]), "the quantized operand has no derivative"
        programs = _programs(self.form, (primals[0].type.strong(), primals[1].type.strong()), active)
        result, *residuals = Call(programs.forward)(*primals)
        linear = LinearCall(programs.tangent, len(residuals), programs.cotangents)
        return (result,), linear(*residuals, *drop_none(tangents))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        """Compute one product of all elements, whose scales they share; element by element if they do not."""
        x, weight, scales, x_scale, *_ = operands
        if dims[2] is not None or dims[3] is not None:
            return vmap_by_scan(self, axis, operands, dims)
        dot, dim = self.form.dot.vmapped((x, weight), dims[:2])
        form = replace(self.form, dot=dot)
        return (Fp8Dot.apply(form, x, weight, scales, quantize_operand(form, x, x_scale)),), (dim,)


def quantize_operand(form: Fp8Form, x: Operand, scale: Operand) -> list[Any]:
    """Return the last operands of `Fp8Dot`: the scale, the float8 numbers of x, their transpose, its largest magnitude.

    They have no derivatives.
    """
    product = _Product(form, (x.type, x.type))
    x, scale = StopGradient()(x), StopGradient()(scale)
    return [scale, *product.quantize(permute(x, product.x_order), scale, form.forward, product.rows, True)]


@final
@record
class _Programs:
    """The programs of a product.

    Attributes:
        result: (x, weight, scales) → the product.
        forward: the same, which also returns residuals.
        tangent: (residuals, tangents of active operands) → the tangent of the product.
        cotangents: (residuals, the cotangent of the product) → the cotangents of active operands.
    """

    result: Program
    forward: Program
    tangent: Program
    cotangents: Program


@registered_cache(maxsize=4096)
def _programs(form: Fp8Form, types: tuple[ArrayType, ArrayType], active: tuple[bool, ...]) -> _Programs:
    product = _Product(form, types)
    operands = [*types, SCALES, *product.quantized_types()]
    forward = rewrite("fp8_forward", operands, product.forward)
    residuals = list(forward.out_types[1:])
    active_types = [type for type, is_active in zip(operands, active, strict=True) if is_active]

    def tangent(*args: Any) -> list[Any]:
        return [product.tangent(args[: len(residuals)], args[len(residuals) :], active)]

    def cotangents(*args: Any) -> list[Any]:
        found = product.cotangents(args[:-1], args[-1])
        return [x for x, is_active in zip(found, active, strict=True) if is_active]

    return _Programs(
        rewrite("fp8_dot", operands, lambda *args: product.forward(*args)[:1]),
        forward,
        rewrite("fp8_tangent", [*residuals, *active_types], tangent),
        rewrite("fp8_cotangents", [*residuals, forward.out_types[0]], cotangents),
    )


class _Product:
    """The equations of one product.

    x is permuted to [batch…, free…, contracted…], and the weight to [batch…, contracted…, free…].
    Residuals are x8ᵀ, w8, their largest magnitudes, the scale of x and the scales.
    """

    def __init__(self, form: Fp8Form, types: tuple[ArrayType, ArrayType]):
        dot = form.dot
        free = dot.free(types[0].ndim, types[1].ndim)
        self.form, self.types = form, types
        self.x_order = (*dot.batch[0], *free[0], *dot.contract[0])
        self.weight_order = (*dot.batch[1], *dot.contract[1], *free[1])
        self.batch, self.rows = len(dot.batch[0]), len(free[0])
        self.contracted, self.columns = len(dot.contract[0]), len(free[1])

    def _major(self, count: int) -> tuple[int, ...]:
        """Return the first `count` dims after the batch dims."""
        return tuple(range(self.batch, self.batch + count))

    def _minor(self, before: int, count: int) -> tuple[int, ...]:
        """Return `count` dims, after the batch dims and `before` others."""
        return tuple(range(self.batch + before, self.batch + before + count))

    def _product(
        self, left: Operand, right: Operand, left_dims: tuple[int, ...], right_dims: tuple[int, ...], *scales: Any
    ) -> Any:
        batch = tuple(range(self.batch))
        if self.form.measures:
            wide = [z if z.type.dtype == self.form.dtype else Convert(self.form.dtype)(z) for z in (left, right)]
            return Dot((left_dims, right_dims), (batch, batch), None, self.form.dot.precision)(*wide)
        return ScaledDot((left_dims, right_dims), (batch, batch), self.form.dtype)(left, right, *scales)

    def quantize(self, x: Operand, scale: Operand, dtype: DType, rows: int, transposes: bool) -> Sequence[Any]:
        """Return the float8 numbers, those with columns before rows if `transposes`, and the largest magnitude."""
        results = Quantize(dtype, transposes, self.batch, rows)(x, scale)
        if not self.form.measures:
            return results  # type: ignore[no-any-return]
        order = (*range(self.batch), *range(self.batch + rows, x.type.ndim), *range(self.batch, self.batch + rows))
        return [x, *([permute(x, order)] if transposes else []), results[-1]]

    def quantized_types(self) -> list[ArrayType]:
        """Return the types of what `quantize_operand` returns."""
        scale = SCALES.without((0,))
        quantized = rewrite("quantize", [self.types[0], scale], lambda x, scale: quantize_operand(self.form, x, scale))
        return list(quantized.out_types)

    def forward(
        self,
        x: Operand,
        weight: Operand,
        scales: Operand,
        x_scale: Operand,
        x8: Operand,
        transposed: Operand,
        largest: Operand,
    ) -> Any:
        weight_scale = _split(scales)[1]
        weight = permute(weight, self.weight_order)
        weight8, weight_largest = self.quantize(weight, weight_scale, self.form.forward, self.contracted, False)
        dims = self._minor(self.rows, self.contracted), self._major(self.contracted)
        result = self._product(x8, weight8, *dims, x_scale, weight_scale)
        return [result, transposed, weight8, largest, weight_largest, x_scale, scales]

    def cotangents(self, residuals: Sequence[Any], cotangent: Operand) -> list[Any]:
        transposed, weight8, *largest, x_scale, scales = residuals
        _, weight_scale, scale = _split(scales)
        ct, ct_transposed, ct_largest = self.quantize(cotangent, scale, self.form.backward, self.rows, True)
        columns = self._minor(self.rows, self.columns), self._minor(self.contracted, self.columns)
        x_ct = self._product(ct, weight8, *columns, scale, weight_scale)
        rows = self._minor(self.contracted, self.rows), self._minor(self.columns, self.rows)
        weight_ct = self._product(transposed, ct_transposed, *rows, x_scale, scale)
        orders = inverse_permutation(self.x_order), inverse_permutation(self.weight_order)
        pairs = zip((x_ct, weight_ct), orders, self.types, strict=True)
        found = [permute(_as(ct, type.dtype), order) for ct, order, type in pairs]
        maxima = Concatenate(0)(*(Reshape((1,))(x) for x in (*largest, ct_largest)))
        return [*found, maxima, *[None] * (_OPERANDS - 3)]

    def tangent(self, residuals: Sequence[Any], tangents: Sequence[Any], active: Sequence[bool]) -> Any:
        """Return the tangent of the product of the numbers as they were rounded."""
        transposed, weight8, _, _, x_scale, scales = residuals
        weight_scale = _split(scales)[1]
        remaining = iter(tangents)
        x_tangent, weight_tangent, *_ = (next(remaining) if is_active else None for is_active in active)
        batch, dtype = tuple(range(self.batch)), self.form.dtype
        total = None
        if x_tangent is not None:
            dims = self._minor(self.rows, self.contracted), self._major(self.contracted)
            tangent = _as(permute(x_tangent, self.x_order), dtype)
            total = Dot(dims, (batch, batch))(tangent, self._wide(weight8, weight_scale))
        if weight_tangent is not None:
            dims = self._major(self.contracted), self._major(self.contracted)
            tangent = _as(permute(weight_tangent, self.weight_order), dtype)
            product = Dot(dims, (batch, batch))(self._wide(transposed, x_scale), tangent)
            total = product if total is None else Add()(total, product)
        shape = self.form.dot.out_type(*(type.with_dtype(dtype) for type in self.types)).shape
        return full(shape, 0, dtype) if total is None else total

    def _wide(self, numbers: Operand, scale: Operand) -> Any:
        """Return float8 numbers times their scale, in the dtype of the result."""
        wide = _as(numbers, self.form.dtype)
        if self.form.measures:
            return wide
        return Mul()(wide, Broadcast(wide.type.shape, ())(_as(scale, self.form.dtype)))


def _split(scales: Operand) -> list[Any]:
    return [Reshape(())(slice_along(scales, 0, index, index + 1)) for index in range(3)]


def _as(x: Operand, dtype: DType) -> Any:
    return x if x.type.dtype == dtype else Convert(dtype)(x)
