"""Scalar types such as `jnp.float32`, queries about dtypes, and type promotion.

A scalar type is accepted wherever a dtype is, and is callable: `jnp.float32(3)` creates an array.
"""

from collections.abc import Sequence
from typing import Any, final

import ml_dtypes
import numpy as np

from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays import arithmetic
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    PYTHON_SCALARS,
    as_operand,
    compiled_function,
    resolve_array,
    type_of,
)
from shardwise.compiler.arrays.promotion import (
    canonical_dtype,
    least_common_dtype,
    no_common_dtype,
    node_of,
    promote_dtypes,
    requested_dtype,
    scalar_type,
)
from shardwise.compiler.dtypes import SHORT_NAMES, SMALL_FLOATS, DType, KeyDType, is_inexact
from shardwise.compiler.ir.types import ArrayType, Typed
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.select import Compare
from shardwise.numpy.creation import array
from shardwise.numpy.families import PREDICATE
from shardwise.typing import ArrayLike, DTypeLike, NestedArrays

_NESTED = Family(
    {
        "x": Parameter(
            "an array, a number or a nested sequence of these.",
            "ValueError: if {} is a nested sequence of different lengths.",
        )
    }
)

_PYTHON_NODES = {bool: "bool", int: "int*", float: "float*", complex: "complex*"}
_WIDEST = {"int*": np.int64, "float*": np.float64, "complex*": np.complex128}
_PARENTS: dict[type, type] = {  # abstract types of the ml_dtypes scalars, which numpy does not know
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
    """Metaclass of the scalar types, such as `jnp.float32`."""

    dtype: DType

    def __call__(cls, x: NestedArrays) -> Any:
        """Convert `x` to an array of this dtype."""
        return array(x, cls.dtype)

    def __eq__(cls, other: object) -> bool:
        return cls is other or cls.dtype.type is other or (isinstance(other, np.dtype) and cls.dtype == other)

    def __ne__(cls, other: object) -> bool:
        return not cls == other

    def __hash__(cls) -> int:
        return hash(cls.dtype.type)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.dtype.type)


def _scalar_type(dtype: type[Any], name: str = "") -> ScalarType:
    np_dtype = np.dtype(dtype)
    return ScalarType(name or np_dtype.name, (object,), {"dtype": np_dtype, "__module__": "shardwise.numpy"})


bool_ = _scalar_type(np.bool_)
int1 = _scalar_type(ml_dtypes.int1)
int2 = _scalar_type(ml_dtypes.int2)
int4 = _scalar_type(ml_dtypes.int4)
int8 = _scalar_type(np.int8)
int16 = _scalar_type(np.int16)
int32 = _scalar_type(np.int32)
int64 = _scalar_type(np.int64)
uint1 = _scalar_type(ml_dtypes.uint1)
uint2 = _scalar_type(ml_dtypes.uint2)
uint4 = _scalar_type(ml_dtypes.uint4)
uint8 = _scalar_type(np.uint8)
uint16 = _scalar_type(np.uint16)
uint32 = _scalar_type(np.uint32)
uint64 = _scalar_type(np.uint64)
float4_e2m1fn = _scalar_type(ml_dtypes.float4_e2m1fn)
float6_e2m3fn = _scalar_type(ml_dtypes.float6_e2m3fn)
float6_e3m2fn = _scalar_type(ml_dtypes.float6_e3m2fn)
float8_e3m4 = _scalar_type(ml_dtypes.float8_e3m4)
float8_e4m3 = _scalar_type(ml_dtypes.float8_e4m3)
float8_e4m3b11fnuz = _scalar_type(ml_dtypes.float8_e4m3b11fnuz)
float8_e4m3fn = _scalar_type(ml_dtypes.float8_e4m3fn)
float8_e4m3fnuz = _scalar_type(ml_dtypes.float8_e4m3fnuz)
float8_e5m2 = _scalar_type(ml_dtypes.float8_e5m2)
float8_e5m2fnuz = _scalar_type(ml_dtypes.float8_e5m2fnuz)
float8_e8m0fnu = _scalar_type(ml_dtypes.float8_e8m0fnu)
bfloat16 = _scalar_type(ml_dtypes.bfloat16)
float16 = _scalar_type(np.float16)
float32 = _scalar_type(np.float32)
float64 = _scalar_type(np.float64)
complex64 = _scalar_type(np.complex64)
complex128 = _scalar_type(np.complex128)
int_, uint, float_, complex_ = int64, uint64, float64, complex128
single, double, csingle, cdouble = float32, float64, complex64, complex128


def finfo(dtype: DTypeLike) -> Any:
    """Return the machine limits of a float dtype.

    Args:
        dtype: a float or complex dtype, or an array of one. A complex dtype stands for the dtype of its parts.

    Returns:
        An object with the attributes of `numpy.finfo`: `bits`, `eps`, `max`, `min`, `tiny` and others.

    Raises:
        ValueError: if the dtype is neither float nor complex.

    Example:
        >>> float(jnp.finfo(jnp.bfloat16).eps)
        0.0078125
    """
    return ml_dtypes.finfo(_as_dtype(dtype))  # type: ignore[no-untyped-call]


def iinfo(int_type: DTypeLike | int) -> Any:
    """Return the machine limits of an integer dtype.

    Args:
        int_type: an integer dtype, or an array of one. A Python integer stands for int64.

    Returns:
        An object with the attributes of `numpy.iinfo`: `bits`, `max` and `min`.

    Raises:
        ValueError: if the dtype is not an integer dtype.

    Example:
        >>> jnp.iinfo(jnp.int4).max
        7
    """
    dtype = np.dtype(int) if isinstance(int_type, int) else _as_dtype(int_type)
    if not issubdtype(dtype, np.integer):
        raise ValueError(f"iinfo: {dtype} is not an integer dtype; use `finfo` for floats")
    return ml_dtypes.iinfo(dtype) if dtype.type in _PARENTS else np.iinfo(dtype)  # type: ignore[no-untyped-call]


def _as_dtype(x: Any) -> DType:
    dtype = getattr(x, "dtype", None)  # numpy's scalar types have a `dtype` too, which is a descriptor
    return dtype if isinstance(dtype, np.dtype) else np.dtype(x)


def issubdtype(arg1: DTypeLike, arg2: DTypeLike) -> bool:
    """Return whether a dtype equals another one or is a subtype of an abstract type.

    Args:
        arg1: a dtype or an abstract type.
        arg2: a dtype or an abstract type, such as `jnp.floating`.

    Returns:
        True if `arg1` is `arg2` or below it in the type hierarchy.

    Raises:
        TypeError: if an argument is not a dtype.

    Example:
        >>> jnp.issubdtype(jnp.bfloat16, jnp.floating)
        True
    """
    first, second = _numpy_type(arg1), _numpy_type(arg2)
    return first is second or issubclass(_PARENTS.get(first, first), second)


def _numpy_type(dtype: Any) -> type:
    """Return the numpy scalar type of a dtype; abstract types are returned unchanged."""
    if isinstance(dtype, KeyDType):
        return dtype.type
    return dtype if isinstance(dtype, type) and issubclass(dtype, np.generic) else np.dtype(dtype).type


def isdtype(dtype: DTypeLike, kind: DTypeLike | tuple[DTypeLike, ...]) -> bool:
    """Return whether a dtype belongs to a kind of the array API standard.

    Args:
        dtype: the dtype.
        kind: "bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric",
            a dtype, or a tuple of these.

    Returns:
        True if `dtype` is of the kind, or of one of the kinds in a tuple.

    Raises:
        ValueError: if `kind` is neither a dtype nor one of these names.
        TypeError: if `dtype` is not a dtype.

    Example:
        >>> jnp.isdtype(jnp.int8, ("bool", "integral"))
        True
    """
    np_dtype = np.dtype(dtype)
    for one in kind if isinstance(kind, tuple) else (kind,):
        if isinstance(one, str) and one in _KINDS:
            if issubdtype(np_dtype, _KINDS[one]):
                return True
            continue
        try:
            kind_dtype = np.dtype(one)
        except TypeError:
            raise ValueError(f"isdtype: {one!r} is neither a dtype nor a kind; kinds: {', '.join(_KINDS)}") from None
        if np_dtype == kind_dtype:
            return True
    return False


def promote_types(a: DTypeLike, b: DTypeLike) -> DType:
    """Return the dtype to which two dtypes are promoted.

    The Python types `int`, `float` and `complex` are weak: they take the width of the other dtype.

    Args:
        a, b: dtypes, scalar types or Python types.

    Returns:
        Their least upper bound in the type promotion lattice.

    Raises:
        TypePromotionError: if the dtypes have no common one, such as two different 8-bit floats.
        ValueError: if arrays of a dtype are not supported.

    Example:
        >>> jnp.promote_types(jnp.int32, jnp.bfloat16)
        dtype(bfloat16)
    """
    nodes = [_node("promote_types", x) for x in (a, b)]
    least = least_common_dtype(nodes)
    if least is None:
        raise no_common_dtype("promote_types", (np.dtype(a), np.dtype(b)))
    if least in _WIDEST:
        return np.dtype(_WIDEST[least])
    result = SHORT_NAMES[least]
    # An operand's dtype is returned unchanged; a wider integer dtype is subject to `enable_x64`.
    return result if least in nodes or is_inexact(result) else canonical_dtype(result)


def _node(name: str, dtype: Any) -> str:
    """Return the node of the promotion lattice for a dtype or a Python type."""
    if isinstance(dtype, type) and dtype in _PYTHON_NODES:
        return _PYTHON_NODES[dtype]
    np_dtype = np.dtype(dtype)
    if np_dtype not in SHORT_NAMES.values():
        raise ValueError(f"{name}: arrays of {np_dtype} are not supported, so it has no place in type promotion")
    return node_of(np_dtype, False)


def result_type(*args: ArrayLike | DTypeLike) -> DType:
    """Return the dtype to which arrays, numbers and dtypes are promoted.

    Args:
        *args: arrays, Python or numpy scalars, and dtypes.

    Returns:
        The promoted dtype; 64-bit dtypes are truncated to 32 bits unless `enable_x64` is set.

    Raises:
        ValueError: if there are no arguments, or if arrays of a dtype are not supported.
        TypePromotionError: if the dtypes have no common one.

    Example:
        >>> jnp.result_type(jnp.zeros(3, jnp.int8), 2.5)
        dtype('float32')
    """
    return promoted_type(args).dtype


def promoted_type(args: Sequence[Any]) -> ArrayType:
    """Return the type of a scalar of the dtype to which `args` of `result_type` are promoted."""
    if not args:
        raise ValueError("result_type: needs at least one array, number or dtype")
    types = []
    for arg in map(resolve_array, args):
        if isinstance(arg, (np.ndarray, np.generic, Typed, *PYTHON_SCALARS)):
            types.append(type_of(arg))
        elif isinstance(arg, type) and arg in _PYTHON_NODES:
            types.append(scalar_type(arg()))
        else:
            _node("result_type", arg)  # raises for dtypes that arrays do not support
            types.append(ArrayType((), requested_dtype("result_type", arg)))
    return ArrayType((), *promote_dtypes("result_type", types))


def isscalar(element: object) -> bool:
    """Return whether an object is a scalar.

    Args:
        element: any object.

    Returns:
        True for Python scalars, numpy scalars and arrays of rank 0.

    Raises:
        Nothing.

    Example:
        >>> jnp.isscalar(jnp.float32(3))
        True
    """
    element = resolve_array(element)
    return np.isscalar(element) or (hasattr(element, "dtype") and getattr(element, "ndim", None) == 0)


@documented(_NESTED, returns="True if the dtype is complex, even if all imaginary parts are 0.")
def iscomplexobj(x: NestedArrays) -> bool:
    """Return whether an object has a complex dtype.

    Example:
        >>> jnp.iscomplexobj(jnp.ones(2, jnp.complex64))
        True
    """
    if x is None:
        return False
    return issubdtype(x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype, np.complexfloating)


@documented(_NESTED, returns="False if the dtype is complex, even if all imaginary parts are 0.")
def isrealobj(x: NestedArrays) -> bool:
    """Return whether an object has a dtype that is not complex.

    Example:
        >>> jnp.isrealobj(jnp.ones(2))
        True
    """
    return not iscomplexobj(x)


@documented(PREDICATE)
def iscomplex(x: ArrayLike) -> Array:
    """Return element-wise whether the imaginary part is not 0.

    Example:
        >>> jnp.iscomplex(jnp.array([1, 2j]))
        Array([False,  True], dtype=bool)
    """
    return _compare_imaginary(x, direction="NE")


@documented(PREDICATE)
def isreal(x: ArrayLike) -> Array:
    """Return element-wise whether the imaginary part is 0.

    Example:
        >>> jnp.isreal(jnp.array([1, 2j]))
        Array([ True, False], dtype=bool)
    """
    return _compare_imaginary(x, direction="EQ")


@compiled_function
def _compare_imaginary(x: ArrayLike, *, direction: str) -> Any:
    part = arithmetic.imag(as_operand(x, "isreal"))
    return Compare(direction)(part, full_like(part, 0))
