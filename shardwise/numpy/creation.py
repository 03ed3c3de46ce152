"""Functions that make arrays."""

import math
from typing import Any

import numpy as np

from shardwise import tree
from shardwise.compiler.ops import methods
from shardwise.compiler.ops.methods import ArrayMethods, as_operand, type_of
from shardwise.compiler.ops.promote import canonical_dtype, default_dtype
from shardwise.compiler.ops.shape import Iota
from shardwise.compiler.ops.shape import full as full_op

_FLOAT = "float*"
_OBJECT = np.dtype(object)


def array(object: Any, dtype: Any = None) -> Any:
    """An array with the elements of `object`: an array, a number, or nested lists of numbers."""
    if isinstance(object, ArrayMethods):
        return object if dtype is None else methods.astype(object, dtype=dtype)
    if any(isinstance(leaf, ArrayMethods) for leaf in tree.leaves(object)):
        raise TypeError("array: lists of arrays cannot be joined yet; pass an array or nested lists of numbers")
    host = np.asarray(object)
    if host.dtype == _OBJECT:
        raise TypeError(f"array: needs numbers, not {object!r}")
    if dtype is None:
        # Lists of Python numbers take the default width; numpy arrays keep theirs as far as arrays hold it.
        made_of_python = not isinstance(object, (np.ndarray, np.generic))
        wide = {"i": "int*", "f": _FLOAT, "c": "complex*"}.get(host.dtype.kind) if made_of_python else None
        dtype = default_dtype(wide) if wide else host.dtype
    return as_operand(np.asarray(host, canonical_dtype(dtype))) if host.ndim else full((), host[()], dtype)


def asarray(a: Any, dtype: Any = None) -> Any:
    """`a` as an array."""
    return array(a, dtype)


def full(shape: Any, fill_value: Any, dtype: Any = None) -> Any:
    """An array of one value."""
    kind = type_of(fill_value, "full")
    wanted = canonical_dtype(dtype) if dtype is not None else kind.dtype
    if isinstance(fill_value, ArrayMethods):
        return methods.broadcast_to(methods.astype(fill_value, dtype=wanted), shape=_shape(shape))
    return full_op(_shape(shape), fill_value, wanted)


def zeros(shape: Any, dtype: Any = None) -> Any:
    """An array of zeros."""
    return full_op(_shape(shape), 0, canonical_dtype(dtype) if dtype is not None else default_dtype(_FLOAT))


def ones(shape: Any, dtype: Any = None) -> Any:
    """An array of ones."""
    return full_op(_shape(shape), 1, canonical_dtype(dtype) if dtype is not None else default_dtype(_FLOAT))


def full_like(a: Any, fill_value: Any, dtype: Any = None) -> Any:
    """An array of one value, with the shape and dtype of `a`."""
    kind = type_of(a, "full_like")
    return full(kind.shape, fill_value, dtype if dtype is not None else kind.dtype)


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
    sizes = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    if any(size < 0 for size in sizes):
        raise ValueError(f"a shape has no negative sizes: {sizes}")
    return tuple(int(size) for size in sizes)
