"""Functions of arrays in kernels: approximations, products, rolls, and bits."""

from collections.abc import Sequence
from typing import Any

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.ref_view import bitcast_packed
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.dtypes import DTypeLike, is_integer
from shardwise.lax.precision import PrecisionLike
from shardwise.typing import ArrayLike


def reciprocal(x: Array, *, approx: bool = False, full_range: bool = True) -> Any:
    """Return the reciprocal.

    Args:
        x: an array of floats.
        approx: whether the result may have the precision of bfloat16, which it then has.
        full_range: ignored: the result is right for all floats.

    Returns:
        An array like `x`.

    Raises:
        TypeError: if `x` is not an array or a number.

    Example:
        >>> pallas.reciprocal(jnp.array([2.0, 4.0]))
        Array([0.5 , 0.25], dtype=float32)
    """
    x = jnp.asarray(x)
    return jnp.reciprocal(x.astype(jnp.bfloat16)).astype(x.dtype) if approx else jnp.reciprocal(x)


def dot(
    a: Array,
    b: Array,
    trans_a: bool = False,
    trans_b: bool = False,
    allow_tf32: bool | None = None,
    precision: PrecisionLike = None,
) -> Any:
    """Return the product of two matrices, in float32 or int32.

    Args:
        a: a matrix.
        b: a matrix.
        trans_a: whether to transpose `a`.
        trans_b: whether to transpose `b`.
        allow_tf32: whether products may have the precision of tf32.
        precision: the precision, as of `lax.dot_general`, instead of `allow_tf32`.

    Returns:
        The product.

    Raises:
        ValueError: if `a` or `b` is not a matrix, or both `allow_tf32` and `precision` are given.

    Example:
        >>> pallas.triton.dot(jnp.ones((2, 3), jnp.bfloat16), jnp.ones((3, 1), jnp.bfloat16)).dtype
        dtype('float32')
    """
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError(
            f"dot: expected two matrices, not arrays of shapes {a.shape} and {b.shape}: reshape them first"
        )
    if allow_tf32 is not None:
        if precision is not None:
            raise ValueError("dot: pass either allow_tf32 or precision, not both")
        precision = lax.Precision.HIGH if allow_tf32 else lax.Precision.HIGHEST
    dtype = jnp.promote_types(a.dtype, b.dtype)
    out = jnp.int32 if is_integer(dtype) else jnp.promote_types(dtype, jnp.float32)
    dims = (((0 if trans_a else 1,), (1 if trans_b else 0,)), ((), ()))
    return lax.dot_general(a, b, dims, precision=precision, preferred_element_type=out)


def approx_tanh(x: Array) -> Any:
    """Return the hyperbolic tangent; the interpreter does not approximate it.

    Args:
        x: an array of floats.

    Returns:
        An array like `x`.

    Raises:
        TypeError: if `x` is not an array of floats.

    Example:
        >>> pallas.triton.approx_tanh(jnp.zeros(2))
        Array([0., 0.], dtype=float32)
    """
    return jnp.tanh(x)


def repeat(x: Array, repeats: int, axis: int) -> Any:
    """Repeat an array along a dim, as a whole: `[a, b]` becomes `[a, b, a, b]`.

    Args:
        x: an array.
        repeats: how often.
        axis: the dim.

    Returns:
        The array, `repeats` times as large along the dim.

    Raises:
        ValueError: if the array has no such dim.

    Example:
        >>> pallas.tpu.repeat(jnp.arange(2), 2, 0)
        Array([0, 1, 0, 1], dtype=int32)
    """
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"repeat: axis {axis} does not exist in an array of rank {x.ndim}")
    return jnp.tile(x, [repeats if dim == axis % x.ndim else 1 for dim in range(x.ndim)])


def roll(x: Array, shift: ArrayLike, axis: int, *, stride: int | None = None, stride_axis: int | None = None) -> Any:
    """Roll the elements of an array along a dim.

    Args:
        x: an array.
        shift: the number of places, not negative; it may be traced.
        axis: the dim.
        stride: how many places further each slice along `stride_axis` is rolled than the slice before.
        stride_axis: the dim of these slices.

    Returns:
        An array like `x`.

    Raises:
        ValueError: if `shift` or `stride` is negative, if a dim does not exist, if both are the same, or if only one of
            `stride` and `stride_axis` is given.

    Example:
        >>> pallas.tpu.roll(jnp.arange(4), 1, 0)
        Array([3, 0, 1, 2], dtype=int32)
    """
    if isinstance(shift, int) and shift < 0:
        raise ValueError(f"roll: shift must not be negative, as {shift} is: use {x.shape[axis]} - {-shift}")
    for name, dim in (("axis", axis), ("stride_axis", stride_axis)):
        if dim is not None and not 0 <= dim < x.ndim:
            raise ValueError(f"roll: {name} must be a dim from 0 to {x.ndim - 1}, not {dim}")
    if (stride is None) != (stride_axis is None):
        raise ValueError("roll: pass both stride and stride_axis, or neither")
    if stride is None or stride_axis is None:
        return jnp.roll(x, shift, axis)
    if stride < 0 or axis == stride_axis:
        raise ValueError(f"roll: stride={stride} must not be negative, and stride_axis={stride_axis} not be `axis`")
    slices = jnp.split(x, x.shape[stride_axis], stride_axis)
    return jnp.concatenate([jnp.roll(part, shift + i * stride, axis) for i, part in enumerate(slices)], stride_axis)


def bitcast(x: Array, ty: DTypeLike) -> Any:
    """Return the bits of an array as another dtype.

    Elements of another size are packed or unpacked along the second-last dim: two rows of bfloat16 become one of int32.

    Args:
        x: an array of rank 2 or more.
        ty: the dtype.

    Returns:
        The array, with as many bytes.

    Raises:
        ValueError: if `x` has a rank below 2, or its rows cannot be packed.

    Example:
        >>> pallas.tpu.bitcast(jnp.ones((2, 3), jnp.bfloat16), jnp.int32).shape
        (1, 3)
    """
    x = as_operand(x, "bitcast")
    if x.ndim < 2:
        raise ValueError(f"bitcast: expected an array of rank 2 or more, not one of shape {x.shape}: reshape it first")
    return bitcast_packed(x, canonical_dtype(ty))


def pack_elementwise(xs: Sequence[Any], *, packed_dtype: DTypeLike) -> Any:
    """Pack the elements of several arrays into those of one, the first array into the low bits.

    Args:
        xs: arrays of the same shape and dtype, as many as elements of `packed_dtype` fit one of theirs.
        packed_dtype: bfloat16 for arrays of float32, or a narrower integer dtype for integers, which are truncated.

    Returns:
        An array of unsigned integers.

    Raises:
        ValueError: if the arrays, their number or the dtypes do not fit.

    Example:
        >>> pallas.tpu.pack_elementwise([jnp.array([1]), jnp.array([2])], packed_dtype=jnp.int16)
        Array([131073], dtype=uint32)
    """
    arrays = [jnp.asarray(x) for x in xs]
    packed = canonical_dtype(packed_dtype)
    if not arrays or any(x.shape != arrays[0].shape or x.dtype != arrays[0].dtype for x in arrays):
        raise ValueError("pack_elementwise: pass arrays of the same shape and dtype")
    wide = arrays[0].dtype
    factor = _packing_factor("pack_elementwise", wide, packed)
    if len(arrays) != factor:
        raise ValueError(f"pack_elementwise: {factor} elements of {packed} fit one of {wide}: pass {factor} arrays")
    bits, narrow = 8 * packed.itemsize, jnp.dtype(f"uint{8 * packed.itemsize}")
    target = jnp.dtype(f"uint{8 * wide.itemsize}")
    total = jnp.zeros(arrays[0].shape, target)
    for number, x in enumerate(arrays):
        part = lax.bitcast_convert_type(x.astype(packed), narrow).astype(target)
        total = total | (part << jnp.asarray(number * bits, target))
    return total


def unpack_elementwise(x: Array, *, index: int, packed_dtype: DTypeLike, unpacked_dtype: DTypeLike) -> Any:
    """Return one of the arrays that `pack_elementwise` packed.

    Args:
        x: the packed array.
        index: the index of the array.
        packed_dtype: the dtype that it was packed as.
        unpacked_dtype: the dtype of the result, as wide as that of `x`.

    Returns:
        The array.

    Raises:
        ValueError: if the dtypes do not fit, or there is no such array.

    Example:
        >>> packed = pallas.tpu.pack_elementwise([jnp.array([1]), jnp.array([2])], packed_dtype=jnp.int16)
        >>> pallas.tpu.unpack_elementwise(packed, index=1, packed_dtype=jnp.int16, unpacked_dtype=jnp.int32)
        Array([2], dtype=int32)
    """
    x = jnp.asarray(x)
    packed, wide = canonical_dtype(packed_dtype), canonical_dtype(unpacked_dtype)
    factor = _packing_factor("unpack_elementwise", wide, packed)
    if x.dtype.itemsize != wide.itemsize or not 0 <= index < factor:
        raise ValueError(
            f"unpack_elementwise: {x.dtype} has {factor} elements of {packed}: use an index from 0 to {factor - 1}, "
            f"and an unpacked dtype of {8 * x.dtype.itemsize} bits"
        )
    unsigned = lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * wide.itemsize}"))
    bits = 8 * packed.itemsize
    part = (unsigned >> jnp.asarray(index * bits, unsigned.dtype)).astype(jnp.dtype(f"uint{bits}"))
    return lax.bitcast_convert_type(part, packed).astype(wide)


def _packing_factor(name: str, wide: Any, packed: Any) -> int:
    """Return how many elements of `packed` fit one of `wide`."""
    are_floats = wide == jnp.float32 and packed == jnp.bfloat16
    if not are_floats and not (is_integer(wide) and is_integer(packed) and packed.itemsize < wide.itemsize):
        raise ValueError(f"{name}: {wide} and {packed}: use float32 and bfloat16, or integers and narrower integers")
    return int(wide.itemsize // packed.itemsize)
