"""scaled_dot: the product of two arrays of float8 numbers, each with a scale, summed in wider floats.

    (x · x_scale) · (y · y_scale), optionally + addend

XLA computes the form that this op is lowered to by one call of a library, where the chip has units for float8. The
addend is part of the call: it saves a pass over the result.
"""

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import DType, is_float, is_float8, short_name
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, NumpyArray, Op, ignore_float_errors
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.dot import Dot, Pair
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.shardings.factors import FactorRule

SCALE = ArrayType((), np.dtype(np.float32))


@final
@record
class ScaledDot(Op):
    """A contraction of float8 numbers: (x, y, scale of x, scale of y, if `adds` an addend) → floats of `dtype`.

    Attributes:
        contract, batch: pairs of dims, of `x` and of `y`, as in `Dot`.
        dtype: the dtype of the result.
        adds: whether an array of the type of the result is added to it.
        split_accumulator: whether a library must add the parts of a sum in float32. If not, units for float8 may keep
            fewer bits of the sum, which is faster on some chips.
    """

    name = "scaled_dot"
    is_contraction = is_product = needs_float8_units = True
    contract: Pair
    batch: Pair
    dtype: DType
    adds: bool = False
    split_accumulator: bool = field(default=False, repr=False)

    @property
    def dot(self) -> Dot:
        """The same contraction of wider floats."""
        return Dot(self.contract, self.batch, None, ("DEFAULT", "DEFAULT"))

    def out_type(self, x: ArrayType, y: ArrayType, *rest: ArrayType) -> ArrayType:
        scales, addends = rest[:2], rest[2:]
        if not (is_float8(x.dtype) and is_float8(y.dtype)):
            raise TypeError(f"scaled_dot: operands must be of float8 dtypes, not {x} and {y}")
        if not is_float(self.dtype) or self.dtype.itemsize not in (2, 4):
            raise TypeError(f"scaled_dot: the result must be a float of 16 or 32 bits, not {short_name(self.dtype)}")
        if any(scale.plain != SCALE for scale in scales):
            raise TypeError(f"scaled_dot: scales must be {SCALE}, not {scales[0]} and {scales[1]}")
        result = self.dot.out_type(x.with_dtype(self.dtype), y.with_dtype(self.dtype)).strong()
        if [type.plain for type in addends] != [result.plain] * self.adds:
            raise TypeError(f"scaled_dot: needs {int(self.adds)} addends of {result}, not {[*map(str, addends)]}")
        return result

    def factors(self, x: ArrayType, y: ArrayType, *rest: ArrayType) -> FactorRule:
        rule = self.dot.factors(x, y)
        if not self.adds:
            return replace(rule, operands=(*rule.operands, (), ()))
        return replace(rule, operands=(*rule.operands, (), (), *rule.results), addends=frozenset({4}))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        raise TypeError(
            "scaled_dot: a product of float8 numbers has no derivative. A product of an FP8Policy has first "
            "derivatives only: compute second ones with the function that was not transformed."
        )

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        if self.adds:
            product, dim = replace(self, adds=False).vmap(axis, operands[:-1], dims[:-1])
            terms = batch_dim_at(product, dim, 0, axis.size), batch_dim_at(operands[-1], dims[-1], 0, axis.size)
            return Add()(*terms), 0
        (x, y, *scales), (x_dim, y_dim, *scale_dims) = operands, dims
        if scale_dims == [None, None]:
            dot, dim = self.dot.vmapped((x, y), (x_dim, y_dim))
            return replace(self, contract=dot.contract, batch=dot.batch)(*operands), dim
        # A library call has one scale per operand. Numbers with several scales are multiplied by these first.
        left = _scaled(batch_dim_at(x, x_dim, 0, axis.size), batch_dim_at(scales[0], scale_dims[0], 0, axis.size))
        right = _scaled(batch_dim_at(y, y_dim, 0, axis.size), batch_dim_at(scales[1], scale_dims[1], 0, axis.size))
        dot, dim = self.dot.vmapped((left, right), (0, 0))
        product = dot(left, right)
        return product if product.type.dtype == self.dtype else Convert(self.dtype)(product), dim

    def lower(self, hlo: Hlo, x: HloValue, y: HloValue, *rest: HloValue) -> Any:
        scales, addends = rest[:2], list(rest[2:])
        # The sum is in f32, and the range of f16 is too small for scaled numbers.
        wide = np.dtype(np.float32) if self.dtype == np.float16 else self.dtype
        if hlo.platform == "cuda":
            # With this option XLA compares kernels of its own first, which read copies of the operands in `dtype`.
            hlo.compile_option("xla_gpu_enable_triton_gemm", False)
            # XLA would merge products of one array, by a concatenation of the others, which have several scales.
            x, y = hlo.many("stablehlo.optimization_barrier", (x, y), (x.type, y.type))
        scaled = []
        for operand, scale in zip((x, y), scales, strict=True):
            numbers = Convert(wide).lower(hlo, operand)
            factor = scale if wide == scale.type.dtype else Convert(wide).lower(hlo, scale)
            factors = Broadcast(numbers.type.shape, ()).lower(hlo, factor)
            scaled.append(hlo.op("stablehlo.multiply", (numbers, factors), numbers.type))
        # XLA passes the precision to cuBLASLt: at the default one of both operands, it accumulates fast.
        precision = ("HIGHEST", "HIGHEST") if self.split_accumulator else self.dot.precision
        product = replace(self.dot, precision=precision).lower(hlo, *scaled)
        if addends and wide == self.dtype:
            product = hlo.op("stablehlo.add", (product, addends.pop()), product.type)
        if hlo.platform == "cuda":
            # XLA would make `gelu` a part of the library call, with a second result, and then fail to launch it.
            product = hlo.op("stablehlo.optimization_barrier", (product,), product.type)
        if wide != self.dtype:
            product = Convert(self.dtype).lower(hlo, product)
        return hlo.op("stablehlo.add", (product, *addends), product.type) if addends else product

    @ignore_float_errors
    def reference(self, x: NumpyArray, y: NumpyArray, *rest: NumpyArray) -> NumpyArray:
        left, right = (z.astype(np.float32) * scale for z, scale in zip((x, y), rest[:2], strict=True))
        product = self.dot.reference(left, right).astype(self.dtype)
        return product + rest[2] if self.adds else product


def _scaled(numbers: Operand, scales: Operand) -> Any:
    """Multiply slices along dim 0 by one scale each, in float32."""
    wide = Convert(np.dtype(np.float32))(numbers)
    return Mul()(wide, Broadcast(wide.type.shape, (0,))(scales))
