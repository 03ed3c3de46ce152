"""ArrayType: the shape and element type of a value. Interned, so that equal types are one object."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from shardwise.compiler.dtypes import DTYPE_NAMES, KEY, SHORT_NAMES, DType, integer_range, is_integer, short_name


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
        if key[1] not in DTYPE_NAMES:
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

    def with_varying(self, axes: Iterable[str]) -> "ArrayType":
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
