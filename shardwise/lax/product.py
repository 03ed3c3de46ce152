"""Products summed over dims that are told: close to the op of `compiler/ops/dot.py`.

Operands may differ in dtype: the product has the more exact one. `preferred_element_type` is the result's dtype; sums
are made in it where it is the wider one.
"""

import operator
from collections.abc import Sequence
from typing import Any

import ml_dtypes

from shardwise.compiler.arrays.operands import as_operand, astype_weak, compiled_function, type_of
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.dtypes import DType, is_float, is_inexact, is_integer, short_name
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.dot import Dot, sums_in
from shardwise.compiler.ops.elementwise.bitwise import bit_width
from shardwise.lax.precision import precisions
from shardwise.lax.shape import constrain_sharding

DotDimensionNumbers = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]


def dot(
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: DotDimensionNumbers | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The product of two arrays: of vectors and matrices, or as `dimension_numbers` says.

    These are ((contracting dims of lhs, of rhs), (batch dims of lhs, of rhs)). The result has the batch dims, then the
    other dims of lhs, then those of rhs.

    >>> lax.dot(jnp.array([[1, 2], [3, 4]]), jnp.array([10, 1]))
    Array([12, 34], dtype=int32)
    """
    x, y = type_of(lhs, "dot"), type_of(rhs, "dot")
    if dimension_numbers is None:
        if not (1 <= x.ndim <= 2 and 1 <= y.ndim <= 2 and x.shape[-1] == y.shape[0]):
            raise ValueError(
                f"dot: {x} and {y} are not two matrices or vectors whose inner sizes agree: "
                "other products need dimension_numbers"
            )
        dimension_numbers = (((x.ndim - 1,), (0,)), ((), ()))
    (left, right), (left_batch, right_batch) = dimension_numbers
    op = Dot(
        (tuple(map(operator.index, left)), tuple(map(operator.index, right))),
        (tuple(map(operator.index, left_batch)), tuple(map(operator.index, right_batch))),
        precision=precisions("dot", precision),
    )
    dtype = None if preferred_element_type is None else canonical_dtype(preferred_element_type)
    return constrain_sharding(product(lhs, rhs, op=op, dtype=dtype), out_sharding)


def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: DotDimensionNumbers,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """The product over dims that are told, as `dot` makes it.

    >>> x = jnp.arange(6).reshape(2, 3)
    >>> lax.dot_general(x, x, (((1,), (1,)), ((0,), (0,))))
    Array([ 5, 50], dtype=int32)
    """
    return dot(
        lhs,
        rhs,
        dimension_numbers=dimension_numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
    )


def batch_matmul(lhs: Any, rhs: Any, precision: Any = None) -> Any:
    """The products of matrices, which are the last two dims of arrays whose other dims agree.

    >>> lax.batch_matmul(jnp.ones((3, 2, 4)), jnp.ones((3, 4, 5))).shape
    (3, 2, 5)
    """
    x, y = type_of(lhs, "batch_matmul"), type_of(rhs, "batch_matmul")
    if min(x.ndim, y.ndim) < 2 or x.ndim != y.ndim:
        raise ValueError(f"batch_matmul: needs two arrays of one rank, 2 or more, not {x} and {y}")
    batch = tuple(range(x.ndim - 2))
    return dot_general(lhs, rhs, (((x.ndim - 1,), (y.ndim - 2,)), (batch, batch)), precision)


@compiled_function
def product(lhs: Any, rhs: Any, *, op: Dot, dtype: DType | None) -> Any:
    """`op` of operands that may differ in dtype, as `dtype` where there is one."""
    x, y = as_operand(lhs, "dot"), as_operand(rhs, "dot")
    common = _common(x.type, y.type)
    wanted = common if dtype is None else dtype
    if not is_inexact(common) and _width(wanted) < _width(common):
        raise TypeError(
            f"dot: preferred_element_type {short_name(wanted)} is narrower than the product of {x.type} and {y.type}"
        )
    if is_inexact(wanted) and not is_inexact(common):  # integers would wrap around on the way
        common = wanted
    x, y = (astype_weak(z, common, z.type.weak) for z in (x, y))
    if wanted != common and sums_in(wanted, common):
        return Dot(op.contract, op.batch, wanted, op.precision)(x, y)
    found = op(x, y)
    return found if wanted == common else astype_weak(found, wanted, found.type.weak)


def _common(x: ArrayType, y: ArrayType) -> DType:
    """The more exact dtype of two."""
    one, other = _exactness(x.dtype), _exactness(y.dtype)
    if one == other and x.dtype != y.dtype:
        raise TypeError(f"dot: {x} and {y} have dtypes of which neither is the more exact: convert one")
    return x.dtype if one > other else y.dtype


def _exactness(dtype: DType) -> tuple[bool, int, int, int, bool]:
    """Complex numbers before real ones; then by the range and the digits of floats, and the bits of integers."""
    part = {"complex64": "float32", "complex128": "float64"}.get(dtype.name)
    real = dtype if part is None else canonical_dtype(part)
    limits = ml_dtypes.finfo(real) if is_float(real) else None  # type: ignore[no-untyped-call]
    signed = not (is_integer(real) and short_name(real)[0] == "u")
    reach, digits = (-1, -1) if limits is None else (int(limits.maxexp), int(limits.nmant))
    return part is not None, reach, digits, _width(real), signed


def _width(dtype: DType) -> int:
    return bit_width(dtype) if is_integer(dtype) else 1 if dtype.kind == "b" else 8 * dtype.itemsize
