"""Dtypes: short names, predicates, ranges, and the dtypes that numpy computes in."""

from typing import Any, Protocol, TypeAlias, TypeGuard, final

import ml_dtypes
import numpy as np

DType = np.dtype[Any]


class SupportsDType(Protocol):
    """An object with a `dtype`, such as an array."""

    @property
    def dtype(self) -> np.dtype[Any]: ...


DTypeLike: TypeAlias = str | type[Any] | DType | SupportsDType  # the objects that `np.dtype` converts


SMALL_FLOATS: dict[str, DType] = {  # floats that numpy does not have
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8_e3m4": np.dtype(ml_dtypes.float8_e3m4),
    "f8_e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "f8_e4m3b11fnuz": np.dtype(ml_dtypes.float8_e4m3b11fnuz),
    "f8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8_e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "f8_e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "f8_e8m0fnu": np.dtype(ml_dtypes.float8_e8m0fnu),
    "f4_e2m1fn": np.dtype(ml_dtypes.float4_e2m1fn),
}


SMALL_INTEGERS: dict[str, DType] = {  # integers of less than a byte
    "i2": np.dtype(ml_dtypes.int2),
    "i4": np.dtype(ml_dtypes.int4),
    "u2": np.dtype(ml_dtypes.uint2),
    "u4": np.dtype(ml_dtypes.uint4),
}


SHORT_NAMES: dict[str, DType] = {
    "bool": np.dtype(np.bool_),
    **{f"{kind[0]}{bits}": np.dtype(f"{kind}{bits}") for kind in ("int", "float") for bits in (16, 32, 64)},
    **{f"u{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    "i8": np.dtype(np.int8),
    **SMALL_INTEGERS,
    **SMALL_FLOATS,
    "c64": np.dtype(np.complex64),
    "c128": np.dtype(np.complex128),
}


class extended(np.generic):
    """Scalar type of extended dtypes, which numpy does not have; as in `jax.dtypes`."""


class prng_key(extended):
    """Scalar type of the dtypes of PRNG keys."""


@final
class KeyDType:
    """The dtype of the PRNG keys of one implementation, used in place of a numpy dtype.

    An element consists of u32 words: an implicit trailing dim that is not in the array's shape. `lower_keys` makes it
    explicit before layouts are chosen. Each implementation has one instance, in `KEY_DTYPES`.

    Attributes:
        impl: the name of the implementation.
        name: the name of the dtype in printed types.
        words: the number of words of a key.
    """

    kind = "key"
    type = prng_key

    def __init__(self, impl: str, tag: str, words: int):
        self.impl = impl
        self.name = f"key<{tag}>"
        self.words = words
        self.itemsize = 4 * words

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return _key_dtype, (self.impl,)


KEY_DTYPES: dict[str, Any] = {
    dtype.impl: dtype
    for dtype in (KeyDType("threefry2x32", "fry", 2), KeyDType("rbg", "rbg", 4), KeyDType("unsafe_rbg", "urbg", 4))
}


def _key_dtype(impl: str) -> Any:
    return KEY_DTYPES[impl]


DTYPE_NAMES: dict[Any, str] = {
    **{dtype: name for name, dtype in SHORT_NAMES.items()},
    **{dtype: dtype.name for dtype in KEY_DTYPES.values()},
}


def is_key(dtype: object) -> TypeGuard[KeyDType]:
    """Return whether `dtype` is a dtype of PRNG keys."""
    return isinstance(dtype, KeyDType)


def key_impl(dtype: DType | KeyDType) -> str:
    """Return the name of the implementation of PRNG keys of this dtype."""
    assert is_key(dtype)
    return dtype.impl


def key_words(dtype: DType | KeyDType) -> int:
    """Return the number of u32 words of a PRNG key of this dtype."""
    assert is_key(dtype)
    return dtype.words


def short_name(dtype: DType) -> str:
    """Return the name of a dtype in printed types: `f32` for float32.

    Raises:
        TypeError: if arrays of this dtype are not supported.
    """
    name = DTYPE_NAMES.get(dtype)
    if name is None:
        raise TypeError(f"arrays of {dtype} are not supported; element types: {', '.join(SHORT_NAMES)}")
    return name


def is_float(dtype: DType) -> bool:
    """Return whether `dtype` is a real floating-point dtype, of numpy or ml_dtypes."""
    return dtype.kind == "f" or short_name(dtype) in SMALL_FLOATS


def is_bfloat16(dtype: DType) -> bool:
    """Return whether `dtype` is bfloat16, which XLA's CPU compiler only converts."""
    return dtype == SMALL_FLOATS["bf16"]


def is_float8(dtype: DType) -> bool:
    """Return whether `dtype` is a floating-point dtype of 8 bits."""
    return dtype.itemsize == 1 and short_name(dtype).startswith("f8")


def is_inexact(dtype: DType) -> bool:
    """Return whether `dtype` is floating or complex, so that its values can be differentiated."""
    return dtype.kind == "c" or is_float(dtype)


def is_integer(dtype: DType) -> bool:
    return dtype.kind in "iu" or short_name(dtype) in SMALL_INTEGERS


def integer_range(dtype: DType) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer dtype."""
    kind, bits = short_name(dtype)[0], int(short_name(dtype)[1:])
    return (0, 2**bits - 1) if kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def numpy_carrier(dtype: DType) -> DType:
    """Return the dtype in which numpy computes for `dtype` and that holds all its values: f32 for small floats."""
    if is_float(dtype):
        return dtype if dtype.itemsize >= np.dtype(np.float32).itemsize else np.dtype(np.float32)
    return np.dtype(np.int32) if is_integer(dtype) and dtype.kind not in "iu" else dtype


def accumulation_dtype(dtype: DType) -> DType:
    """Return the dtype in which elements are accumulated, so that results are rounded once: f32 for small floats."""
    return numpy_carrier(dtype) if is_float(dtype) else dtype


def lowest(dtype: DType) -> Any:
    """Return the lower bound of all values of `dtype`: -inf if it has infinities."""
    if dtype == np.bool_:
        return False
    if is_integer(dtype):
        return integer_range(dtype)[0]
    if dtype.kind == "c":
        return complex(-np.inf, -np.inf)
    return -np.inf if has_infinity(dtype) else ml_dtypes.finfo(dtype).min  # type: ignore[no-untyped-call]


def highest(dtype: DType) -> Any:
    """Return the upper bound of all values of `dtype`: inf if it has infinities."""
    if dtype == np.bool_:
        return True
    if is_integer(dtype):
        return integer_range(dtype)[1]
    if dtype.kind == "c":
        return complex(np.inf, np.inf)
    return np.inf if has_infinity(dtype) else ml_dtypes.finfo(dtype).max  # type: ignore[no-untyped-call]


def has_infinity(dtype: DType) -> bool:
    return not short_name(dtype).endswith(("fn", "fnu", "fnuz"))
