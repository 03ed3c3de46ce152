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
from shardwise.runtime.array import Array

_FLOAT = "float*"
_OBJECT = np.dtype(object)


def array(object: Any, dtype: Any = None, copy: bool = True, *, device: Any = None) -> Any:
    """A new array with the elements of `object`: an array, a number, or nested lists of numbers.

    A Python number gives a weak type; a number that the dtype cannot hold is an error.
    """
    if device is not None:
        return device_put(array(object, dtype, copy), device)
    if isinstance(object, ArrayMethods):
        made = object if dtype is None else methods.astype(object, dtype=dtype)
        # A compiled identity gives memory of its own, which outlives a donation of the original.
        return Convert(made.type.dtype, made.type.weak)(made) if copy and made is object else made
    if any(isinstance(leaf, ArrayMethods) for leaf in tree.leaves(object)):
        raise TypeError("array: lists of arrays cannot be joined yet; pass an array or nested lists of numbers")
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
    if made_of_python and is_integer(wanted) and is_integer(host.dtype) and host.size:
        low, high = integer_range(wanted)
        if host.min() < low or host.max() > high:
            raise OverflowError(f"array: {object!r} is out of range for {wanted}, which holds {low} to {high}")
    return as_operand(host.astype(wanted)) if host.ndim else full((), host[()], wanted)


def asarray(a: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """`a` as an array; itself where it is one already."""
    return array(a, dtype, copy=False, device=device)


def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """An array of one value."""
    kind = type_of(fill_value, "full")
    wanted = canonical_dtype(dtype) if dtype is not None else kind.dtype
    if isinstance(fill_value, ArrayMethods):
        spread = methods.broadcast_to(methods.astype(fill_value, dtype=wanted), shape=_shape(shape))
        return spread if device is None else device_put(spread, device)
    return created(full_op, (_shape(shape), fill_value, wanted, dtype is None and kind.weak), device, "full")


def zeros(shape: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """An array of zeros."""
    return full(shape, 0, default_dtype(_FLOAT) if dtype is None else dtype, device=device)


def ones(shape: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """An array of ones."""
    return full(shape, 1, default_dtype(_FLOAT) if dtype is None else dtype, device=device)


def full_like(a: Any, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """An array of one value, with the shape and dtype of `a`, beside it where it is committed."""
    kind = type_of(a, "full_like")
    if device is None and isinstance(a, Array) and a.committed:
        device = a.sharding
    return full(kind.shape, fill_value, dtype if dtype is not None else kind.dtype, device=device)


def zeros_like(a: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """Zeros with the shape and dtype of `a`."""
    return full_like(a, 0, dtype, device=device)


def ones_like(a: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """Ones with the shape and dtype of `a`."""
    return full_like(a, 1, dtype, device=device)


def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None, *, device: Any = None) -> Any:
    """Numbers from `start` (0 where only one number is given) up to but not including `stop`, by `step`."""
    low, high = (0, start) if stop is None else (start, stop)
    by = 1 if step is None else step
    if not all(isinstance(x, (int, float, np.integer, np.floating)) for x in (low, high, by)):
        raise TypeError(f"arange: needs Python numbers that are known now, not {low!r}, {high!r}, {by!r}")
    if by == 0:
        raise ValueError("arange: step must not be 0")
    if dtype is None:
        dtype = np.result_type(*(type_of(x).dtype for x in (low, high, by)))
    count = max(0, math.ceil((high - low) / by))
    return created(_arange, (count, low, by, canonical_dtype(dtype)), device, "arange")


def _arange(count: int, low: Any, by: Any, dtype: Any) -> Any:
    index = Iota((count,), 0, dtype)()
    return index if (low, by) == (0, 1) else methods.astype(index * by + low, dtype=dtype)


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = None, *, device: Any = None) -> Any:
    """Ones on the diagonal `k`, zeros elsewhere."""
    wanted = canonical_dtype(dtype) if dtype is not None else default_dtype(_FLOAT)
    return created(_eye, ((N, N if M is None else M), k, wanted), device, "eye")


def _eye(shape: tuple[int, int], k: int, dtype: Any) -> Any:
    rows, columns = (Iota(shape, dim, np.dtype(np.int32))() for dim in (0, 1))
    on = methods.compare(rows + k, columns, direction="EQ")
    return methods.astype(on, dtype=dtype)


def _shape(shape: Any) -> tuple[int, ...]:
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    found = tuple(operator.index(size) for size in sizes)  # a traced size is an error that says so
    if any(size < 0 for size in found):
        raise ValueError(f"a shape has no negative sizes: {found}")
    return found
