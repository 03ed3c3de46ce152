"""Which dtype two arrays meet in. The lattice is JAX's: weak types (Python scalars) give way to array types.

    bool → int* → u8 u16 u32 u64 ┐
             └──→ i8 i16 i32 i64 ┴→ float* → bf16 f16 → f32 → f64, complex* → c64 → c128

A starred node is the weak type of a Python int, float or complex. The meeting point is the least node above both.
Of the narrowest types, 4-bit integers meet only booleans and Python ints, 8-bit floats no other float.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from shardwise.compiler.ir.types import SHORT_NAMES, ArrayType, DType, is_float, is_integer, short_name
from shardwise.config import config

_ABOVE = {
    "bool": ["int*"],
    "int*": ["u4", "i4", "u8", "i8"],
    "u4": [],
    "i4": [],
    "u8": ["i16", "u16"],
    "u16": ["i32", "u32"],
    "u32": ["i64", "u64"],
    "u64": ["float*"],
    "i8": ["i16"],
    "i16": ["i32"],
    "i32": ["i64"],
    "i64": ["float*"],
    "float*": ["complex*", "bf16", "f16", "f8_e4m3fn", "f8_e5m2"],
    "complex*": ["c64"],
    "f8_e4m3fn": [],
    "f8_e5m2": [],
    "bf16": ["f32"],
    "f16": ["f32"],
    "f32": ["f64", "c64"],
    "f64": ["c128"],
    "c64": ["c128"],
    "c128": [],
}
_WEAK_DEFAULT: dict[str, Any] = {"int*": np.int32, "float*": np.float32, "complex*": np.complex64}
_WIDE: dict[DType, Any] = {
    np.dtype(np.int32): np.int64,
    np.dtype(np.float32): np.float64,
    np.dtype(np.complex64): np.complex128,
}
_NARROW = {
    np.dtype(np.int64): np.dtype(np.int32),
    np.dtype(np.uint64): np.dtype(np.uint32),
    np.dtype(np.float64): np.dtype(np.float32),
    np.dtype(np.complex128): np.dtype(np.complex64),
}


def _upper(node: str) -> frozenset[str]:
    return frozenset([node]).union(*(_upper(above) for above in _ABOVE[node]))


_UPPER = {node: _upper(node) for node in _ABOVE}


def canonical_dtype(dtype: Any) -> DType:
    """`dtype` as arrays hold it: 64-bit types become 32-bit ones unless `enable_x64` is set."""
    found: DType = np.dtype(dtype)
    return found if config.enable_x64 else _NARROW.get(found, found)


def default_dtype(weak: str) -> DType:
    """The dtype of a Python `int*`, `float*` or `complex*` that meets no array."""
    dtype: DType = np.dtype(_WEAK_DEFAULT[weak])
    return np.dtype(_WIDE[dtype]) if config.enable_x64 else dtype


def scalar_type(value: bool | int | float | complex) -> ArrayType:
    """The type of a Python scalar."""
    if isinstance(value, bool):
        return ArrayType((), np.bool_)
    weak = "int*" if isinstance(value, int) else "float*" if isinstance(value, float) else "complex*"
    return ArrayType((), default_dtype(weak), True)


def meet(name: str, types: Sequence[ArrayType]) -> tuple[DType, bool]:
    """The dtype in which operands of these types meet, and whether it is weak. `name` is the function, for errors."""
    key = tuple((type.dtype, type.weak) for type in types)
    found = _meet(key, config.enable_x64)
    if found is None:
        raise TypeError(
            f"{name}: {' and '.join(map(str, types))} have no common dtype by promotion; convert one with `.astype`"
        )
    return found


@lru_cache(maxsize=4096)
def _meet(types: tuple[tuple[DType, bool], ...], wide: bool) -> tuple[DType, bool] | None:
    if len(set(types)) == 1:
        return types[0]
    nodes = [_node(dtype, weak) for dtype, weak in types]
    common = frozenset.intersection(*(_UPPER[node] for node in nodes))
    least = [node for node in common if _UPPER[node] == common]
    if not least:
        return None
    if least[0] in _WEAK_DEFAULT:
        return default_dtype(least[0]), True
    return canonical_dtype(SHORT_NAMES[least[0]]), False


def _node(dtype: DType, weak: bool) -> str:
    if not weak:
        return short_name(dtype)
    return "int*" if is_integer(dtype) else "float*" if is_float(dtype) else "complex*" if dtype.kind == "c" else "bool"
