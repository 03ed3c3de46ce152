"""The same elements in other shapes: repeated, in other dims, in another order, apart and together.

Shapes are known: a size that is traced is an error that says so. `out_sharding` pins where the result lies.
"""

import math
import operator
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from shardwise.api.placement import with_sharding_constraint
from shardwise.compiler.arrays import methods, operands
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.operands import as_operand, canonical_axes, compiled_function, type_of
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.movement import Reshape, permuted
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along


def constrain_sharding(x: Any, out_sharding: Any) -> Any:
    """`x`, pinned to `out_sharding` where there is one."""
    return x if out_sharding is None else with_sharding_constraint(x, out_sharding)


def sizes_of(name: str, shape: Any) -> tuple[int, ...]:
    """A shape as a tuple of integers that are known now and not negative."""
    found = tuple(operator.index(size) for size in shape)
    if any(size < 0 for size in found):
        raise TypeError(f"{name}: a shape has no negative sizes: {found}")
    return found


def broadcast(operand: Any, sizes: Sequence[int], *, out_sharding: Any = None) -> Any:
    """`operand` repeated along new dims of these sizes, in front of its own.

    >>> lax.broadcast(jnp.array([1, 2]), (3,))
    Array([[1, 2],
           [1, 2],
           [1, 2]], dtype=int32)
    """
    x = as_operand(operand, "broadcast")
    front = sizes_of("broadcast", sizes)
    own = tuple(range(len(front), len(front) + x.type.ndim))
    return constrain_sharding(Broadcast((*front, *x.type.shape), own)(x) if front else x, out_sharding)


def broadcast_in_dim(
    operand: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int], *, out_sharding: Any = None
) -> Any:
    """`operand` repeated to `shape`: its dim i, which has size 1 or that of the target, is dim
    `broadcast_dimensions[i]` there.

    >>> lax.broadcast_in_dim(jnp.array([1, 2]), (2, 3), (0,))
    Array([[1, 1, 1],
           [2, 2, 2]], dtype=int32)
    """
    name = "broadcast_in_dim"
    x = type_of(operand, name)
    target = sizes_of(name, shape)
    dims = tuple(map(operator.index, broadcast_dimensions))
    if len(dims) != x.ndim:
        raise TypeError(f"{name}: needs one of broadcast_dimensions for each dim of {x}, not {dims}")
    if not all(0 <= dim < len(target) for dim in dims) or list(dims) != sorted(set(dims)):
        raise TypeError(f"{name}: broadcast_dimensions must be dims of shape {target}, ascending, not {dims}")
    if any(size not in (1, target[dim]) for size, dim in zip(x.shape, dims, strict=True)):
        raise TypeError(f"{name}: each dim of {x} must have size 1 or that of its dim in {dims} of shape {target}")
    return constrain_sharding(_in_dim(operand, shape=target, dims=dims), out_sharding)


@compiled_function
def _in_dim(x: Any, *, shape: tuple[int, ...], dims: tuple[int, ...]) -> Any:
    x = as_operand(x)
    kept = [(size, dim) for size, dim in zip(x.type.shape, dims, strict=True) if size == shape[dim]]
    if len(kept) < x.type.ndim:
        x = Reshape(tuple(size for size, _ in kept))(x)
    return x if x.type.shape == shape else Broadcast(shape, tuple(dim for _, dim in kept))(x)


def broadcast_like(arr: Any, like_arr: Any) -> Any:
    """`arr` repeated to the shape of `like_arr`, by numpy's rule.

    >>> lax.broadcast_like(jnp.array([1, 2]), jnp.zeros((2, 2)))
    Array([[1, 2],
           [1, 2]], dtype=int32)
    """
    x, like = type_of(arr, "broadcast_like"), type_of(like_arr, "broadcast_like")
    lead = like.ndim - x.ndim
    if lead < 0 or any(size not in (1, wanted) for size, wanted in zip(x.shape, like.shape[lead:], strict=True)):
        raise ValueError(f"broadcast_like: {x} cannot be repeated to the shape of {like}")
    return methods.broadcast_to(arr, shape=like.shape)


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape to which arrays of these shapes are repeated, by numpy's rule.

    >>> lax.broadcast_shapes((3, 1), (4,))
    (3, 4)
    """
    found = [tuple(map(operator.index, shape)) for shape in shapes]
    try:
        return operands.broadcast_shapes("broadcast_shapes", *found) if found else ()
    except TypeError as error:
        raise ValueError(str(error)) from None


def broadcast_to_rank(x: Any, rank: int) -> Any:
    """`x` with dims of size 1 in front, so that it has `rank` dims.

    >>> lax.broadcast_to_rank(jnp.array([1, 2]), 3).shape
    (1, 1, 2)
    """
    ndim = type_of(x, "broadcast_to_rank").ndim
    if rank < ndim:
        raise ValueError(f"broadcast_to_rank: {type_of(x)} has more than {rank} dims")
    return broadcast(x, (1,) * (rank - ndim))


def reshape(
    operand: Any, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None, *, out_sharding: Any = None
) -> Any:
    """The same elements, in row-major order, in another shape; first with the dims in the order `dimensions`.

    >>> lax.reshape(jnp.array([[1, 2, 3], [4, 5, 6]]), (3, 2), dimensions=(1, 0))
    Array([[1, 4],
           [2, 5],
           [3, 6]], dtype=int32)
    """
    x = type_of(operand, "reshape")
    sizes = sizes_of("reshape", new_sizes)
    if math.prod(sizes) != x.size:
        raise TypeError(f"reshape: {x} has {x.size} elements, shape {sizes} has {math.prod(sizes)}")
    order = tuple(range(x.ndim)) if dimensions is None else _permutation("reshape", dimensions, x)
    return constrain_sharding(_reshaped(operand, sizes=sizes, order=order), out_sharding)


@compiled_function
def _reshaped(x: Any, *, sizes: tuple[int, ...], order: tuple[int, ...]) -> Any:
    x = permuted(as_operand(x), order)
    return x if x.type.shape == sizes else Reshape(sizes)(x)


def transpose(operand: Any, permutation: Sequence[int]) -> Any:
    """Dim i of the result is dim `permutation[i]` of `operand`.

    >>> lax.transpose(jnp.array([[1, 2], [3, 4]]), (1, 0))
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    x = as_operand(operand, "transpose")
    return permuted(x, _permutation("transpose", permutation, x.type))


def _permutation(name: str, permutation: Any, type: ArrayType) -> tuple[int, ...]:
    order = tuple(map(operator.index, permutation))
    if sorted(order) != list(range(type.ndim)):
        raise TypeError(f"{name}: {order} is not a permutation of the dims of {type}")
    return order


def expand_dims(array: Any, dimensions: Sequence[int]) -> Any:
    """`array` with dims of size 1, which are the dims `dimensions` of the result.

    >>> lax.expand_dims(jnp.arange(3), (0, 2)).shape
    (1, 3, 1)
    """
    x = as_operand(array, "expand_dims")
    added = tuple(map(operator.index, dimensions))
    rank = x.type.ndim + len(added)
    dims = canonical_axes("expand_dims", added, x.type.with_shape((1,) * rank))
    rest = iter(x.type.shape)
    return Reshape(tuple(1 if dim in dims else next(rest) for dim in range(rank)))(x) if dims else x


def squeeze(array: Any, dimensions: Sequence[int]) -> Any:
    """`array` without these dims, each of size 1.

    >>> lax.squeeze(jnp.ones((1, 3, 1)), (0,)).shape
    (3, 1)
    """
    x = as_operand(array, "squeeze")
    dims = canonical_axes("squeeze", tuple(map(operator.index, dimensions)), x.type)
    if any(x.type.shape[dim] != 1 for dim in dims):
        raise ValueError(f"squeeze: dims {dims} of {x.type} must have size 1 to be left out")
    return Reshape(x.type.without(dims).shape)(x) if dims else x


def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Any:
    """`operand` with the dims from `start_dimension` up to `stop_dimension` as one; both count as in a slice.

    >>> lax.collapse(jnp.ones((2, 3, 4)), 1).shape
    (2, 12)
    """
    x = type_of(operand, "collapse")
    low, high, _ = slice(start_dimension, stop_dimension).indices(x.ndim)
    if high < low:
        raise ValueError(f"collapse: from dim {start_dimension} of {x} to dim {stop_dimension} there are none")
    return reshape(operand, (*x.shape[:low], math.prod(x.shape[low:high]), *x.shape[high:]))


def tile(operand: Any, reps: Sequence[int]) -> Any:
    """`operand` one after the other, `reps[i]` times along each dim i.

    >>> lax.tile(jnp.array([[1, 2]]), (2, 2))
    Array([[1, 2, 1, 2],
           [1, 2, 1, 2]], dtype=int32)
    """
    x = type_of(operand, "tile")
    counts = tuple(map(operator.index, reps))
    if len(counts) != x.ndim or any(count < 0 for count in counts):
        raise ValueError(f"tile: needs a count for each dim of {x}, 0 or more, not {counts}")
    return _tiled(operand, counts=counts)


@compiled_function
def _tiled(x: Any, *, counts: tuple[int, ...]) -> Any:
    """Repeated along a new dim before each dim, with which that is merged."""
    x = as_operand(x)
    parts = [part for count, size in zip(counts, x.type.shape, strict=True) for part in (count, size)]
    spread = Broadcast(tuple(parts), tuple(range(1, len(parts), 2)))(x)
    whole = tuple(count * size for count, size in zip(counts, x.type.shape, strict=True))
    return Reshape(whole)(spread) if any(count != 1 for count in counts) else x


def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> list[Any]:
    """Parts of these sizes, one after the other along `axis`.

    >>> lax.split(jnp.arange(5), (2, 3))
    [Array([0, 1], dtype=int32), Array([2, 3, 4], dtype=int32)]
    """
    x = as_operand(operand, "split")
    dim = canonical_axis("split", axis, x.type.ndim)
    parts = tuple(map(operator.index, sizes))
    if any(size < 0 for size in parts) or sum(parts) != x.type.shape[dim]:
        raise ValueError(f"split: sizes {parts} must add up to {x.type.shape[dim]}, the size of dim {dim} of {x.type}")
    return [slice_along(x, dim, start, limit) for start, limit in pairwise(accumulate(parts, initial=0))]


def stack(operands: Sequence[Any], axis: int = 0) -> Any:
    """Arrays of one shape and dtype along a new dim, which is dim `axis` of the result.

    >>> lax.stack([jnp.array([1, 2]), jnp.array([3, 4])], axis=1)
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    arrays = list(operands)
    types = [type_of(x, "stack") for x in arrays]
    if not types:
        raise ValueError("stack: needs at least one array")
    if len({(type.shape, type.dtype) for type in types}) != 1:
        raise TypeError(f"stack: arrays must have one shape and one dtype, not {', '.join(map(str, types))}")
    return _stacked(*arrays, dim=canonical_axis("stack", axis, types[0].ndim + 1))


@compiled_function
def _stacked(*arrays: Any, dim: int) -> Any:
    rows = [expand_dims(x, (dim,)) for x in arrays]
    return Concatenate(dim)(*rows) if len(rows) > 1 else rows[0]


def unstack(x: Any, axis: int = 0) -> tuple[Any, ...]:
    """The slices along `axis`, each without that dim.

    >>> lax.unstack(jnp.array([[1, 2], [3, 4]]), axis=1)
    (Array([1, 3], dtype=int32), Array([2, 4], dtype=int32))
    """
    x = as_operand(x, "unstack")
    dim = canonical_axis("unstack", axis, x.type.ndim)
    return tuple(index_in_dim(x, number, dim, keepdims=False) for number in range(x.type.shape[dim]))


def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Any:
    """The element at `index` along one dim, which stays as one of size 1 if `keepdims`.

    >>> lax.index_in_dim(jnp.arange(6).reshape(2, 3), -1, axis=1)
    Array([[2],
           [5]], dtype=int32)
    """
    x = as_operand(operand, "index_in_dim")
    dim = canonical_axis("index_in_dim", axis, x.type.ndim)
    at, size = operator.index(index), x.type.shape[dim]
    if not -size <= at < size:
        raise IndexError(f"index_in_dim: index {at} lies outside dim {dim} of {x.type}")
    found = slice_along(x, dim, at % size, at % size + 1)
    return found if keepdims else Reshape(x.type.without((dim,)).shape)(found)


def shape_as_value(shape: Sequence[int]) -> Any:
    """The sizes of a shape as an array.

    >>> lax.shape_as_value((2, 3))
    array([2, 3], dtype=int32)
    """
    return np.asarray(sizes_of("shape_as_value", shape), np.int32)


def dtype(x: Any) -> Any:
    """The dtype that `x` has as an array.

    >>> lax.dtype(1.0)
    dtype('float32')
    """
    return type_of(x, "dtype").dtype
