"""Products of 16-bit floats on NVIDIA GPUs whose rows are not a multiple of 16 bytes, such as a vocabulary of 50257.

The kernels of cuBLAS load 16 bytes at a time. Of arrays whose rows begin elsewhere, XLA computes the product with
kernels that take about twice as long. The operands are padded with zeros instead, and the result is sliced: XLA fuses
both with the kernels around the product.
"""

import math
from typing import Any, Protocol

from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ir.op import Hlo, HloValue
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.shape.slicing import Pad, Slice
from shardwise.compiler.shardings.factors import FactorRule

ALIGNMENT = 8  # elements of two bytes
# The smallest extent of a product (rows, columns, contracted elements) for which padding costs less than it saves.
MIN_EXTENT = 512


class _Dot(Protocol):
    def factors(self, x: ArrayType, y: ArrayType) -> FactorRule: ...
    def lower(self, hlo: Hlo, x: HloValue, y: HloValue) -> Any: ...


def lower_aligned(op: _Dot, hlo: Hlo, x: HloValue, y: HloValue) -> Any:
    """Lower a product with padded operands; return None if it needs no padding."""
    if x.type.dtype.itemsize != 2 or not is_float(x.type.dtype):
        return None
    rule = op.factors(x.type, y.type)
    sizes = _aligned_sizes(rule)
    if sizes == rule.sizes:
        return None
    padded = []
    for operand, dims in zip((x, y), rule.operands, strict=True):
        high = tuple(sizes[factor] - rule.sizes[factor] for (factor,) in dims)
        none = (0,) * len(high)
        zero = hlo.constant(0, ArrayType((), operand.type.dtype))
        padded.append(Pad(none, high, none).lower(hlo, operand, zero) if any(high) else operand)
    result = op.lower(hlo, *padded)
    shape = tuple(rule.sizes[factor] for (factor,) in rule.results[0])
    crop = Slice((0,) * len(shape), shape, (1,) * len(shape))
    return result if result.type.shape == shape else crop.lower(hlo, result)


def _aligned_sizes(rule: FactorRule) -> tuple[int, ...]:
    """Return the sizes of the factors of a product with those of minor dims rounded up, if it is large enough."""
    x, y, result = ({factor for (factor,) in dims} for dims in (*rule.operands, *rule.results))
    batch = x & y & result
    extents = [math.prod(rule.sizes[factor] for factor in both - batch) for both in (x & result, y & result, x & y)]
    if min(extents) < MIN_EXTENT:
        return rule.sizes
    minor = {dims[-1][0] for dims in (*rule.operands, *rule.results) if dims} - batch
    return tuple(
        -(-size // ALIGNMENT) * ALIGNMENT if factor in minor else size for factor, size in enumerate(rule.sizes)
    )
