"""Dot products over any dims. They stage the op `Dot`.

Operands may differ in dtype: the narrower one is promoted. `preferred_element_type` is the dtype of the result. Sums
are accumulated in it if it is wider than the product's dtype.
"""

import operator
from collections.abc import Sequence
from typing import Any

import ml_dtypes

from shardwise.api.meshes.out_sharding import check_sums, constrain_sharding, decided_by
from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, astype_weak, compiled_function, type_of
from shardwise.compiler.arrays.promotion import canonical_dtype, requested_dtype
from shardwise.compiler.dtypes import DType, is_float, is_inexact, is_integer, short_name
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.named_dot import NamedDot
from shardwise.compiler.ops.contract.dot import Dot, sums_in
from shardwise.compiler.ops.elementwise.bitwise import bit_width
from shardwise.lax.precision import PrecisionLike, precisions
from shardwise.typing import ArrayLike, DTypeLike, OutSharding

DotDimensionNumbers = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]


_DOT = Family(
    {
        "dimension_numbers": "((contracting dims of lhs, of rhs), (batch dims of lhs, of rhs)).",
        "precision": 'a `Precision` for both operands or a pair of them, or a name such as "highest".\n'
        "None means the default of the configuration.",
        "preferred_element_type": "the dtype of the result. Sums are accumulated in it if it is wider.\n"
        "None means the dtype of the product, to which both operands are promoted.",
        "out_sharding": Parameter(
            "the sharding to pin the result to.",
            "ShardingError: if `out_sharding` does not fit the shape of the result.",
        ),
    },
    returns="An array with the batch dims, then the other dims of `lhs`, then those of `rhs`.",
    raises=[
        "NotImplementedError: if `precision` is a `DotAlgorithm` without an equivalent `Precision`.",
        "TypeError: if the dims do not agree, the dtypes have no common dtype, or\n"
        "`preferred_element_type` is too narrow.",
    ],
)


@documented(_DOT)
def dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    *,
    dimension_numbers: DotDimensionNumbers | None = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Compute the product of vectors and matrices, or a general dot product.

    Args:
        lhs, rhs: arrays. Without `dimension_numbers`, they must be vectors or matrices.

    Raises:
        ValueError: if `dimension_numbers` is None and the operands are not vectors or matrices whose inner sizes agree,
            or `precision` is unknown.

    Example:
        >>> lax.dot(jnp.array([[1, 2], [3, 4]]), jnp.array([10, 1]))
        Array([12, 34], dtype=int32)
    """
    x, y = type_of(lhs, "dot"), type_of(rhs, "dot")
    if dimension_numbers is None:
        if not (1 <= x.ndim <= 2 and 1 <= y.ndim <= 2 and x.shape[-1] == y.shape[0]):
            raise ValueError(
                f"dot: {x} and {y} are not vectors or matrices whose inner sizes agree; "
                "other products need dimension_numbers"
            )
        dimension_numbers = (((x.ndim - 1,), (0,)), ((), ()))
    (left, right), (left_batch, right_batch) = dimension_numbers
    op = Dot(
        (tuple(map(operator.index, left)), tuple(map(operator.index, right))),
        (tuple(map(operator.index, left_batch)), tuple(map(operator.index, right_batch))),
        precision=precisions("dot", precision),
    )
    dtype = None if preferred_element_type is None else requested_dtype("dot", preferred_element_type)
    check_sums("dot", out_sharding, (lhs, rhs), [((0, a), (1, b)) for a, b in zip(*op.contract, strict=True)])
    with decided_by(out_sharding):
        product = mixed_dtype_dot(lhs, rhs, op=op, dtype=dtype)
    return constrain_sharding(product, out_sharding)


@documented(_DOT, raises=["ValueError: if `precision` is unknown."])
def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: DotDimensionNumbers,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Compute a general dot product: contract some dims, and batch over others.

    Args:
        lhs, rhs: arrays.

    Example:
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


@documented(_DOT, returns="The products.")
def batch_matmul(lhs: ArrayLike, rhs: ArrayLike, precision: PrecisionLike = None) -> Array:
    """Multiply batches of matrices. The matrices are the last two dims, and the other dims are batch dims.

    Args:
        lhs, rhs: arrays of the same rank, 2 or more, whose batch dims agree.

    Raises:
        ValueError: if the ranks differ or are less than 2, or `precision` is unknown.
        TypeError: if the sizes do not agree, or the dtypes have no common dtype.

    Example:
        >>> lax.batch_matmul(jnp.ones((3, 2, 4)), jnp.ones((3, 4, 5))).shape
        (3, 2, 5)
    """
    x, y = type_of(lhs, "batch_matmul"), type_of(rhs, "batch_matmul")
    if min(x.ndim, y.ndim) < 2 or x.ndim != y.ndim:
        raise ValueError(f"batch_matmul: operands must have the same rank, 2 or more, not {x} and {y}")
    batch = tuple(range(x.ndim - 2))
    return dot_general(lhs, rhs, (((x.ndim - 1,), (y.ndim - 2,)), (batch, batch)), precision)


@compiled_function
def mixed_dtype_dot(lhs: ArrayLike, rhs: ArrayLike, *, op: Dot | NamedDot, dtype: DType | None) -> Any:
    """Apply `op` to operands that may differ in dtype, and return the result as `dtype`, if it is given."""
    x, y = as_operand(lhs, "dot"), as_operand(rhs, "dot")
    common = _common_dtype(x.type, y.type)
    out_dtype = common if dtype is None else dtype
    if not is_inexact(common) and _bits(out_dtype) < _bits(common):
        raise TypeError(
            f"dot: preferred_element_type {short_name(out_dtype)} is narrower than the product of {x.type} and {y.type}"
        )
    if is_inexact(out_dtype) and not is_inexact(common):  # integer sums would overflow
        common = out_dtype
    x, y = (astype_weak(z, common, z.type.weak) for z in (x, y))
    if out_dtype != common and sums_in(out_dtype, common):
        return Dot(op.contract, op.batch, out_dtype, op.precision)(x, y)
    result = op(x, y)
    return result if out_dtype == common else astype_weak(result, out_dtype, result.type.weak)


def _common_dtype(x: ArrayType, y: ArrayType) -> DType:
    """Return the more precise dtype of two."""
    x_order, y_order = _precision_order(x.dtype), _precision_order(y.dtype)
    if x_order == y_order and x.dtype != y.dtype:
        raise TypeError(f"dot: {x} and {y} have no common dtype, as neither is more precise; convert one of them")
    return x.dtype if x_order > y_order else y.dtype


def _precision_order(dtype: DType) -> tuple[bool, int, int, int, bool]:
    """Return a sort key for dtypes: real before complex, then range and digits of floats, then bits of integers."""
    part = {"complex64": "float32", "complex128": "float64"}.get(dtype.name)
    real = dtype if part is None else canonical_dtype(part)
    limits = ml_dtypes.finfo(real) if is_float(real) else None  # type: ignore[no-untyped-call]
    signed = not (is_integer(real) and short_name(real)[0] == "u")
    max_exponent, mantissa_bits = (-1, -1) if limits is None else (int(limits.maxexp), int(limits.nmant))
    return part is not None, max_exponent, mantissa_bits, _bits(real), signed


def _bits(dtype: DType) -> int:
    return bit_width(dtype) if is_integer(dtype) else 1 if dtype.kind == "b" else 8 * dtype.itemsize
