"""Functions that make arrays. `device` is a device or a sharding: each device makes its own piece there."""

import math
import operator
from typing import Any

import numpy as np

from shardwise import tree
from shardwise.api.placement import created, device_put
from shardwise.compiler.ir.types import integer_range, is_integer
from shardwise.compiler.ops import methods
from shardwise.compiler.ops.elementwise import Convert
from shardwise.compiler.ops.methods import ArrayMethods
from shardwise.compiler.ops.operands import PYTHON_SCALARS, as_operand, type_of
from shardwise.compiler.ops.promote import canonical_dtype, default_dtype
from shardwise.compiler.ops.shape import Iota
from shardwise.compiler.ops.shape import full as full_op
from shardwise.lax.shape import laid_out
from shardwise.numpy.joining import stack
from shardwise.runtime.array import Array

_FLOAT = "float*"
_OBJECT = np.dtype(object)


def array(
    object: Any,
    dtype: Any = None,
    copy: bool = True,
    order: str | None = "K",
    ndmin: int = 0,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Any:
    """A new array with the elements of `object`: an array, a number, or nested lists of these.

    A Python number gives a weak type; a number that the dtype cannot hold is an error. `ndmin`: how many dims there are
    at least; those of size 1 come first. `order` says how numpy's would lie in memory: devices lay out as they like.

    >>> jnp.array([[1, 2], [3, 4]])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    """
    made = _array(object, dtype, copy)
    if made.type.ndim < ndmin:
        made = methods.reshape(made, shape=(1,) * (ndmin - made.type.ndim) + made.type.shape)
    made = laid_out(made, out_sharding)
    return made if device is None else device_put(made, device)


def _array(object: Any, dtype: Any, copy: bool) -> Any:
    if isinstance(object, ArrayMethods):
        made = object if dtype is None else methods.astype(object, dtype=dtype)
        # A compiled identity gives memory of its own, which outlives a donation of the original.
        return Convert(made.type.dtype, made.type.weak)(made) if copy and made is object else made
    if isinstance(object, (list, tuple)) and any(isinstance(leaf, ArrayMethods) for leaf in tree.leaves(object)):
        return stack([_array(part, None, False) for part in object], dtype=dtype)
    if isinstance(object, PYTHON_SCALARS) and dtype is None:
        return as_operand(object)
    host = np.asarray(object)
    if host.dtype == _OBJECT:
        raise TypeError(f"array: needs numbers, not {object!r}")
    made_of_python = not isinstance(object, (np.ndarray, np.generic))
    if dtype is None:
        # Lists of Python numbers take the default width; numpy arrays keep theirs as far as arrays hold it.
        wide = {"i": "int*", "f": _FLOAT, "c": "complex*"}.get(host.dtype.kind) if made_of_python else None
        dtype = default_dtype(wide) if wide else host.dtype
    wanted = canonical_dtype(dtype)
    if made_of_python and is_integer(wanted) and host.dtype.kind in "iu" and host.size:
        low, high = integer_range(wanted)
        if host.min() < low or host.max() > high:
            raise OverflowError(f"array: {object!r} is out of range for {wanted}, which holds {low} to {high}")
    return as_operand(host.astype(wanted)) if host.ndim else full((), host[()], wanted)


def asarray(
    a: Any,
    dtype: Any = None,
    order: str | None = None,
    *,
    copy: bool | None = None,
    device: Any = None,
    out_sharding: Any = None,
) -> Any:
    """`a` as an array; itself where it is one already, unless `copy` asks for memory of its own.

    >>> jnp.asarray([1.0, 2.0])
    Array([1., 2.], dtype=float32)
    """
    return array(a, dtype, bool(copy), device=device, out_sharding=out_sharding)


def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """An array of one value; or of an array of values, which broadcasts.

    >>> jnp.full((2, 2), 7)
    Array([[7, 7],
           [7, 7]], dtype=int32)
    """
    return _full(shape, fill_value, dtype, False, device, out_sharding)


def _full(shape: Any, value: Any, dtype: Any, weak: bool, device: Any, out_sharding: Any) -> Any:
    """`weak`: so is the type where a dtype is given; else as that of the value."""
    kind = type_of(value, "full")
    wanted = canonical_dtype(dtype) if dtype is not None else kind.dtype
    is_weak = kind.weak if dtype is None else weak
    if isinstance(value, (ArrayMethods, np.ndarray)):
        spread = methods.broadcast_to(methods.astype(value, dtype=wanted), shape=_shape(shape))
        made = spread if device is None else device_put(spread, device)
    else:
        made = created(full_op, (_shape(shape), value, wanted, is_weak), device, "full")
    return laid_out(made, out_sharding)


def zeros(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """An array of zeros.

    >>> jnp.zeros(3)
    Array([0., 0., 0.], dtype=float32)
    """
    wanted = default_dtype(_FLOAT) if dtype is None else dtype
    return full(shape, 0, wanted, device=device, out_sharding=out_sharding)


def ones(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """An array of ones.

    >>> jnp.ones(3)
    Array([1., 1., 1.], dtype=float32)
    """
    wanted = default_dtype(_FLOAT) if dtype is None else dtype
    return full(shape, 1, wanted, device=device, out_sharding=out_sharding)


def empty(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """An array whose elements nobody has asked for: zeros.

    >>> jnp.empty(3).shape
    (3,)
    """
    return zeros(shape, dtype, device=device, out_sharding=out_sharding)


def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    shape: Any = None,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Any:
    """An array of one value, with the shape and dtype of `a` where no others are given, and where `a` is committed.

    >>> jnp.full_like(jnp.array([1, 2]), 7)
    Array([7, 7], dtype=int32)
    """
    kind = type_of(a, "full_like")
    if device is None and shape is None and isinstance(a, Array) and a.committed:
        device = a.sharding
    sizes = kind.shape if shape is None else shape
    return _full(sizes, fill_value, dtype or kind.dtype, kind.weak and dtype is None, device, out_sharding)


def zeros_like(a: Any, dtype: Any = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """Zeros with the shape and dtype of `a`, where no others are given.

    >>> jnp.zeros_like(jnp.array([1, 2]))
    Array([0, 0], dtype=int32)
    """
    return full_like(a, 0, dtype, shape, device=device, out_sharding=out_sharding)


def ones_like(a: Any, dtype: Any = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """Ones with the shape and dtype of `a`, where no others are given.

    >>> jnp.ones_like(jnp.array([1, 2]))
    Array([1, 1], dtype=int32)
    """
    return full_like(a, 1, dtype, shape, device=device, out_sharding=out_sharding)


def empty_like(prototype: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Any:
    """An array like `prototype` whose elements nobody has asked for: zeros.

    >>> jnp.empty_like(jnp.ones(3)).shape
    (3,)
    """
    return zeros_like(prototype, dtype, shape, device=device)


def arange(
    start: Any,
    stop: Any = None,
    step: Any = None,
    dtype: Any = None,
    *,
    device: Any = None,
    out_sharding: Any = None,
) -> Any:
    """Numbers from `start` (0 where only one number is given) up to but not including `stop`, by `step`.

    >>> jnp.arange(2, 8, 2)
    Array([2, 4, 6], dtype=int32)
    """
    low, high = (0, start) if stop is None else (start, stop)
    by = 1 if step is None else step
    low, high, by = (_number(x) for x in (low, high, by))
    if not all(isinstance(x, (int, float, np.integer, np.floating)) for x in (low, high, by)):
        raise TypeError(f"arange: needs Python numbers that are known now, not {low!r}, {high!r}, {by!r}")
    if by == 0:
        raise ValueError("arange: step must not be 0")
    if dtype is None:
        dtype = np.result_type(*(type_of(x).dtype for x in (low, high, by)))
    count = max(0, math.ceil((high - low) / by))
    return laid_out(created(_arange, (count, low, by, canonical_dtype(dtype)), device, "arange"), out_sharding)


def _number(x: Any) -> Any:
    """A number that an array without dims holds; others as they are."""
    return np.asarray(x)[()] if isinstance(x, (Array, np.ndarray)) and not x.ndim else x


def _arange(count: int, low: Any, by: Any, dtype: Any) -> Any:
    index = Iota((count,), 0, dtype)()
    return index if (low, by) == (0, 1) else methods.astype(index * by + low, dtype=dtype)


def eye(N: int, M: int | None = None, k: Any = 0, dtype: Any = None, *, device: Any = None) -> Any:
    """Ones on the diagonal `k`, which may be of the program, zeros elsewhere.

    >>> jnp.eye(2, 3, k=1)
    Array([[0., 1., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    wanted = canonical_dtype(dtype) if dtype is not None else default_dtype(_FLOAT)
    shape = _shape((N, N if M is None else M))
    if not is_integer(type_of(k, "eye").dtype):
        raise TypeError(f"eye: the number of a diagonal is an integer, not {k!r}")
    if isinstance(k, ArrayMethods):
        made = _eye(shape, k, wanted)
        return made if device is None else device_put(made, device)
    return created(_eye, (shape, operator.index(k), wanted), device, "eye")


def _eye(shape: tuple[int, ...], k: Any, dtype: Any) -> Any:
    rows, columns = (Iota(shape, dim, np.dtype(np.int32))() for dim in (0, 1))
    on = methods.compare(rows + k, columns, direction="EQ")
    return methods.astype(on, dtype=dtype)


def _shape(shape: Any) -> tuple[int, ...]:
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    found = tuple(operator.index(size) for size in sizes)  # a traced size is an error that says so
    if any(size < 0 for size in found):
        raise ValueError(f"a shape has no negative sizes: {found}")
    return found
