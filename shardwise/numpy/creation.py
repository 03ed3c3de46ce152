"""Array creation. `device` may be a device or a sharding: each device then creates only its own shard."""

import math
import operator
from typing import Any, cast

import numpy as np

from shardwise import tree
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.meshes.out_sharding import constrain_sharding
from shardwise.api.meshes.placement import create_on_device, device_put
from shardwise.api.transformations.float0 import float0, is_float0, is_float0_dtype
from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays import methods
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    PYTHON_SCALARS,
    as_operand,
    compiled_function,
    integer_tuple,
    resolve_array,
    type_of,
)
from shardwise.compiler.arrays.promotion import canonical_dtype, default_dtype, promote_dtypes, requested_dtype
from shardwise.compiler.dtypes import integer_range, is_integer, is_key
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.placement.reshard import reshard_to
from shardwise.compiler.ops.random.key_data import KeyData, WrapKeyData
from shardwise.compiler.ops.shape.constants import full as full_op
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.lax.manual_axes import make_varying
from shardwise.numpy.families import NOT_AN_ARRAY
from shardwise.numpy.joining import stack
from shardwise.runtime.array import ArrayImpl
from shardwise.typing import ArrayLike, DTypeLike, NestedArrays, OutSharding, Placement, Shape, SupportsShape

_OUT_SHARDING = "the sharding to constrain the result to, also inside `jit`."
_NOT_NUMBERS = "TypeError: if {} holds anything but numbers."
_CONVERSION = Family(
    {
        "object": Parameter("the elements.", _NOT_NUMBERS),
        "a": Parameter("an array, a number, or nested sequences of these.", _NOT_NUMBERS),
        "dtype": "the dtype of the result; inferred if None.",
        "order": "ignored: the memory layout is chosen by the compiler.",
        "device": "the device or sharding to move the array to.",
        "out_sharding": _OUT_SHARDING,
    },
    returns="The array.",
    raises=[
        "ValueError: if nested sequences have different lengths.",
        "OverflowError: if a Python integer is out of range for an integer `dtype`.",
    ],
)
_CREATION = Family(
    {
        "shape": "the shape, or the size of a 1-D array.",
        "dtype": "the dtype; the default float dtype if None.",
        "device": "the device or sharding on which the array is created; each device creates only its own shard.",
        "out_sharding": _OUT_SHARDING,
    },
    returns="The array.",
    raises=["ValueError: if a size is negative.", "TypeError: if a size is not an integer."],
)
_LIKE = Family(
    {
        **_CREATION.args,
        "a": Parameter(
            "the prototype, an array or a `ShapeDtypeStruct`. The result has the sharding of a committed array, of a\n"
            "struct, and of a type along Explicit mesh axes, unless `shape`, `device` or `out_sharding` is given.",
            NOT_AN_ARRAY,
        ),
        "fill_value": Parameter("the value, or an array that is broadcast to the shape.", NOT_AN_ARRAY),
        "dtype": "the dtype; that of `a` if None.",
        "shape": "the shape; that of `a` if None.",
    },
    returns="The array.",
    raises=["ValueError: if a size is negative."],
)

_FLOAT = "float*"
_OBJECT = np.dtype(object)


@documented(_CONVERSION)
def array(
    object: Any,
    dtype: DTypeLike | None = None,
    copy: bool = True,
    order: str | None = "K",
    ndmin: int = 0,
    *,
    device: Placement = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Create an array from an array, a number, or nested sequences of these.

    A Python scalar without `dtype` becomes a weakly typed array. Without `dtype`, lists of Python numbers have the
    default dtype of their kind, and numpy arrays keep theirs, truncated to 32 bits unless `enable_x64` is set.

    Args:
        copy: whether the result has a buffer of its own if `object` is an array already.
        ndmin: the minimum rank of the result; dims of size 1 are prepended.

    Example:
        >>> jnp.array([[1, 2], [3, 4]])
        Array([[1, 2],
               [3, 4]], dtype=int32)
    """
    if is_float0_dtype(dtype) or (dtype is None and is_float0(object)):
        return cast(Array, np.array(object, float0, ndmin=ndmin))
    result = _array(object, None if dtype is None else requested_dtype("array", dtype), copy)
    if result.type.ndim < ndmin:
        result = methods.reshape(result, shape=(1,) * (ndmin - result.type.ndim) + result.type.shape)
    result = constrain_sharding(result, out_sharding)
    return result if device is None else device_put(result, device)


def _is_array(x: object) -> bool:
    return isinstance(x, Array) or hasattr(x, "__jax_array__")


@compiled_function
def _copy(x: Array) -> Any:
    if is_key(x.type.dtype):
        return WrapKeyData(x.dtype.impl)(_copy(KeyData()(x)))
    return Convert(x.type.dtype, x.type.weak)(x)


def _array(object: Any, dtype: np.dtype[Any] | None, copy: bool) -> Any:
    object = resolve_array(object)
    if isinstance(object, Array):
        result = object if dtype is None else methods.astype(object, dtype=dtype)
        # A compiled identity allocates a new buffer, which outlives a donation of the original.
        return _copy(result) if copy and result is object else result
    if isinstance(object, (list, tuple)) and any(map(_is_array, leaves := tree.leaves(object, _is_array))):
        if dtype is None:  # that of all leaves: a nested list of Python numbers is weakly typed
            dtype, _ = promote_dtypes("array", [type_of(leaf, "array") for leaf in leaves])
        return stack([_array(part, dtype, False) for part in object])
    if isinstance(object, PYTHON_SCALARS) and dtype is None:
        return as_operand(object)
    host = np.asarray(object)
    if host.dtype == _OBJECT:
        if any(leaf is None for leaf in tree.leaves(object, lambda x: x is None)):
            raise ValueError("array: None is not a number; write 0 or jnp.nan for a missing one")
        raise TypeError(f"array: needs numbers, not {object!r}")
    from_python = not isinstance(object, (np.ndarray, np.generic))
    if dtype is None:
        # Lists of Python numbers get the default width of their kind; numpy arrays keep theirs.
        default = {"i": "int*", "f": _FLOAT, "c": "complex*"}.get(host.dtype.kind) if from_python else None
        dtype = default_dtype(default) if default else host.dtype
    out_dtype = canonical_dtype(dtype)
    if from_python and is_integer(out_dtype) and host.dtype.kind in "iu" and host.size:
        low, high = integer_range(out_dtype)
        if host.min() < low or host.max() > high:
            raise OverflowError(f"array: {object!r} is out of range for {out_dtype}, which holds {low} to {high}")
    return as_operand(host.astype(out_dtype)) if host.ndim else full((), host[()], out_dtype)


@documented(_CONVERSION)
def asarray(
    a: NestedArrays,
    dtype: DTypeLike | None = None,
    order: str | None = None,
    *,
    copy: bool | None = None,
    device: Placement = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Convert an object to an array; an array is returned without copying it.

    Args:
        copy: whether an array gets a buffer of its own.

    Example:
        >>> jnp.asarray([1.0, 2.0])
        Array([1., 2.], dtype=float32)
    """
    return array(a, dtype, bool(copy), device=device, out_sharding=out_sharding)


@documented(_CREATION)
def full(
    shape: Shape,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    device: Placement = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Create an array filled with one value.

    Args:
        fill_value: the value, or an array that is broadcast to `shape`.
        dtype: the dtype; that of `fill_value` if None.

    Raises:
        TypeError: if `fill_value` is not an array or a number, or if a size is not an integer.

    Example:
        >>> jnp.full((2, 2), 7)
        Array([[7, 7],
               [7, 7]], dtype=int32, weak_type=True)
    """
    return _full(shape, fill_value, dtype, False, device, out_sharding)


def _full(
    shape: Shape, value: ArrayLike, dtype: DTypeLike | None, weak: bool, device: Placement, out_sharding: OutSharding
) -> Any:
    """Create an array; `weak` is its weak type if `dtype` is given, else it has that of the value."""
    if is_float0_dtype(dtype):
        return np.zeros(_shape(shape), float0)
    value = resolve_array(value)
    value_type = type_of(value, "full")
    out_dtype = requested_dtype("full", dtype) if dtype is not None else value_type.dtype
    out_weak = value_type.weak if dtype is None else weak
    if isinstance(value, (Array, np.ndarray)):
        result = methods.broadcast_to(methods.astype(value, dtype=out_dtype), shape=_shape(shape))
        result = result if device is None else device_put(result, device)
    else:
        result = create_on_device(full_op, (_shape(shape), value, out_dtype, out_weak), device, "full")
    return constrain_sharding(result, out_sharding)


@documented(_CREATION)
def zeros(
    shape: Shape, dtype: DTypeLike | None = None, *, device: Placement = None, out_sharding: OutSharding = None
) -> Array:
    """Create an array of zeros.

    Example:
        >>> jnp.zeros(3)
        Array([0., 0., 0.], dtype=float32)
    """
    return full(shape, 0, default_dtype(_FLOAT) if dtype is None else dtype, device=device, out_sharding=out_sharding)


@documented(_CREATION)
def ones(
    shape: Shape, dtype: DTypeLike | None = None, *, device: Placement = None, out_sharding: OutSharding = None
) -> Array:
    """Create an array of ones.

    Example:
        >>> jnp.ones(3)
        Array([1., 1., 1.], dtype=float32)
    """
    return full(shape, 1, default_dtype(_FLOAT) if dtype is None else dtype, device=device, out_sharding=out_sharding)


@documented(_CREATION)
def empty(
    shape: Shape, dtype: DTypeLike | None = None, *, device: Placement = None, out_sharding: OutSharding = None
) -> Array:
    """Create an array with unspecified elements.

    The elements are zeros here; in JAX they are arbitrary from 0.11 on, so programs must not rely on them.

    Example:
        >>> jnp.empty(3).shape
        (3,)
    """
    return zeros(shape, dtype, device=device, out_sharding=out_sharding)


@documented(_LIKE)
def full_like(
    a: ArrayLike | SupportsShape,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    shape: Shape | None = None,
    *,
    device: Placement = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Create an array filled with one value, with the shape and dtype of another array.

    Example:
        >>> jnp.full_like(jnp.array([1, 2]), 7)
        Array([7, 7], dtype=int32)
    """
    if is_float0(a) or is_float0_dtype(dtype):
        out_dtype = float0 if dtype is None else dtype
        return full(np.shape(a) if shape is None else shape, fill_value, out_dtype, device=device)
    a_type = type_of(a, "full_like")
    placed = a if isinstance(a, ShapeDtypeStruct) or (isinstance(a, ArrayImpl) and a.committed) else None
    like_a = device is None and shape is None and out_sharding is None
    if device is None and out_sharding is None and placed is not None and placed.sharding is not None:
        device = placed.sharding if shape is None or placed.sharding.is_fully_replicated else None
    out_shape = a_type.shape if shape is None else shape
    result = _full(
        out_shape,
        fill_value,
        a_type.dtype if dtype is None else dtype,
        a_type.weak and dtype is None,
        device,
        out_sharding,
    )
    if not type_of(fill_value).shape:
        result = make_varying(result, a_type.varying)
    return reshard_to(result, a_type.explicit) if like_a and placed is None else result


@documented(_LIKE)
def zeros_like(
    a: ArrayLike | SupportsShape,
    dtype: DTypeLike | None = None,
    shape: Shape | None = None,
    *,
    device: Placement = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Create an array of zeros with the shape and dtype of another array.

    Example:
        >>> jnp.zeros_like(jnp.array([1, 2]))
        Array([0, 0], dtype=int32)
    """
    return full_like(a, 0, dtype, shape, device=device, out_sharding=out_sharding)


@documented(_LIKE)
def ones_like(
    a: ArrayLike | SupportsShape,
    dtype: DTypeLike | None = None,
    shape: Shape | None = None,
    *,
    device: Placement = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Create an array of ones with the shape and dtype of another array.

    Example:
        >>> jnp.ones_like(jnp.array([1, 2]))
        Array([1, 1], dtype=int32)
    """
    return full_like(a, 1, dtype, shape, device=device, out_sharding=out_sharding)


@documented(_CREATION, raises=["TypeError: if `prototype` is not an array or a number."])
def empty_like(
    prototype: ArrayLike | SupportsShape,
    dtype: DTypeLike | None = None,
    shape: Shape | None = None,
    *,
    device: Placement = None,
) -> Array:
    """Create an array with unspecified elements, with the shape and dtype of another array.

    The elements are zeros here; in JAX they are arbitrary from 0.11 on, so programs must not rely on them.

    Args:
        prototype: the array to imitate. If it is committed, the result has its sharding, unless `shape` or `device` is
            given.
        dtype: the dtype; that of `prototype` if None.
        shape: the shape; that of `prototype` if None.

    Example:
        >>> jnp.empty_like(jnp.ones(3)).shape
        (3,)
    """
    return zeros_like(prototype, dtype, shape, device=device)


@documented(_CREATION, returns="The numbers `start`, `start + step`, ... before `stop`.")
def arange(
    start: ArrayLike,
    stop: ArrayLike | None = None,
    step: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
    *,
    device: Placement = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Create a 1-D array of evenly spaced numbers in a half-open interval.

    Args:
        start: the first number; the end of the interval, which then starts at 0, if `stop` is None.
        stop: the end of the interval, not included.
        step: the distance between numbers; 1 if None.
        dtype: the dtype; inferred from the arguments if None.

    Raises:
        TypeError: if an argument is traced, complex, or not a number: the size of the result must be static.
        ValueError: if `step` is 0.

    Example:
        >>> jnp.arange(2, 8, 2)
        Array([2, 4, 6], dtype=int32)
    """
    low, high = (0, start) if stop is None else (start, stop)
    by = 1 if step is None else step
    low, high, by = (_scalar(x) for x in (low, high, by))
    if not all(isinstance(x, (int, float, np.integer, np.floating)) for x in (low, high, by)):
        raise TypeError(f"arange: needs concrete real numbers, not {low!r}, {high!r}, {by!r}")
    if by == 0:
        raise ValueError("arange: step must not be 0")
    if dtype is None:
        out_dtype = canonical_dtype(np.result_type(*(type_of(x).dtype for x in (low, high, by))))
    else:
        out_dtype = requested_dtype("arange", dtype)
    count = max(0, math.ceil((high - low) / by))
    return constrain_sharding(create_on_device(_arange, (count, low, by, out_dtype), device, "arange"), out_sharding)


def _scalar(x: ArrayLike) -> Any:
    """Return the number in a concrete array of rank 0; return other values unchanged."""
    return np.asarray(x)[()] if isinstance(x, (ArrayImpl, np.ndarray)) and not x.ndim else x


def _arange(count: int, low: float, by: float, dtype: np.dtype[Any]) -> Any:
    index = Iota((count,), 0, dtype)()
    return index if (low, by) == (0, 1) else methods.astype(index * by + low, dtype=dtype)


@documented(_CREATION, returns="The matrix.", raises=["TypeError: if `k` is not an integer."])
def eye(
    N: int, M: int | None = None, k: ArrayLike = 0, dtype: DTypeLike | None = None, *, device: Placement = None
) -> Array:
    """Create a matrix with ones on a diagonal and zeros elsewhere.

    Args:
        N: the number of rows.
        M: the number of columns; `N` if None.
        k: the offset of the diagonal: positive above the main diagonal, negative below. It may be traced.

    Example:
        >>> jnp.eye(2, 3, k=1)
        Array([[0., 1., 0.],
               [0., 0., 1.]], dtype=float32)
    """
    out_dtype = requested_dtype("eye", dtype) if dtype is not None else default_dtype(_FLOAT)
    shape = _shape((N, N if M is None else M))
    if not is_integer(type_of(k, "eye").dtype):
        raise TypeError(f"eye: k, the offset of the diagonal, must be an integer, not {k!r}")
    if isinstance(k, Array):
        result = _eye(shape, k, out_dtype)
        return result if device is None else device_put(result, device)
    return create_on_device(_eye, (shape, operator.index(_scalar(k)), out_dtype), device, "eye")


def _eye(shape: tuple[int, ...], k: Array | int, dtype: np.dtype[Any]) -> Any:
    rows, columns = (Iota(shape, dim, np.dtype(np.int32))() for dim in (0, 1))
    is_diagonal = methods.compare(rows + k, columns, direction="EQ")
    return methods.astype(is_diagonal, dtype=dtype)


def _shape(shape: Shape) -> tuple[int, ...]:
    result = integer_tuple(shape)
    if any(size < 0 for size in result):
        raise ValueError(f"sizes of a shape must not be negative: {result}")
    return result
