"""The bytes of arrays as elements of another dtype: what `x.view` and `x.byteswap` are composed of."""

from typing import Any

import numpy as np

from shardwise.compiler.arrays.operands import as_operand, astype_weak, compiled_function
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.dtypes import DType
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import BitcastConvert, has_bytes
from shardwise.compiler.ops.elementwise.complex_parts import Complex, Imag, Real
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare, complex_part_type
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, Reverse, slice_along

_BYTE = np.dtype(np.uint8)


def _plain(dtype: DType) -> DType:
    """What the bytes of one part of an element are cast as."""
    if dtype == np.bool_:
        return _BYTE
    return complex_part_type(ArrayType((), dtype)).dtype if dtype.kind == "c" else dtype


@compiled_function
def view_as(x: Any, *, dtype: Any) -> Any:
    """The bytes of the last dim as elements of `dtype`."""
    x, wanted = as_operand(x, "view"), canonical_dtype(dtype)
    for kind in (x.type.dtype, wanted):
        if not has_bytes(_plain(kind)):
            raise TypeError(f"view: {x.type} as {wanted}: elements of less than a byte have no bytes of their own")
    lead, size = x.type.shape[:-1], x.type.shape[-1] if x.type.ndim else 1
    before, after = x.type.dtype.itemsize, wanted.itemsize
    if not x.type.ndim and before != after:
        raise ValueError(f"view: one element of {x.type} cannot become several, or a part of one, as {wanted}")
    if size * before % after:
        raise ValueError(f"view: the {size * before} bytes of the last dim of {x.type} are no whole number of {wanted}")
    cast = _cast(_in_parts(x, lead, size), lead, _plain(wanted))
    shape = (*lead, size * before // after) if x.type.ndim else ()
    if wanted.kind != "c":
        found = Reshape(shape)(cast)
        return Compare("NE")(found, full_like(found, 0)) if wanted == np.bool_ else found
    pairs = Reshape((*shape, 2))(cast)
    return Complex()(*(Reshape(shape)(slice_along(pairs, len(shape), at, at + 1)) for at in (0, 1)))


def _in_parts(x: Any, lead: tuple[int, ...], size: int) -> Any:
    """A row of parts, each of which is one number, for each row of elements."""
    if x.type.dtype == np.bool_:
        x = Convert(_BYTE)(x)
    if x.type.dtype.kind != "c":
        return Reshape((*lead, size))(astype_weak(x, x.type.dtype, False))
    parts = [Reshape((*lead, size, 1))(part()(astype_weak(x, x.type.dtype, False))) for part in (Real, Imag)]
    return Reshape((*lead, 2 * size))(Concatenate(len(lead) + 1)(*parts))


def _cast(x: Any, lead: tuple[int, ...], dtype: DType) -> Any:
    """The same bytes: as much longer a row as elements are narrower."""
    before, after = x.type.dtype.itemsize, dtype.itemsize
    if x.type.dtype == dtype:
        return x
    size = x.type.shape[-1] * before // after
    if before < after:
        x = Reshape((*lead, size, after // before))(x)
    return Reshape((*lead, size))(BitcastConvert(dtype)(x))


@compiled_function
def byteswap_elements(x: Any) -> Any:
    """The bytes of each element, or of each of its parts, in opposite order."""
    x = as_operand(x, "byteswap")
    if _plain(x.type.dtype).itemsize == 1:
        return x
    if x.type.dtype.kind == "c":
        return Complex()(*(byteswap_elements(part()(x)) for part in (Real, Imag)))
    swapped = Reverse((x.type.ndim,))(BitcastConvert(_BYTE)(x))
    return BitcastConvert(x.type.dtype)(swapped)
