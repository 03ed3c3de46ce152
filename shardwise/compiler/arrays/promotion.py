"""Dtype promotion by JAX's lattice: weak types (Python scalars) are promoted to array types.

    bool → int* → u8 u16 u32 u64 ┐
             └──→ i8 i16 i32 i64 ┴→ float* → bf16 f16 → f32 → f64, complex* → c64 → c128

A starred node is the weak type of a Python int, float or complex. The result of a promotion is the least upper bound.
Integers narrower than a byte promote only with booleans and Python ints; floats of a byte or less promote with no other
float. With `numpy_dtype_promotion="strict"` only Python scalars are promoted, and only to dtypes that can hold them.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from shardwise.base.call_site import warn_user
from shardwise.base.config import cached_by_settings, config
from shardwise.compiler.dtypes import (
    KEY_DTYPES,
    SHORT_NAMES,
    SMALL_FLOATS,
    SMALL_INTEGERS,
    DType,
    DTypeLike,
    KeyDType,
    is_float,
    is_inexact,
    is_integer,
    is_key,
    short_name,
)
from shardwise.compiler.ir.types import ArrayType
from shardwise.errors import TypePromotionError

_LATTICE: dict[str, list[str]] = {
    "bool": ["int*"],
    "int*": [*SMALL_INTEGERS, "u8", "i8"],
    **{name: [] for name in SMALL_INTEGERS},
    "u8": ["i16", "u16"],
    "u16": ["i32", "u32"],
    "u32": ["i64", "u64"],
    "u64": ["float*"],
    "i8": ["i16"],
    "i16": ["i32"],
    "i32": ["i64"],
    "i64": ["float*"],
    "float*": ["complex*", "f16", *SMALL_FLOATS],
    "complex*": ["c64"],
    **{name: [] for name in SMALL_FLOATS},
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


_INTEGERS = [name for name, dtype in SHORT_NAMES.items() if is_integer(np.dtype(dtype))]
_FLOATS = [name for name, dtype in SHORT_NAMES.items() if is_float(np.dtype(dtype))]
_STRICT_LATTICE: dict[str, list[str]] = {
    **{name: [] for name in _LATTICE},
    "int*": ["float*", *_INTEGERS],
    "float*": ["complex*", *_FLOATS],
    "complex*": ["c64", "c128"],
}


def _upper_bounds(node: str, lattice: dict[str, list[str]]) -> frozenset[str]:
    return frozenset([node]).union(*(_upper_bounds(successor, lattice) for successor in lattice[node]))


_UPPER_BOUNDS = {
    "standard": {node: _upper_bounds(node, _LATTICE) for node in _LATTICE},
    "strict": {node: _upper_bounds(node, _STRICT_LATTICE) for node in _STRICT_LATTICE},
}


def canonical_dtype(dtype: DTypeLike | KeyDType) -> DType:
    """Return the dtype that arrays use for `dtype`: 32-bit dtypes replace 64-bit ones unless `enable_x64` is set."""
    if isinstance(dtype, KeyDType):
        return KEY_DTYPES[dtype.impl]
    wide = _numpy_dtype(dtype)
    return wide if config.enable_x64 else _NARROW.get(wide, wide)


def _numpy_dtype(dtype: DTypeLike) -> DType:
    try:
        return np.dtype(dtype)
    except TypeError as error:
        if not isinstance(dtype, str):
            raise
        known = [str(np.dtype(known)) for known in SHORT_NAMES.values()]
        close = get_close_matches(dtype, known, 1, cutoff=0.5)
        hint = f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(sorted(known))}."
        raise TypeError(f"there is no dtype {dtype!r}.{hint}") from error


def requested_dtype(name: str, dtype: DTypeLike | None) -> Any:
    """Return the canonical dtype of a dtype that the user requests; warn if it is narrower. None stays None.

    Python's types (`float`) request the default width of their kind, without a warning. `name` is the calling function.

    Raises:
        ValueError: if the dtype is narrower and the setting `explicit_x64_dtypes` is "error".
    """
    if dtype is None:
        return None
    canonical = canonical_dtype(dtype)
    is_python_type = any(dtype is python_type for python_type in (int, float, complex))  # numpy dtypes equal these
    if is_python_type or is_key(canonical) or canonical == np.dtype(dtype):
        return canonical
    # Programs filter JAX's warning by its first words, so these are the same here.
    text = (
        f"Explicitly requested dtype {np.dtype(dtype)} is not available: 64-bit dtypes are disabled, so {name} uses "
        f"{canonical} (truncated). Request {canonical}, or enable 64-bit dtypes with "
        "`config.update('jax_enable_x64', True)` or SHARDWISE_ENABLE_X64=1 in the environment."
    )
    if config.explicit_x64_dtypes == "error":
        raise ValueError(text)
    warn_user(text)
    return canonical


def default_dtype(weak: str) -> DType:
    """Return the dtype of a weak type (`int*`, `float*` or `complex*`) that is not promoted."""
    dtype: DType = np.dtype(_WEAK_DEFAULT[weak])
    return np.dtype(_WIDE[dtype]) if config.enable_x64 else dtype


def inexact_dtype(dtype: DType) -> DType:
    """Return the dtype of floats or complex numbers that functions of these convert `dtype` to."""
    if is_inexact(dtype):
        return dtype
    converted: DType = np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)
    return converted


def scalar_type(value: bool | int | float | complex) -> ArrayType:
    """Return the type of a Python scalar."""
    if isinstance(value, bool):
        return ArrayType((), np.bool_)
    weak = "int*" if isinstance(value, int) else "float*" if isinstance(value, float) else "complex*"
    return ArrayType((), default_dtype(weak), True)


def promote_dtypes(name: str, types: Sequence[ArrayType]) -> tuple[DType, bool]:
    """Return the promoted dtype and whether it is weak. `name` is the calling function, for error messages."""
    key = tuple((type.dtype, type.weak) for type in types)
    if len(set(key)) > 1 and any(is_key(type.dtype) for type in types):
        raise TypePromotionError(
            f"{name}: {' and '.join(map(str, types))} cannot be combined: PRNG keys are not numbers. Sample with the "
            "functions of `random`, or get the raw data with `random.key_data`."
        )
    promoted = _promote(key)
    if promoted is None:
        raise no_common_dtype(name, types)
    return promoted


def no_common_dtype(name: str, types: Sequence[Any]) -> TypePromotionError:
    """Return the error for types that have no common dtype."""
    strict = " (numpy_dtype_promotion is strict)" if config.numpy_dtype_promotion == "strict" else ""
    return TypePromotionError(
        f"{name}: {' and '.join(map(str, types))} have no common dtype by promotion{strict}; convert one with `.astype`"
    )


@cached_by_settings(maxsize=4096)
def _promote(types: tuple[tuple[DType, bool], ...]) -> tuple[DType, bool] | None:
    if len(set(types)) == 1:
        return types[0]
    least = least_common_dtype([node_of(dtype, weak) for dtype, weak in types])
    if least is None:
        return None
    if least in _WEAK_DEFAULT:
        return default_dtype(least), True
    return canonical_dtype(SHORT_NAMES[least]), False


def least_common_dtype(nodes: Sequence[str]) -> str | None:
    """Return the least upper bound of nodes of the lattice; None if there is none."""
    bounds = _UPPER_BOUNDS[config.numpy_dtype_promotion]
    common = frozenset.intersection(*(bounds[node] for node in nodes))
    return next((node for node in common if bounds[node] == common), None)


def node_of(dtype: DType, weak: bool) -> str:
    """Return the node of the lattice for a dtype."""
    if not weak:
        return short_name(dtype)
    return "int*" if is_integer(dtype) else "float*" if is_float(dtype) else "complex*" if dtype.kind == "c" else "bool"
