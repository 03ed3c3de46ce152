"""Element types: the objects that name them and make arrays of them, and what can be asked of them.

`jnp.float32` is a dtype wherever one is wanted, and a function that makes arrays: `jnp.float32(3)`.
"""

from typing import Any, final

import ml_dtypes
import numpy as np

from shardwise.compiler.ir.types import SHORT_NAMES, SMALL_FLOATS, ArrayType, DType, KeyType, Typed, is_inexact
from shardwise.compiler.ops import methods, numeric
from shardwise.compiler.ops.operands import PYTHON_SCALARS, as_operand, composed, type_of
from shardwise.compiler.ops.promote import canonical_dtype, least_above, meet, no_common_dtype, node_of, scalar_type
from shardwise.numpy.creation import array

_OF_PYTHON = {bool: "bool", int: "int*", float: "float*", complex: "complex*"}
_WIDEST = {"int*": np.int64, "float*": np.float64, "complex*": np.complex128}
_PARENTS: dict[type, type] = {  # of the types that numpy does not know
    **{dtype.type: np.floating for dtype in SMALL_FLOATS.values()},
    **dict.fromkeys((ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn), np.floating),
    **dict.fromkeys((ml_dtypes.int1, ml_dtypes.int2, ml_dtypes.int4), np.signedinteger),
    **dict.fromkeys((ml_dtypes.uint1, ml_dtypes.uint2, ml_dtypes.uint4), np.unsignedinteger),
}
_KINDS: dict[str, type] = {
    "bool": np.bool_,
    "signed integer": np.signedinteger,
    "unsigned integer": np.unsignedinteger,
    "integral": np.integer,
    "real floating": np.floating,
    "complex floating": np.complexfloating,
    "numeric": np.number,
}


@final
class ScalarType(type):
    """The type of `jnp.float32` and its kin."""

    dtype: DType

    def __call__(cls, x: Any) -> Any:
        """`x` as an array of this type."""
        return array(x, cls.dtype)

    def __eq__(cls, other: object) -> bool:
        return cls is other or cls.dtype.type is other or (isinstance(other, np.dtype) and cls.dtype == other)

    def __ne__(cls, other: object) -> bool:
        return not cls == other

    def __hash__(cls) -> int:
        return hash(cls.dtype.type)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.dtype.type)


def _named(dtype: Any, name: str = "") -> ScalarType:
    known = np.dtype(dtype)
    return ScalarType(name or known.name, (object,), {"dtype": known, "__module__": "shardwise.numpy"})


bool_ = _named(np.bool_)
int1 = _named(ml_dtypes.int1)
int2 = _named(ml_dtypes.int2)
int4 = _named(ml_dtypes.int4)
int8 = _named(np.int8)
int16 = _named(np.int16)
int32 = _named(np.int32)
int64 = _named(np.int64)
uint1 = _named(ml_dtypes.uint1)
uint2 = _named(ml_dtypes.uint2)
uint4 = _named(ml_dtypes.uint4)
uint8 = _named(np.uint8)
uint16 = _named(np.uint16)
uint32 = _named(np.uint32)
uint64 = _named(np.uint64)
float4_e2m1fn = _named(ml_dtypes.float4_e2m1fn)
float6_e2m3fn = _named(ml_dtypes.float6_e2m3fn)
float6_e3m2fn = _named(ml_dtypes.float6_e3m2fn)
float8_e3m4 = _named(ml_dtypes.float8_e3m4)
float8_e4m3 = _named(ml_dtypes.float8_e4m3)
float8_e4m3b11fnuz = _named(ml_dtypes.float8_e4m3b11fnuz)
float8_e4m3fn = _named(ml_dtypes.float8_e4m3fn)
float8_e4m3fnuz = _named(ml_dtypes.float8_e4m3fnuz)
float8_e5m2 = _named(ml_dtypes.float8_e5m2)
float8_e5m2fnuz = _named(ml_dtypes.float8_e5m2fnuz)
float8_e8m0fnu = _named(ml_dtypes.float8_e8m0fnu)
bfloat16 = _named(ml_dtypes.bfloat16)
float16 = _named(np.float16)
float32 = _named(np.float32)
float64 = _named(np.float64)
complex64 = _named(np.complex64)
complex128 = _named(np.complex128)
int_, uint, float_, complex_ = int64, uint64, float64, complex128
single, double, csingle, cdouble = float32, float64, complex64, complex128


def finfo(dtype: Any) -> Any:
    """What a float type can hold: `bits`, `eps`, `max`, `min` and more, as numpy's; of a complex one, its parts.

    >>> float(jnp.finfo(jnp.bfloat16).eps)
    0.0078125
    """
    return ml_dtypes.finfo(_as_dtype(dtype))  # type: ignore[no-untyped-call]


def iinfo(int_type: Any) -> Any:
    """What an integer type can hold: `bits`, `max` and `min`.

    >>> jnp.iinfo(jnp.int4).max
    7
    """
    dtype = np.dtype(int) if isinstance(int_type, int) else _as_dtype(int_type)
    if not issubdtype(dtype, np.integer):
        raise ValueError(f"iinfo: {dtype} is no integer type; use `finfo` for floats")
    return ml_dtypes.iinfo(dtype) if dtype.type in _PARENTS else np.iinfo(dtype)  # type: ignore[no-untyped-call]


def _as_dtype(of: Any) -> DType:
    held = getattr(of, "dtype", None)  # of an array; numpy's scalar types have an attribute of that name too
    return held if isinstance(held, np.dtype) else np.dtype(of)


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Whether a dtype is another, or one of the kind that an abstract type names.

    >>> jnp.issubdtype(jnp.bfloat16, jnp.floating)
    True
    """
    first, second = _generic(arg1), _generic(arg2)
    return first is second or issubclass(_PARENTS.get(first, first), second)


def _generic(of: Any) -> type:
    """The scalar type of numpy that stands for a dtype; an abstract one as it is."""
    if isinstance(of, KeyType):
        return of.type
    return of if isinstance(of, type) and issubclass(of, np.generic) else np.dtype(of).type


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is one of a kind: "bool", "signed integer", "unsigned integer", "integral", "real floating",
    "complex floating", "numeric", a dtype, or a tuple of these.

    >>> jnp.isdtype(jnp.int8, ("bool", "integral"))
    True
    """
    found = np.dtype(dtype)
    for one in kind if isinstance(kind, tuple) else (kind,):
        if isinstance(one, str) and one in _KINDS:
            if issubdtype(found, _KINDS[one]):
                return True
            continue
        try:
            wanted = np.dtype(one)
        except TypeError:
            raise ValueError(f"isdtype: {one!r} is no dtype and no kind; kinds: {', '.join(_KINDS)}") from None
        if found == wanted:
            return True
    return False


def promote_types(a: Any, b: Any) -> DType:
    """The dtype in which two meet. The Python types `int`, `float` and `complex` give way to others.

    >>> jnp.promote_types(jnp.int32, jnp.bfloat16)
    dtype(bfloat16)
    """
    nodes = [_node("promote_types", x) for x in (a, b)]
    least = least_above(nodes)
    if least is None:
        raise no_common_dtype("promote_types", (np.dtype(a), np.dtype(b)))
    if least in _WIDEST:
        return np.dtype(_WIDEST[least])
    found = SHORT_NAMES[least]
    # Of what is given, width is kept; where integers of 32 bits meet in a wider type, that is as arrays hold it.
    return found if least in nodes or is_inexact(found) else canonical_dtype(found)


def _node(name: str, of: Any) -> str:
    """The node of the lattice for a dtype or a Python type."""
    if isinstance(of, type) and of in _OF_PYTHON:
        return _OF_PYTHON[of]
    dtype = np.dtype(of)
    if dtype not in SHORT_NAMES.values():
        raise ValueError(f"{name}: there are no arrays of {dtype}, so that it meets no other dtype")
    return node_of(dtype, False)


def result_type(*args: Any) -> DType:
    """The dtype in which arrays, numbers and dtypes meet, as arrays hold it.

    >>> jnp.result_type(jnp.zeros(3, jnp.int8), 2.5)
    dtype('float32')
    """
    if not args:
        raise ValueError("result_type: needs at least one array, number or dtype")
    types = []
    for arg in args:
        if isinstance(arg, (np.ndarray, np.generic, Typed, *PYTHON_SCALARS)):
            types.append(type_of(arg))
        elif isinstance(arg, type) and arg in _OF_PYTHON:
            types.append(scalar_type(arg()))
        else:
            _node("result_type", arg)  # an error where there are no such arrays
            types.append(ArrayType((), canonical_dtype(arg)))
    return meet("result_type", types)[0]


def isscalar(element: Any) -> bool:
    """Whether this is one number: a Python or numpy scalar, or an array without dims.

    >>> jnp.isscalar(jnp.float32(3))
    True
    """
    return np.isscalar(element) or (hasattr(element, "dtype") and getattr(element, "ndim", None) == 0)


def iscomplexobj(x: Any) -> bool:
    """Whether the dtype is complex, whatever the elements are.

    >>> jnp.iscomplexobj(jnp.ones(2, jnp.complex64))
    True
    """
    if x is None:
        return False
    return issubdtype(x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype, np.complexfloating)


def isrealobj(x: Any) -> bool:
    """Whether the dtype is not complex, whatever the elements are.

    >>> jnp.isrealobj(jnp.ones(2))
    True
    """
    return not iscomplexobj(x)


def iscomplex(x: Any) -> Any:
    """Whether each element has an imaginary part other than 0.

    >>> jnp.iscomplex(jnp.array([1, 2j]))
    Array([False,  True], dtype=bool)
    """
    return _imaginary(x, direction="NE")


def isreal(x: Any) -> Any:
    """Whether the imaginary part of each element is 0.

    >>> jnp.isreal(jnp.array([1, 2j]))
    Array([ True, False], dtype=bool)
    """
    return _imaginary(x, direction="EQ")


@composed
def _imaginary(x: Any, *, direction: str) -> Any:
    return methods.compare(numeric.imag(as_operand(x, "isreal")), 0, direction=direction)
