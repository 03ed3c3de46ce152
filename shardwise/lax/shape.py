"""Broadcasting, reshaping, transposing, splitting and stacking.

Shapes must be static: a traced size is an error. `out_sharding` pins the sharding of the result.
"""

import math
import operator
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, SupportsIndex

import numpy as np

from shardwise.api.meshes.out_sharding import constrain_sharding, decided_by
from shardwise.base.docstrings import documented
from shardwise.compiler.arrays import methods, operands
from shardwise.compiler.arrays.exact_operands import check_unsharded_dims
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, canonical_axes, compiled_function, type_of
from shardwise.compiler.arrays.promotion import canonical_dtype, requested_dtype
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.placement.reshard import reshard_to
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.movement import Reshape, permute
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along
from shardwise.errors import ShardingTypeError
from shardwise.lax.families import ARRAY
from shardwise.typing import ArrayLike, DTypeLike, OutSharding

MAX_CONCATENATED_COPIES = 8  # `tile` broadcasts more copies than these


def sizes_of(name: str, shape: Sequence[SupportsIndex]) -> tuple[int, ...]:
    """Convert a shape to a tuple of static, non-negative integers."""
    sizes = tuple(operator.index(size) for size in shape)
    if any(size < 0 for size in sizes):
        raise TypeError(f"{name}: the sizes of a shape must not be negative: {sizes}")
    return sizes


@documented(ARRAY, returns="An array of shape `(*sizes, *operand.shape)`.")
def broadcast(operand: ArrayLike, sizes: Sequence[int], *, out_sharding: OutSharding = None) -> Array:
    """Broadcast an array along new leading dims.

    Args:
        sizes: the sizes of the new dims.

    Raises:
        TypeError: if a size is negative.

    Example:
        >>> lax.broadcast(jnp.array([1, 2]), (3,))
        Array([[1, 2],
               [1, 2],
               [1, 2]], dtype=int32)
    """
    x = as_operand(operand, "broadcast")
    lead = sizes_of("broadcast", sizes)
    dims = tuple(range(len(lead), len(lead) + x.type.ndim))
    return constrain_sharding(Broadcast((*lead, *x.type.shape), dims)(x) if lead else x, out_sharding)


@documented(ARRAY, returns="An array of shape `shape`.")
def broadcast_in_dim(
    operand: ArrayLike, shape: Sequence[int], broadcast_dimensions: Sequence[int], *, out_sharding: OutSharding = None
) -> Array:
    """Broadcast an array to a shape, with an explicit mapping of its dims.

    Args:
        shape: the shape of the result.
        broadcast_dimensions: for each dim of `operand`, the dim of the result that it becomes, in ascending order. The
            sizes must be equal, or 1 in `operand`.

    Raises:
        TypeError: if `broadcast_dimensions` does not map each dim to a dim of a compatible size.

    Example:
        >>> lax.broadcast_in_dim(jnp.array([1, 2]), (2, 3), (0,))
        Array([[1, 1, 1],
               [2, 2, 2]], dtype=int32)
    """
    name = "broadcast_in_dim"
    x = type_of(operand, name)
    target = sizes_of(name, shape)
    dims = tuple(map(operator.index, broadcast_dimensions))
    if len(dims) != x.ndim:
        raise TypeError(f"{name}: broadcast_dimensions must have one dim for each dim of {x}, not {dims}")
    if not all(0 <= dim < len(target) for dim in dims) or list(dims) != sorted(set(dims)):
        raise TypeError(f"{name}: broadcast_dimensions must be ascending dims of shape {target}, not {dims}")
    if any(size not in (1, target[dim]) for size, dim in zip(x.shape, dims, strict=True)):
        raise TypeError(
            f"{name}: the dims of {x} must have size 1 or the sizes of the dims {dims} of the target shape {target}"
        )
    return constrain_sharding(_broadcast_in_dim(operand, shape=target, dims=dims), out_sharding)


@compiled_function
def _broadcast_in_dim(x: ArrayLike, *, shape: tuple[int, ...], dims: tuple[int, ...]) -> Any:
    array = as_operand(x)
    kept = [(size, dim) for size, dim in zip(array.type.shape, dims, strict=True) if size == shape[dim]]
    if len(kept) < array.type.ndim:
        array = Reshape(tuple(size for size, _ in kept))(array)
    return array if array.type.shape == shape else Broadcast(shape, tuple(dim for _, dim in kept))(array)


def broadcast_like(arr: ArrayLike, like_arr: ArrayLike) -> Array:
    """Broadcast an array to the shape of another, by the rule of NumPy.

    Args:
        arr: an array.
        like_arr: the array of the target shape.

    Returns:
        An array of the shape of `like_arr`.

    Raises:
        ValueError: if `arr` does not broadcast to that shape.
        ShardingTypeError: if the result and `like_arr` are sharded differently along Explicit mesh axes.

    Example:
        >>> lax.broadcast_like(jnp.array([1, 2]), jnp.zeros((2, 2)))
        Array([[1, 2],
               [1, 2]], dtype=int32)
    """
    x, like = type_of(arr, "broadcast_like"), type_of(like_arr, "broadcast_like")
    lead = like.ndim - x.ndim
    if lead < 0 or any(size not in (1, target) for size, target in zip(x.shape, like.shape[lead:], strict=True)):
        raise ValueError(f"broadcast_like: {x} does not broadcast to the shape of {like}")
    result = methods.broadcast_to(arr, shape=like.shape)
    if result.type.explicit not in (None, like.explicit):
        raise ShardingTypeError(
            f"broadcast_like: {x} broadcasts to {result.type}, which is sharded differently than {like}. Reshard it "
            f"first: `reshard(x, P(...))`."
        )
    return reshard_to(result, like.explicit)


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape to which arrays of the given shapes broadcast, by the rule of NumPy.

    Args:
        *shapes: the shapes.

    Returns:
        The broadcast shape.

    Raises:
        ValueError: if the shapes do not broadcast.

    Example:
        >>> lax.broadcast_shapes((3, 1), (4,))
        (3, 4)
    """
    static_shapes = [tuple(map(operator.index, shape)) for shape in shapes]
    return operands.broadcast_shapes("broadcast_shapes", *static_shapes) if static_shapes else ()


@documented(ARRAY, returns="The array with `rank` dims.", raises=["ValueError: if `x` has more than `rank` dims."])
def broadcast_to_rank(x: ArrayLike, rank: int) -> Array:
    """Add leading dims of size 1 until an array has `rank` dims.

    Args:
        rank: the rank of the result.

    Example:
        >>> lax.broadcast_to_rank(jnp.array([1, 2]), 3).shape
        (1, 1, 2)
    """
    ndim = type_of(x, "broadcast_to_rank").ndim
    if rank < ndim:
        raise ValueError(f"broadcast_to_rank: {type_of(x)} has more than {rank} dims")
    return broadcast(x, (1,) * (rank - ndim))


@documented(ARRAY, returns="An array of shape `new_sizes`.")
def reshape(
    operand: ArrayLike,
    new_sizes: Sequence[int],
    dimensions: Sequence[int] | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Reshape an array, in row-major order.

    Args:
        new_sizes: the new shape.
        dimensions: a permutation of the dims that is applied first.

    Raises:
        TypeError: if the number of elements differs, or `dimensions` is not a permutation of the dims.

    Example:
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
    with decided_by(out_sharding):
        result = _reshape(operand, sizes=sizes, order=order)
    return constrain_sharding(result, out_sharding, keeps_sums=True)


@compiled_function
def _reshape(x: ArrayLike, *, sizes: tuple[int, ...], order: tuple[int, ...]) -> Any:
    array = permute(as_operand(x), order)
    return array if array.type.shape == sizes else Reshape(sizes)(array)


@documented(ARRAY, returns="The transposed array.")
def transpose(operand: ArrayLike, permutation: Sequence[int]) -> Array:
    """Permute the dims of an array.

    Args:
        permutation: for each dim of the result, the dim of `operand` that it is.

    Raises:
        TypeError: if `permutation` is not a permutation of the dims.

    Example:
        >>> lax.transpose(jnp.array([[1, 2], [3, 4]]), (1, 0))
        Array([[1, 3],
               [2, 4]], dtype=int32)
    """
    x = as_operand(operand, "transpose")
    return permute(x, _permutation("transpose", permutation, x.type))


def _permutation(name: str, permutation: Any, type: ArrayType) -> tuple[int, ...]:
    order = tuple(map(operator.index, permutation))
    if sorted(order) != list(range(type.ndim)):
        raise TypeError(f"{name}: {order} is not a permutation of the dims of {type}")
    return order


@documented(ARRAY, returns="The array with the new dims.")
def expand_dims(array: ArrayLike, dimensions: Sequence[int]) -> Array:
    """Insert dims of size 1.

    Args:
        dimensions: the positions of the new dims in the result. Negative ones count from the end.

    Raises:
        ValueError: if a position does not exist in the result or repeats.

    Example:
        >>> lax.expand_dims(jnp.arange(3), (0, 2)).shape
        (1, 3, 1)
    """
    x = as_operand(array, "expand_dims")
    added = tuple(map(operator.index, dimensions))
    rank = x.type.ndim + len(added)
    dims = canonical_axes("expand_dims", added, x.type.with_shape((1,) * rank))
    rest = iter(x.type.shape)
    return Reshape(tuple(1 if dim in dims else next(rest) for dim in range(rank)))(x) if dims else x


@documented(ARRAY, returns="The array without these dims.")
def squeeze(array: ArrayLike, dimensions: Sequence[int]) -> Array:
    """Remove dims of size 1.

    Args:
        dimensions: the dims to remove. Negative ones count from the end.

    Raises:
        ValueError: if a dim does not exist, repeats, or does not have size 1.

    Example:
        >>> lax.squeeze(jnp.ones((1, 3, 1)), (0,)).shape
        (3, 1)
    """
    x = as_operand(array, "squeeze")
    dims = canonical_axes("squeeze", tuple(map(operator.index, dimensions)), x.type)
    if any(x.type.shape[dim] != 1 for dim in dims):
        raise ValueError(f"squeeze: dims {dims} of {x.type} must have size 1 to be removed")
    return Reshape(x.type.without(dims).shape)(x) if dims else x


@documented(ARRAY, returns="The array with the dims merged.", raises=["ValueError: if the start exceeds the stop."])
def collapse(operand: ArrayLike, start_dimension: int, stop_dimension: int | None = None) -> Array:
    """Collapse a range of dims into one.

    Args:
        start_dimension: the first dim of the range.
        stop_dimension: the end of the range, exclusive. None means the last dim is included. Both count as in a slice.

    Example:
        >>> lax.collapse(jnp.ones((2, 3, 4)), 1).shape
        (2, 12)
    """
    x = type_of(operand, "collapse")
    low, high, _ = slice(start_dimension, stop_dimension).indices(x.ndim)
    if high < low:
        raise ValueError(
            f"collapse: start_dimension {start_dimension} must not exceed stop_dimension {stop_dimension} in {x}"
        )
    return reshape(operand, (*x.shape[:low], math.prod(x.shape[low:high]), *x.shape[high:]))


@documented(ARRAY, returns="An array whose sizes are multiplied by `reps`.")
def tile(operand: ArrayLike, reps: Sequence[int]) -> Array:
    """Repeat an array along each dim.

    Args:
        reps: the number of repetitions along each dim.

    Raises:
        ValueError: if there is not one non-negative number for each dim.

    Example:
        >>> lax.tile(jnp.array([[1, 2]]), (2, 2))
        Array([[1, 2, 1, 2],
               [1, 2, 1, 2]], dtype=int32)
    """
    x = type_of(operand, "tile")
    counts = tuple(map(operator.index, reps))
    if len(counts) != x.ndim or any(count < 0 for count in counts):
        raise ValueError(f"tile: reps must have one non-negative number for each dim of {x}, not {counts}")
    check_unsharded_dims("tile", operand, [dim for dim, count in enumerate(counts) if count != 1])
    return _tile(operand, counts=counts)


@compiled_function
def _tile(x: ArrayLike, *, counts: tuple[int, ...]) -> Any:
    """Concatenate a few copies; broadcast many along a new dim before each dim, and merge the two.

    Devices exchange the shards of concatenated copies. If there are many copies, each device needs all of the operand.
    """
    array = as_operand(x)
    for dim, count in enumerate(counts):
        if 1 < count <= MAX_CONCATENATED_COPIES:
            array = Concatenate(dim)(*[array] * count)
    counts = tuple(1 if 1 < count <= MAX_CONCATENATED_COPIES else count for count in counts)
    parts = [part for count, size in zip(counts, array.type.shape, strict=True) for part in (count, size)]
    repeated = Broadcast(tuple(parts), tuple(range(1, len(parts), 2)))(array)
    merged_shape = tuple(count * size for count, size in zip(counts, array.type.shape, strict=True))
    return Reshape(merged_shape)(repeated) if any(count != 1 for count in counts) else array


@documented(ARRAY, returns="A list of arrays.")
def split(operand: ArrayLike, sizes: Sequence[int], axis: int = 0) -> list[Array]:
    """Split an array along an axis into parts of the given sizes.

    Args:
        sizes: the sizes of the parts.
        axis: the axis to split.

    Raises:
        ValueError: if the sizes are negative or do not add up to the size of the axis, or the axis does not exist.

    Example:
        >>> lax.split(jnp.arange(5), (2, 3))
        [Array([0, 1], dtype=int32), Array([2, 3, 4], dtype=int32)]
    """
    x = as_operand(operand, "split")
    dim = canonical_axis("split", axis, x.type.ndim)
    parts = tuple(map(operator.index, sizes))
    if any(size < 0 for size in parts) or sum(parts) != x.type.shape[dim]:
        raise ValueError(f"split: sizes {parts} must add up to {x.type.shape[dim]}, the size of dim {dim} of {x.type}")
    return [slice_along(x, dim, start, limit) for start, limit in pairwise(accumulate(parts, initial=0))]


def stack(operands: Sequence[Any], axis: int = 0) -> Array:
    """Stack arrays along a new dim.

    Args:
        operands: arrays of the same shape and dtype.
        axis: the position of the new dim in the result.

    Returns:
        The stacked array.

    Raises:
        ValueError: if there are no arrays, or `axis` does not exist in the result.
        TypeError: if the shapes or dtypes differ.

    Example:
        >>> lax.stack([jnp.array([1, 2]), jnp.array([3, 4])], axis=1)
        Array([[1, 3],
               [2, 4]], dtype=int32)
    """
    arrays = list(operands)
    types = [type_of(x, "stack") for x in arrays]
    if not types:
        raise ValueError("stack: needs at least one array")
    if len({(type.shape, type.dtype) for type in types}) != 1:
        raise TypeError(f"stack: arrays must have the same shape and dtype, not {', '.join(map(str, types))}")
    return _stack(*arrays, dim=canonical_axis("stack", axis, types[0].ndim + 1))


@compiled_function
def _stack(*arrays: ArrayLike, dim: int) -> Any:
    expanded = [expand_dims(x, (dim,)) for x in arrays]
    return Concatenate(dim)(*expanded) if len(expanded) > 1 else expanded[0]


@documented(ARRAY, returns="A tuple of arrays.", raises=["ValueError: if `axis` does not exist."])
def unstack(x: ArrayLike, axis: int = 0) -> tuple[Array, ...]:
    """Split an array into its slices along an axis.

    Args:
        axis: the axis to unstack. It is removed.

    Example:
        >>> lax.unstack(jnp.array([[1, 2], [3, 4]]), axis=1)
        (Array([1, 3], dtype=int32), Array([2, 4], dtype=int32))
    """
    x = as_operand(x, "unstack")
    dim = canonical_axis("unstack", axis, x.type.ndim)
    return tuple(index_in_dim(x, index, dim, keepdims=False) for index in range(x.type.shape[dim]))


@documented(ARRAY, returns="The slice.")
def index_in_dim(operand: ArrayLike, index: int, axis: int = 0, keepdims: bool = True) -> Array:
    """Return the slice at one static index along a dim.

    Args:
        index: the index, a Python integer. A negative one counts from the end.
        axis: the dim to index.
        keepdims: keep the indexed dim, with size 1.

    Raises:
        IndexError: if `index` is out of bounds.
        ValueError: if `axis` does not exist.

    Example:
        >>> lax.index_in_dim(jnp.arange(6).reshape(2, 3), -1, axis=1)
        Array([[2],
               [5]], dtype=int32)
    """
    x = as_operand(operand, "index_in_dim")
    dim = canonical_axis("index_in_dim", axis, x.type.ndim)
    position, size = operator.index(index), x.type.shape[dim]
    if not -size <= position < size:
        raise IndexError(f"index_in_dim: index {position} is out of bounds for dim {dim} of {x.type}")
    element = slice_along(x, dim, position % size, position % size + 1)
    return element if keepdims else Reshape(x.type.without((dim,)).shape)(element)


def shape_as_value(shape: Sequence[int]) -> Any:
    """Return a shape as an int32 NumPy array.

    Args:
        shape: the shape.

    Returns:
        A NumPy array of rank 1.

    Raises:
        TypeError: if a size is negative or not an integer.

    Example:
        >>> lax.shape_as_value((2, 3))
        array([2, 3], dtype=int32)
    """
    return np.asarray(sizes_of("shape_as_value", shape), np.int32)


def dtype(x: ArrayLike | DTypeLike) -> Any:
    """Return the dtype that `x` has as an array.

    Args:
        x: an array, a scalar, or a dtype.

    Returns:
        A NumPy dtype.

    Raises:
        TypeError: if `x` is not an array, a number or a dtype.

    Example:
        >>> lax.dtype(1.0)
        dtype('float32')
    """
    if isinstance(x, (type, np.dtype, str)) or is_key(x):
        return requested_dtype("dtype", x) if isinstance(x, np.dtype) else canonical_dtype(x)
    return type_of(x, "dtype").dtype
