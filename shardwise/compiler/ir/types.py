"""ArrayType: the shape and element type of a value. Interned, so that equal types are one object."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import ml_dtypes
import numpy as np

DType = np.dtype[Any]

SMALL_FLOATS: dict[str, DType] = {  # those that numpy does not know
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
SMALL_INTEGERS: dict[str, DType] = {  # of less than a byte
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
    """The kind of dtypes that numpy does not have."""


class prng_key(extended):
    """The kind of dtypes of keys of random numbers."""


@final
class KeyType:
    """The dtype of keys of random numbers, which stands where numpy's dtypes do. An element is two words: a last dim of
    u32 that the array does not show, and that `transforms/keys` brings out before layouts are chosen.
    """

    name, kind, itemsize = "key<fry>", "key", 8
    type = prng_key
    impl = "threefry2x32"

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        return "KEY"  # there is one


KEY: Any = KeyType()
_SHORT_OF: dict[Any, str] = {**{dtype: name for name, dtype in SHORT_NAMES.items()}, KEY: KEY.name}


def is_key(dtype: DType) -> bool:
    """Whether elements are keys of random numbers."""
    return dtype is KEY


def short_name(dtype: DType) -> str:
    """`f32` for float32, as types print."""
    found = _SHORT_OF.get(dtype)
    if found is None:
        raise TypeError(f"arrays of {dtype} are not supported; element types: {', '.join(SHORT_NAMES)}")
    return found


@final
class ArrayType:
    """`f32[30,16]`. `weak` marks a type that came from a Python scalar and gives way to others (printed `f32[]~`).

    `varying`: the axes of a manual region, by name and in order, along which each device has a value of its own
    (printed `f32[30,16]{data}`).
    """

    __slots__ = ("dtype", "nbytes", "ndim", "shape", "size", "varying", "weak")
    shape: tuple[int, ...]
    dtype: DType
    weak: bool
    varying: tuple[str, ...]
    ndim: int
    size: int
    nbytes: int
    _interned: ClassVar[dict[tuple[Any, ...], "ArrayType"]] = {}

    def __new__(
        cls, shape: tuple[int, ...], dtype: Any, weak: bool = False, varying: tuple[str, ...] = ()
    ) -> "ArrayType":
        found = cls._interned.get((shape, dtype, weak, varying))
        if found is not None:
            return found
        key = (tuple(map(int, shape)), dtype if dtype is KEY else np.dtype(dtype), weak, varying)
        if key[1] not in _SHORT_OF:
            raise TypeError(f"arrays of {key[1]} are not supported; element types: {', '.join(SHORT_NAMES)}")
        if any(size < 0 for size in key[0]):
            raise TypeError(f"a size cannot be negative: shape {key[0]}")
        self = object.__new__(cls)
        size = math.prod(key[0])
        derived = {"ndim": len(key[0]), "size": size, "nbytes": size * key[1].itemsize}
        for name, part in {"shape": key[0], "dtype": key[1], "weak": weak, "varying": varying, **derived}.items():
            object.__setattr__(self, name, part)
        return cls._interned.setdefault(key, self)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"ArrayType is immutable: cannot set {name}")

    def with_shape(self, shape: tuple[int, ...]) -> "ArrayType":
        return ArrayType(shape, self.dtype, self.weak, self.varying)

    def with_dtype(self, dtype: Any) -> "ArrayType":
        return ArrayType(self.shape, dtype, False, self.varying)

    def over(self, axes: Iterable[str]) -> "ArrayType":
        """The same, varying over these axes."""
        return ArrayType(self.shape, self.dtype, self.weak, tuple(sorted(set(axes))))

    def without(self, dims: tuple[int, ...]) -> "ArrayType":
        return self.with_shape(tuple(size for dim, size in enumerate(self.shape) if dim not in dims))

    @property
    def vma(self) -> frozenset[str]:
        """JAX's name for the axes over which it varies."""
        return frozenset(self.varying)

    @property
    def physical(self) -> "ArrayType":
        """The type of what devices hold: of keys, their words."""
        return ArrayType((*self.shape, 2), np.uint32, False, self.varying) if self.dtype is KEY else self

    def strong(self) -> "ArrayType":
        return ArrayType(self.shape, self.dtype, False, self.varying) if self.weak else self

    def __str__(self) -> str:
        axes = f"{{{','.join(self.varying)}}}" if self.varying else ""
        return f"{short_name(self.dtype)}[{','.join(map(str, self.shape))}]{'~' if self.weak else ''}{axes}"

    __repr__ = __str__

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayType, (self.shape, self.dtype, self.weak, self.varying)


class Typed:
    """Has a `type`, and shows its parts as arrays do."""

    __slots__ = ()
    type: ArrayType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> Any:
        return self.type.dtype

    @property
    def weak_type(self) -> bool:
        return self.type.weak

    @property
    def ndim(self) -> int:
        return self.type.ndim

    @property
    def size(self) -> int:
        return self.type.size

    @property
    def nbytes(self) -> int:
        return self.type.nbytes


def parse_type(text: str) -> ArrayType:
    """The type that prints as `text`."""
    match = re.fullmatch(r"([\w<>]+)\[([\d,]*)\](~?)(?:\{([^{}]+)\})?", text)
    dtype = None if match is None else KEY if match[1] == KEY.name else SHORT_NAMES.get(match[1])
    if match is None or dtype is None:
        raise ValueError(f"not a type: {text!r}")
    varying = tuple(match[4].split(",")) if match[4] else ()
    return ArrayType(tuple(int(size) for size in match[2].split(",") if size), dtype, bool(match[3]), varying)


def is_float(dtype: DType) -> bool:
    """Whether elements are real numbers with a fraction (ml_dtypes' kinds included)."""
    return dtype.kind == "f" or short_name(dtype) in SMALL_FLOATS


def is_inexact(dtype: DType) -> bool:
    """Whether derivatives flow through values of this type."""
    return dtype.kind == "c" or is_float(dtype)


def is_integer(dtype: DType) -> bool:
    return dtype.kind in "iu" or short_name(dtype) in SMALL_INTEGERS


def integer_range(dtype: DType) -> tuple[int, int]:
    """The smallest and the largest integer of this type."""
    kind, bits = short_name(dtype)[0], int(short_name(dtype)[1:])
    return (0, 2**bits - 1) if kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def carrier(dtype: DType) -> DType:
    """A type that numpy itself computes in, and that holds every value of `dtype`: f32 for small floats."""
    if is_float(dtype):
        return dtype if dtype.itemsize >= np.dtype(np.float32).itemsize else np.dtype(np.float32)
    return np.dtype(np.int32) if is_integer(dtype) and dtype.kind not in "iu" else dtype


def reduced_in(dtype: DType) -> DType:
    """What many elements are reduced in, so that the result is rounded once: of small floats, f32."""
    return carrier(dtype) if is_float(dtype) else dtype


def lowest(dtype: DType) -> Any:
    """What every element is at least."""
    if dtype == np.bool_:
        return False
    if is_integer(dtype):
        return integer_range(dtype)[0]
    if dtype.kind == "c":
        return complex(-np.inf, -np.inf)
    return -np.inf if has_infinity(dtype) else ml_dtypes.finfo(dtype).min  # type: ignore[no-untyped-call]


def highest(dtype: DType) -> Any:
    """What every element is at most."""
    if dtype == np.bool_:
        return True
    if is_integer(dtype):
        return integer_range(dtype)[1]
    if dtype.kind == "c":
        return complex(np.inf, np.inf)
    return np.inf if has_infinity(dtype) else ml_dtypes.finfo(dtype).max  # type: ignore[no-untyped-call]


def has_infinity(dtype: DType) -> bool:
    return not short_name(dtype).endswith(("fn", "fnu", "fnuz"))


@final
@dataclass(frozen=True)
class Scalar:
    """A constant by its bytes: 0.0 and -0.0 differ, NaN equals itself."""

    dtype: DType
    data: bytes

    @staticmethod
    def of(value: Any, dtype: Any) -> "Scalar":
        """`value` as `dtype`. A Python integer may wrap around (-1 is u8's 255), unless it needs more than 32 bits."""
        if type(value) is int and is_integer(np.dtype(dtype)):
            ranges = (integer_range(np.dtype(dtype)), integer_range(np.dtype(np.int32)))
            if not any(low <= value <= high for low, high in ranges):
                raise OverflowError(f"the integer {value} does not fit {short_name(np.dtype(dtype))}")
        array = np.asarray(value).astype(dtype)
        return Scalar(array.dtype, array.tobytes())

    @property
    def array(self) -> Any:
        return np.frombuffer(self.data, self.dtype)[0]

    def __str__(self) -> str:
        """`f32(0.5)`, `c64(0.5, -0.0)`; a NaN that is not the usual one by its bits."""
        item = self.array.item()
        parts = (item.real, item.imag) if self.dtype.kind == "c" else (item,)
        text = ", ".join(map(repr, parts))
        if any(part != part for part in parts):
            usual = [float(repr(part)) for part in parts]
            if Scalar.of(complex(*usual) if self.dtype.kind == "c" else usual[0], self.dtype) != self:
                text = f"0x{self.data[::-1].hex()}"
        return f"{short_name(self.dtype)}({text})"
