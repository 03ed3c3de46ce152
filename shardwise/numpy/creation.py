"""Functions that make arrays."""

import math
import operator
from typing import Any

import numpy as np

from shardwise import tree
from shardwise.api.placement import device_put
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


def array(object: Any, dtype: Any = None, copy: bool = True) -> Any:
    """A new array with the elements of `object`: an array, a number, or nested lists of numbers.

    A Python number gives a weak type; a number that the dtype cannot hold is an error.
    """
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


def asarray(a: Any, dtype: Any = None) -> Any:
    """`a` as an array; itself where it is one already."""
    return array(a, dtype, copy=False)


def full(shape: Any, fill_value: Any, dtype: Any = None) -> Any:
    """An array of one value."""
    kind = type_of(fill_value, "full")
    wanted = canonical_dtype(dtype) if dtype is not None else kind.dtype
    if isinstance(fill_value, ArrayMethods):
        return methods.broadcast_to(methods.astype(fill_value, dtype=wanted), shape=_shape(shape))
    return full_op(_shape(shape), fill_value, wanted, weak=dtype is None and kind.weak)


def zeros(shape: Any, dtype: Any = None) -> Any:
    """An array of zeros."""
    return full_op(_shape(shape), 0, canonical_dtype(dtype) if dtype is not None else default_dtype(_FLOAT))


def ones(shape: Any, dtype: Any = None) -> Any:
    """An array of ones."""
    return full_op(_shape(shape), 1, canonical_dtype(dtype) if dtype is not None else default_dtype(_FLOAT))


def full_like(a: Any, fill_value: Any, dtype: Any = None) -> Any:
    """An array of one value, with the shape and dtype of `a`."""
    kind = type_of(a, "full_like")
    made = full(kind.shape, fill_value, dtype if dtype is not None else kind.dtype)
    if isinstance(a, Array) and isinstance(made, Array) and a.committed:
        return device_put(made, a.sharding)  # beside the array that it is like
    return made


def zeros_like(a: Any, dtype: Any = None) -> Any:
    """Zeros with the shape and dtype of `a`."""
    return full_like(a, 0, dtype)


def ones_like(a: Any, dtype: Any = None) -> Any:
    """Ones with the shape and dtype of `a`."""
    return full_like(a, 1, dtype)


def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None) -> Any:
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
    index = Iota((count,), 0, canonical_dtype(dtype))()
    return index if (low, by) == (0, 1) else methods.astype(index * by + low, dtype=dtype)


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Any:
    """Ones on the diagonal `k`, zeros elsewhere."""
    shape = (N, N if M is None else M)
    rows, columns = (Iota(shape, dim, np.dtype(np.int32))() for dim in (0, 1))
    on = methods.compare(rows + k, columns, direction="EQ")
    return methods.astype(on, dtype=dtype if dtype is not None else default_dtype(_FLOAT))


def _shape(shape: Any) -> tuple[int, ...]:
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    found = tuple(operator.index(size) for size in sizes)  # a traced size is an error that says so
    if any(size < 0 for size in found):
        raise ValueError(f"a shape has no negative sizes: {found}")
    return found
