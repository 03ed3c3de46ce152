"""Selection of elements by conditions and indices, and the functions that store elements there."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.base.docstrings import Parameter, documented
from shardwise.compiler.arrays import arithmetic, methods
from shardwise.compiler.arrays.indexing import as_index, canonical_axis, index_mode, wrap_negative_index
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_operand,
    astype_weak,
    broadcast_shapes,
    broadcast_to_shape,
    compiled_function,
    concrete_value,
    promote_and_broadcast,
    reject_out,
    type_of,
)
from shardwise.compiler.arrays.promotion import promote_dtypes, requested_dtype
from shardwise.compiler.dtypes import integer_range, is_integer
from shardwise.compiler.ops.indexing.index_vectors import clamp_index
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.lax.selection import select_n
from shardwise.numpy.families import ARRAYS, TRACED_WITHOUT_SIZE
from shardwise.numpy.indexing import nonzero, take
from shardwise.numpy.ordering import cumsum
from shardwise.numpy.shapes import resize
from shardwise.typing import ArrayLike, Arrays, DTypeLike

_SELECTION = ARRAYS.extended({"size": Parameter(error=TRACED_WITHOUT_SIZE)})
_STORE = ARRAYS.extended({"inplace": "must be False."}, "A new array of the shape and dtype of `arr`.")


@documented(ARRAYS, returns="An array of the broadcast shape and the promoted dtype of the choices.")
def choose(a: ArrayLike, choices: Arrays, out: None = None, mode: str = "raise") -> Array:
    """Build an array by choosing each element from one of several arrays.

    The indices and all choices broadcast against each other.

    Args:
        a: the integer index of the choice for each element.
        choices: a sequence of arrays, or an array whose first dim is the choices.
        mode: what happens to indices out of bounds: "raise" raises an error, "clip" clamps them, "wrap" takes them
            modulo the number of choices. "raise" needs concrete indices, so choose another mode under `jit`.

    Raises:
        ValueError: if `a` is not of integers, there are no choices, `mode` is unknown, or an index is out of bounds
            with mode "raise".
        ConcretizationTypeError: if `a` is traced and `mode` is "raise".

    Example:
        >>> jnp.choose(jnp.array([0, 1, 0]), [jnp.array([1, 2, 3]), jnp.array([10, 20, 30])])
        Array([ 1, 20,  3], dtype=int32)
    """
    reject_out("choose", out)
    index_type = type_of(a, "choose")
    if not is_integer(index_type.dtype):
        raise ValueError(f"choose: the indices of choices must be integers, not {index_type}")
    choice_list = list(choices)
    if not choice_list:
        raise ValueError("choose: needs at least one choice")
    index = _in_bounds("choose", a, len(choice_list), mode, ("raise", "wrap", "clip"))
    return _choose(index, *choice_list)


def _in_bounds(name: str, index: ArrayLike, size: int, mode: str, modes: Sequence[str]) -> Any:
    """Bring the indices of a dim of size `size` in bounds according to `mode`."""
    if mode not in modes:
        raise ValueError(f"{name}: mode must be {', '.join(modes[:-1])} or {modes[-1]}, not {mode!r}")
    if mode == "raise":
        concrete = concrete_value(name, index, "mode='raise' cannot check its bounds; use mode='clip' or mode='wrap'")
        if concrete.size and (concrete.min() < 0 or concrete.max() >= size):
            raise ValueError(
                f"{name}: indices from {concrete.min()} to {concrete.max()} are out of bounds for size {size}"
            )
    if mode == "wrap":
        return arithmetic.remainder(index, size)
    return _clamp(index, limit=size - 1) if mode == "clip" else index


@compiled_function
def _clamp(index: ArrayLike, *, limit: int) -> Any:
    return clamp_index(as_index(index), limit)


@compiled_function
def _choose(index: ArrayLike, *choices: ArrayLike) -> Any:
    cases = promote_and_broadcast("choose", choices)
    shape = broadcast_shapes("choose", type_of(index).shape, cases[0].type.shape)
    which = methods.astype(broadcast_to_shape(as_operand(index), shape), dtype=np.int32)
    operands = [broadcast_to_shape(astype_weak(case, case.type.dtype, False), shape) for case in cases]
    return select_n(which, *operands) if len(operands) > 1 else operands[0]


def select(condlist: Sequence[ArrayLike], choicelist: Sequence[ArrayLike], default: ArrayLike = 0) -> Array:
    """Select each element from the choice of the first condition that is true there.

    Args:
        condlist: boolean arrays.
        choicelist: arrays, one per condition.
        default: the value for elements where no condition is true.

    Returns:
        An array of the broadcast shape of all arguments, in the promoted dtype of the choices and the default.

    Raises:
        ValueError: if there are no conditions, or if the numbers of conditions and choices differ.

    Example:
        >>> x = jnp.arange(4)
        >>> jnp.select([x < 1, x < 3], [x + 10, x + 20], -1)
        Array([10, 21, 22, -1], dtype=int32)
    """
    conditions, choices = list(condlist), list(choicelist)
    if len(conditions) != len(choices):
        raise ValueError(f"select: {len(conditions)} conditions for {len(choices)} choices; pass one choice each")
    if not conditions:
        raise ValueError("select: needs at least one condition")
    return _select(default, *conditions, *choices)


@compiled_function
def _select(default: ArrayLike, *conditions_and_choices: ArrayLike) -> Any:
    count = len(conditions_and_choices) // 2
    conditions = conditions_and_choices[:count]
    *choices, result = promote_and_broadcast("select", (*conditions_and_choices[count:], default))
    for condition, choice in reversed(list(zip(conditions, choices, strict=True))):
        result = methods.where(condition, choice, result)
    return result


@documented(_SELECTION, returns="The selected slices, in their order in `a`.")
def compress(
    condition: ArrayLike,
    a: ArrayLike,
    axis: int | None = None,
    *,
    size: int | None = None,
    fill_value: ArrayLike = 0,
    out: None = None,
) -> Array:
    """Return the slices along an axis for which a condition is true.

    The size of the result depends on the values of `condition`, so under `jit` pass a static `size`.

    Args:
        condition: a 1-D boolean array, at most as long as the axis.
        axis: the axis to select along; if None, `a` is flattened first.
        size: the static number of slices in the result: further ones are dropped, missing ones are filled.
        fill_value: the value of missing slices if `size` is given.

    Raises:
        ValueError: if `condition` is not 1-D, is longer than the axis (with true elements there, or with `size`), or if
            `size` is negative or exceeds the size of the axis.

    Example:
        >>> jnp.compress(jnp.array([True, False, True]), jnp.array([1, 2, 3]))
        Array([1, 3], dtype=int32)
    """
    reject_out("compress", out)
    condition_type, x = type_of(condition, "compress"), as_operand(a, "compress")
    if condition_type.ndim != 1:
        raise ValueError(f"compress: the condition must be 1-D, not {condition_type}")
    if axis is None:
        x, axis = methods.reshape(x, shape=-1), 0
    dim = canonical_axis("compress", axis, x.type.ndim)
    dim_size = x.type.shape[dim]
    if condition_type.size > dim_size:
        if size is not None or np.asarray(condition)[dim_size:].any():
            raise ValueError(f"compress: the condition {condition_type} is longer than dim {dim} of {x.type}")
        condition = as_operand(condition)[:dim_size]
    if size is None:
        return take(x, nonzero(condition)[0], dim, mode="clip")
    if not 0 <= operator.index(size) <= dim_size:
        raise ValueError(f"compress: size must be from 0 to {dim_size}, the size of dim {dim} of {x.type}, not {size}")
    return _compress(x, condition, fill_value, dim=dim, size=operator.index(size))


@compiled_function
def _compress(x: Array, condition: ArrayLike, fill: ArrayLike, *, dim: int, size: int) -> Any:
    shape = (*x.type.shape[:dim], size, *x.type.shape[dim + 1 :])
    (indices,) = nonzero(condition, size=size, fill_value=x.type.shape[dim])
    taken = take(x, indices, dim, mode="clip")
    row_shape = tuple(size if d == dim else 1 for d in range(len(shape)))
    is_valid = broadcast_to_shape(
        Reshape(row_shape)(methods.compare(indices, x.type.shape[dim], direction="LT")), shape
    )
    padding = broadcast_to_shape(astype_weak(as_operand(fill), x.type.dtype, x.type.weak), shape)
    return methods.where(is_valid, taken, padding)


@documented(_SELECTION, returns="A 1-D array of the selected elements.")
def extract(condition: ArrayLike, arr: ArrayLike, *, size: int | None = None, fill_value: ArrayLike = 0) -> Array:
    """Return the elements for which a condition is true, as a 1-D array.

    The size of the result depends on the values of `condition`, so under `jit` pass a static `size`.

    Args:
        condition: a boolean array; it is flattened.
        arr: the array; it is flattened.
        size: the static size of the result: further elements are dropped, missing ones are filled.
        fill_value: the value of missing elements if `size` is given.

    Raises:
        ValueError: if `size` is negative or exceeds the size of `arr`, or if `condition` has true elements past the end
            of `arr`.

    Example:
        >>> jnp.extract(jnp.array([[True, False], [False, True]]), jnp.array([[1, 2], [3, 4]]))
        Array([1, 4], dtype=int32)
    """
    flat_condition = methods.reshape(condition, shape=-1)
    return compress(flat_condition, methods.reshape(arr, shape=-1), size=size, fill_value=fill_value)


@documented(_STORE)
def place(arr: ArrayLike, mask: ArrayLike, vals: ArrayLike, *, inplace: bool = True) -> Array:
    """Return an array with the elements selected by a mask replaced by consecutive values.

    Arrays are immutable, so `inplace=False` is required and the result is a new array.

    Args:
        mask: a boolean array with as many elements as `arr`.
        vals: the values, flattened; they repeat if there are fewer than true elements in `mask`.

    Raises:
        ValueError: if `inplace` is true, the sizes of `mask` and `arr` differ, or `vals` is empty.

    Example:
        >>> jnp.place(jnp.array([1, 2, 3]), jnp.array([True, False, True]), jnp.array([7, 8]), inplace=False)
        Array([7, 2, 8], dtype=int32)
    """
    _require_out_of_place("place", inplace)
    arr_type, vals_type = type_of(arr, "place"), type_of(vals, "place")
    if type_of(mask, "place").size != arr_type.size:
        raise ValueError(f"place: the mask must have as many elements as {arr_type}, not {type_of(mask)}")
    if not vals_type.size:
        raise ValueError(f"place: vals must not be empty: {vals_type}")
    return _place(arr, mask, vals) if arr_type.size else as_operand(arr)


@compiled_function
def _place(x: ArrayLike, mask: ArrayLike, values: ArrayLike) -> Any:
    x, mask = as_operand(x), arithmetic.as_bool(mask, "place")
    if type_of(values).size == 1:
        new = broadcast_to_shape(Reshape(())(as_operand(values)), x.type.shape)
    else:
        rank = arithmetic.subtract(cumsum(Reshape((x.type.size,))(mask)), 1)  # of each true element among the true ones
        new = take(Reshape((type_of(values).size,))(as_operand(values)), rank, mode="wrap")
        new = Reshape(x.type.shape)(new)
    return methods.where(Reshape(x.type.shape)(mask), astype_weak(new, x.type.dtype, x.type.weak), x)


def _require_out_of_place(name: str, inplace: bool) -> None:
    if inplace:
        raise ValueError(f"{name}: arrays are immutable; pass `inplace=False` and use the result")


@documented(_STORE, returns="A new array of the shape and dtype of `a`.")
def put(a: ArrayLike, ind: ArrayLike, v: ArrayLike, mode: str | None = None, *, inplace: bool = True) -> Array:
    """Return an array with the elements at flat indices replaced.

    Arrays are immutable, so `inplace=False` is required and the result is a new array.

    Args:
        ind: integer indices into the flattened array.
        v: the values, flattened; they repeat if there are fewer than indices.
        mode: what happens to indices out of bounds: "clip" clamps them, "wrap" takes them modulo the size. None counts
            negative indices from the end and clamps the others.

    Raises:
        ValueError: if `inplace` is true or `mode` is unknown.
        TypeError: if `ind` is not of integers.
        NotImplementedError: if `mode` is "raise".

    Example:
        >>> jnp.put(jnp.array([1, 2, 3]), jnp.array([0, -1]), jnp.array([7, 8]), inplace=False)
        Array([7, 2, 8], dtype=int32)
    """
    _require_out_of_place("put", inplace)
    if mode == "raise":
        raise NotImplementedError("put: mode='raise' is not supported; use 'clip' or 'wrap'")
    if mode not in (None, "clip", "wrap"):
        raise ValueError(f"put: mode must be 'clip' or 'wrap', not {mode!r}")
    a_type, index_type, value_type = (type_of(x, "put") for x in (a, ind, v))
    if not is_integer(index_type.dtype):
        raise TypeError(f"put: indices must be integers, not {index_type}")
    if not (index_type.size and value_type.size and a_type.size):
        return as_operand(a)
    values = resize(v, (index_type.size,)) if value_type.ndim else v
    return _put(a, ind, values, wraps=mode == "wrap", negative_from_end=mode is None)


@compiled_function
def _put(x: ArrayLike, indices: ArrayLike, values: ArrayLike, *, wraps: bool, negative_from_end: bool) -> Any:
    x = as_operand(x)
    flat, index = Reshape((x.type.size,))(x), as_index(indices)
    if negative_from_end:
        index = wrap_negative_index(index, x.type.size)
    index = arithmetic.remainder(index, x.type.size) if wraps else clamp_index(index, x.type.size - 1)
    new = astype_weak(as_operand(values), x.type.dtype, x.type.weak)
    return Reshape(x.type.shape)(flat.at[Reshape((index.type.size,))(index)].set(new))


@documented(_STORE)
def put_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    values: ArrayLike,
    axis: int | None,
    inplace: bool = True,
    *,
    mode: str | None = None,
) -> Array:
    """Return an array with elements replaced at indices along an axis.

    This is the inverse of `take_along_axis`: each 1-D slice along `axis` has its own indices. Arrays are immutable, so
    `inplace=False` is required and the result is a new array.

    Args:
        indices: integer indices along `axis`, of the rank of `arr`; the other dims broadcast.
        values: the values to store; they broadcast against `indices`.
        axis: the axis that is indexed; if None, `arr` is flattened first.
        mode: what happens to indices out of bounds: "drop" (the default) ignores them, "clip" clamps them.

    Raises:
        ValueError: if `inplace` is true, the ranks of `arr` and `indices` differ, `axis` is out of bounds or `mode` is
            unknown.
        TypeError: if `indices` is not of integers.

    Example:
        >>> jnp.put_along_axis(jnp.zeros((2, 2)), jnp.array([[0], [1]]), 5, axis=1, inplace=False)
        Array([[5., 0.],
               [0., 5.]], dtype=float32)
    """
    _require_out_of_place("put_along_axis", inplace)
    out_of_bounds = index_mode("put_along_axis", mode, "drop")
    x, index_type = as_operand(arr, "put_along_axis"), type_of(indices, "put_along_axis")
    if not is_integer(index_type.dtype):
        raise TypeError(f"put_along_axis: indices must be integers, not {index_type}")
    shape = x.type.shape
    if axis is None:
        x, axis = methods.reshape(x, shape=-1), 0
    if index_type.ndim != x.type.ndim:
        raise ValueError(f"put_along_axis: the indices {index_type} must have the rank of {x.type}")
    dim = canonical_axis("put_along_axis", axis, x.type.ndim)
    result = _put_along_axis(x, indices, values, dim=dim, clips=out_of_bounds == "clip")
    return methods.reshape(result, shape=shape)


@compiled_function
def _put_along_axis(x: Array, indices: ArrayLike, values: ArrayLike, *, dim: int, clips: bool) -> Any:
    index = wrap_negative_index(as_index(indices), x.type.shape[dim])
    if clips:
        index = clamp_index(index, x.type.shape[dim] - 1)
    shape = (*x.type.shape[:dim], index.type.shape[dim], *x.type.shape[dim + 1 :])
    index = methods.broadcast_to(index, shape=shape)
    new = methods.broadcast_to(astype_weak(as_operand(values), x.type.dtype, x.type.weak), shape=shape)
    batch_dims = tuple(d for d in range(x.type.ndim) if d != dim)
    return Scatter((), (dim,), batch_dims, batch_dims, (dim,), combine=None)(x, Reshape((*shape, 1))(index), new)


def ravel_multi_index(
    multi_index: Sequence[Any],
    dims: Sequence[int],
    mode: str = "raise",
    order: str = "C",
    *,
    dtype: DTypeLike | None = None,
) -> Array:
    """Convert a tuple of index arrays into flat indices.

    Args:
        multi_index: one integer array of indices per dim.
        dims: the shape of the array that is indexed.
        mode: what happens to indices out of bounds: "raise" raises an error, "clip" clamps them, "wrap" takes them
            modulo the size, "ignore" uses them unchanged. "raise" needs concrete indices, so choose another mode under
            `jit`.
        order: "C" if the last index varies fastest, "F" if the first does.
        dtype: the dtype of the result; the promoted dtype of the indices if None.

    Returns:
        The indices into the flattened array, of the broadcast shape of the index arrays.

    Raises:
        ValueError: if the number of index arrays is not the number of dims, the indices are not integers, `order` or
            `mode` is unknown, an index is out of bounds with mode "raise", or the dtype cannot hold all flat indices.
        ConcretizationTypeError: if an index is traced and `mode` is "raise".

    Example:
        >>> jnp.ravel_multi_index((jnp.array([0, 1]), jnp.array([2, 0])), (2, 3))
        Array([2, 3], dtype=int32)
    """
    indices, sizes = list(multi_index), tuple(map(operator.index, dims))
    if len(indices) != len(sizes) or not indices:
        raise ValueError(f"ravel_multi_index: {len(indices)} index arrays for the {len(sizes)} dims of shape {sizes}")
    if order not in ("C", "F"):
        raise ValueError(f"ravel_multi_index: order must be 'C' or 'F', not {order!r}")
    index_types = [type_of(index, "ravel_multi_index") for index in indices]
    if not all(is_integer(type.dtype) for type in index_types):
        raise ValueError(f"ravel_multi_index: indices must be integers, not {', '.join(map(str, index_types))}")
    checked = [
        _in_bounds("ravel_multi_index", index, size, mode, ("raise", "wrap", "clip", "ignore"))
        for index, size in zip(indices, sizes, strict=True)
    ]
    out_dtype = (
        promote_dtypes("ravel_multi_index", index_types)[0]
        if dtype is None
        else requested_dtype("ravel_multi_index", dtype)
    )
    if integer_range(out_dtype)[1] < math.prod(sizes) - 1:
        raise ValueError(
            f"ravel_multi_index: {out_dtype} cannot hold all flat indices of shape {sizes}; pass a wider `dtype`"
        )
    strides = [math.prod(sizes[dim + 1 :] if order == "C" else sizes[:dim]) for dim in range(len(sizes))]
    terms = [
        arithmetic.multiply(methods.astype(index, dtype=out_dtype), stride)
        for index, stride in zip(checked, strides, strict=True)
    ]
    total = terms[0]
    for term in terms[1:]:
        total = arithmetic.add(total, term)
    return total
