"""Reinterpretation of the bytes of arrays: `x.view` and `x.byteswap`, composed of ops."""

from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.compiler.arrays.operands import as_operand, astype_weak, compiled_function
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.dtypes import DType, DTypeLike
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import BitcastConvert, element_bits
from shardwise.compiler.ops.elementwise.complex_parts import Complex, Imag, Real
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare, complex_part_type
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, Reverse, slice_along

if TYPE_CHECKING:
    from shardwise.compiler.arrays.argument_types import ArrayLike
    from shardwise.compiler.arrays.methods import Array

_BYTE = np.dtype(np.uint8)


def _cast_dtype(dtype: DType) -> DType:
    """Return the dtype that bytes are cast to: the dtype of a complex number's parts, or a byte for a boolean."""
    if dtype == np.bool_:
        return _BYTE
    return complex_part_type(ArrayType((), dtype)).dtype if dtype.kind == "c" else dtype


@compiled_function
def view_as(x: "ArrayLike", *, dtype: DTypeLike) -> Any:
    """Reinterpret the bits of the last dim as `dtype`. Elements narrower than a byte are packed, low bits first."""
    x, new_dtype = as_operand(x, "view"), canonical_dtype(dtype)
    lead, size = x.type.shape[:-1], x.type.shape[-1] if x.type.ndim else 1
    before, after = element_bits(x.type.dtype), element_bits(new_dtype)
    if not x.type.ndim and before != after:
        raise ValueError(f"view: a scalar {x.type} cannot be viewed as {new_dtype}, which has a different size")
    if size * before % after:
        raise ValueError(
            f"view: the {size * before} bits of the last dim of {x.type} are not a multiple of the size of {new_dtype}"
        )
    cast = _cast(_split_complex(x, lead, size), lead, _cast_dtype(new_dtype))
    shape = (*lead, size * before // after) if x.type.ndim else ()
    if new_dtype.kind != "c":
        result = Reshape(shape)(cast)
        return Compare("NE")(result, full_like(result, 0)) if new_dtype == np.bool_ else result
    pairs = Reshape((*shape, 2))(cast)
    return Complex()(*(Reshape(shape)(slice_along(pairs, len(shape), at, at + 1)) for at in (0, 1)))


def _split_complex(x: "Array", lead: tuple[int, ...], size: int) -> Any:
    """Return real numbers: complex elements become two along the last dim, booleans become bytes."""
    if x.type.dtype == np.bool_:
        x = Convert(_BYTE)(x)
    if x.type.dtype.kind != "c":
        return Reshape((*lead, size))(astype_weak(x, x.type.dtype, False))
    parts = [Reshape((*lead, size, 1))(part()(astype_weak(x, x.type.dtype, False))) for part in (Real, Imag)]
    return Reshape((*lead, 2 * size))(Concatenate(len(lead) + 1)(*parts))


def _cast(x: "Array", lead: tuple[int, ...], dtype: DType) -> Any:
    """Cast the bits of the last dim to `dtype`; the size of the dim changes with the size of the dtype."""
    before, after = element_bits(x.type.dtype), element_bits(dtype)
    if x.type.dtype == dtype:
        return x
    size = x.type.shape[-1] * before // after
    if before < after:
        x = Reshape((*lead, size, after // before))(x)
    return Reshape((*lead, size))(BitcastConvert(dtype)(x))


@compiled_function
def byteswap_elements(x: "ArrayLike") -> Any:
    """Reverse the bytes of each element, or of each part of a complex element."""
    x = as_operand(x, "byteswap")
    if _cast_dtype(x.type.dtype).itemsize == 1:
        return x
    if x.type.dtype.kind == "c":
        return Complex()(*(byteswap_elements(part()(x)) for part in (Real, Imag)))
    swapped = Reverse((x.type.ndim,))(BitcastConvert(_BYTE)(x))
    return BitcastConvert(x.type.dtype)(swapped)
