"""Functions that query or change the shape of arrays: reshape, squeeze, transpose, broadcast_to and so on."""

import math
import operator
import warnings
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from shardwise.api.meshes.out_sharding import constrain_sharding, decided_by
from shardwise.api.meshes.placement import device_put
from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays import methods
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_operand,
    broadcast_to_shape,
    canonical_axes,
    compiled_list_function,
    integer_tuple,
    type_of,
)
from shardwise.compiler.arrays.promotion import default_dtype, requested_dtype
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.shape.movement import permute
from shardwise.lax import shape as lax_shape
from shardwise.lax.shape import sizes_of
from shardwise.lax.slicing import slice_in_dim
from shardwise.numpy.creation import array, full
from shardwise.numpy.families import ARRAYS
from shardwise.typing import ArrayLike, DTypeLike, OutSharding, Placement, Shape

_SHAPE = ARRAYS.extended(
    {
        "order": Parameter(
            '"C" for row-major or "F" for column-major order of the elements.',
            'NotImplementedError: if {} is neither "C" nor "F".',
        )
    }
)
_TRANSPOSED = ARRAYS.extended(returns="The transposed array.")
_PERMUTED = _TRANSPOSED.extended(
    {
        "axes": Parameter(
            "the permutation: dim `i` of the result is dim `axes[i]` of `a`.",
            "ValueError: if {} is not a permutation of the dims of `a`.",
        )
    }
)
_AT_LEAST = Family(
    {},
    returns="The array if there is one argument, else a list of arrays.",
    raises=["TypeError: if an argument is not an array or a number."],
)

_FLOAT = "float*"


def _type_of(name: str, a: object) -> ArrayType:
    """Return the type of an array. None counts as a scalar, with a warning, as in JAX."""
    if a is not None:
        return type_of(a, name)
    warnings.warn(f"{name}: None is not an array; this will be an error", DeprecationWarning, stacklevel=3)
    return ArrayType((), np.bool_)


@documented(ARRAYS, returns="The size of each dim.")
def shape(a: ArrayLike) -> tuple[int, ...]:
    """Return the shape of an array.

    Example:
        >>> jnp.shape(jnp.ones((2, 3)))
        (2, 3)
    """
    return _type_of("shape", a).shape


@documented(ARRAYS, returns="The number of dims.")
def ndim(a: ArrayLike) -> int:
    """Return the rank of an array.

    Example:
        >>> jnp.ndim(jnp.ones((2, 3)))
        2
    """
    return _type_of("ndim", a).ndim


@documented(ARRAYS, returns="The number of elements.", raises=["ValueError: if an axis is out of bounds or repeats."])
def size(a: ArrayLike, axis: int | Sequence[int] | None = None) -> int:
    """Return the number of elements of an array, in total or along some axes.

    Args:
        axis: the axis or axes to count along. With None, all elements are counted.

    Example:
        >>> jnp.size(jnp.ones((2, 3)), axis=1)
        3
    """
    a_type = _type_of("size", a)
    if axis is None:
        return a_type.size
    return math.prod(a_type.shape[dim] for dim in canonical_axes("size", integer_tuple(axis), a_type))


@documented(ARRAYS, returns="The converted array.")
def astype(x: ArrayLike, dtype: DTypeLike, /, *, copy: bool = False, device: Placement = None) -> Array:
    """Convert an array to another dtype.

    Complex numbers that are converted to a real dtype lose their imaginary part.

    Args:
        dtype: the new dtype. None is the default float dtype.
        copy: whether to copy even if `x` has the dtype already.
        device: the device or sharding to place the result on. By default it stays where `x` is.

    Raises:
        TypeError: if `x` is not an array or a number, `dtype` is unknown, or `device` is not a device or sharding.

    Example:
        >>> jnp.astype(jnp.array([1.7, -1.7]), jnp.int32)
        Array([ 1, -1], dtype=int32)
    """
    target = default_dtype(_FLOAT) if dtype is None else requested_dtype("astype", dtype)
    converted = methods.astype(x, dtype=target)
    converted = array(converted) if copy and converted is x else converted
    return converted if device is None else device_put(converted, device)


def copy(a: ArrayLike, order: str | None = None) -> Array:
    """Copy an array into a new buffer.

    Args:
        a: an array, a scalar or nested lists of them.
        order: ignored. XLA chooses the memory layout.

    Returns:
        The copy.

    Raises:
        TypeError: if `a` cannot be converted to an array.

    Example:
        >>> jnp.copy(jnp.arange(3))
        Array([0, 1, 2], dtype=int32)
    """
    return array(a)


@documented(_SHAPE, returns="The reshaped array.")
def reshape(
    a: ArrayLike, shape: Shape, order: str = "C", *, copy: bool | None = None, out_sharding: OutSharding = None
) -> Array:
    """Change the shape of an array without changing its elements.

    Args:
        shape: the new shape. One size may be -1 and is then inferred.
        order: "C" for row-major or "F" for column-major order of the elements, both when read and when placed.
        copy: ignored.

    Raises:
        TypeError: if `shape` does not have as many elements as `a`, more than one size is -1, or a size is not an
            integer.

    Example:
        >>> jnp.reshape(jnp.arange(6), (2, -1))
        Array([[0, 1, 2],
               [3, 4, 5]], dtype=int32)
    """
    return reshape_in_order("reshape", a, tuple(methods.static_sizes("reshape", shape)), order, out_sharding)


@documented(_SHAPE, returns="The flattened array.")
def ravel(a: ArrayLike, order: str = "C", *, out_sharding: OutSharding = None) -> Array:
    """Flatten an array to rank 1.

    Example:
        >>> jnp.ravel(jnp.array([[1, 2], [3, 4]]), order="F")
        Array([1, 3, 2, 4], dtype=int32)
    """
    return reshape_in_order("ravel", a, -1, order, out_sharding)


def reshape_in_order(
    name: str, a: ArrayLike, shape: int | tuple[int, ...], order: str, out_sharding: OutSharding
) -> Any:
    """Reshape with the elements in row-major ("C") or column-major ("F") order."""
    if order not in ("C", "F"):
        raise NotImplementedError(f"{name}: order must be 'C' or 'F', not {order!r}: XLA chooses the memory layout")
    with decided_by(out_sharding):
        if order == "C":
            result = methods.reshape(a, shape=shape)
        else:
            sizes = (shape,) if isinstance(shape, int) else tuple(shape)
            result = methods.transpose(methods.reshape(methods.transpose(a), shape=sizes[::-1]))
    return constrain_sharding(result, out_sharding, keeps_sums=True)


@documented(ARRAYS, returns="The array of lower rank.")
def squeeze(a: ArrayLike, axis: int | Sequence[int] | None = None) -> Array:
    """Remove dims of size 1.

    Args:
        axis: the axis or axes to remove. With None, all dims of size 1 are removed.

    Raises:
        TypeError: if `a` is not an array or a number, or `axis` is not an integer or a sequence of integers.
        ValueError: if an axis does not exist, is repeated, or has a size other than 1.

    Example:
        >>> jnp.squeeze(jnp.ones((1, 3, 1)), axis=0).shape
        (3, 1)
    """
    sizes = type_of(a, "squeeze").shape
    removed = [dim for dim, size in enumerate(sizes) if size == 1] if axis is None else integer_tuple(axis)
    return lax_shape.squeeze(a, removed)


@documented(ARRAYS, returns="The array of higher rank.")
def expand_dims(a: ArrayLike, axis: int | Sequence[int]) -> Array:
    """Insert dims of size 1.

    Args:
        axis: the positions of the new dims in the result.

    Raises:
        TypeError: if `a` is not an array or a number, or `axis` is not an integer or a sequence of integers.
        ValueError: if an axis does not exist in the result or is repeated.

    Example:
        >>> jnp.expand_dims(jnp.arange(3), (0, -1)).shape
        (1, 3, 1)
    """
    return lax_shape.expand_dims(a, integer_tuple(axis))


@documented(_TRANSPOSED, raises=["ValueError: if an axis does not exist."])
def swapaxes(a: ArrayLike, axis1: int, axis2: int) -> Array:
    """Exchange two dims of an array.

    Args:
        axis1, axis2: the dims to exchange.

    Example:
        >>> jnp.swapaxes(jnp.ones((2, 3, 4)), 0, -1).shape
        (4, 3, 2)
    """
    x = as_operand(a, "swapaxes")
    order = list(range(x.type.ndim))
    first, second = (canonical_axis("swapaxes", axis, x.type.ndim) for axis in (axis1, axis2))
    order[first], order[second] = second, first
    return permute(x, tuple(order))


@documented(_TRANSPOSED)
def moveaxis(a: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    """Move dims of an array to other positions.

    The dims that are not moved keep their relative order.

    Args:
        source: the dim or dims to move.
        destination: the position in the result for each dim of `source`.

    Raises:
        ValueError: if an axis is out of bounds or repeats, or `source` and `destination` differ in length.

    Example:
        >>> jnp.moveaxis(jnp.ones((2, 3, 4)), 0, -1).shape
        (3, 4, 2)
    """
    x = as_operand(a, "moveaxis")
    sources, targets = (canonical_axes("moveaxis", integer_tuple(axes), x.type) for axes in (source, destination))
    if len(sources) != len(targets):
        raise ValueError(
            f"moveaxis: source {source} and destination {destination} must have the same length, "
            f"not {len(sources)} and {len(targets)}"
        )
    order = [dim for dim in range(x.type.ndim) if dim not in sources]
    for target, dim in sorted(zip(targets, sources, strict=True)):
        order.insert(target, dim)
    return permute(x, tuple(order))


@documented(_TRANSPOSED, raises=["ValueError: if `axis` or `start` is out of range."])
def rollaxis(a: ArrayLike, axis: int, start: int = 0) -> Array:
    """Move one dim of an array to before another; `moveaxis` is easier to read.

    Args:
        axis: the dim to move.
        start: the dim before which it is placed. The rank of `a` stands for the end.

    Example:
        >>> jnp.rollaxis(jnp.ones((2, 3, 4)), 2).shape
        (4, 2, 3)
    """
    rank = type_of(a, "rollaxis").ndim
    dim, before = canonical_axis("rollaxis", axis, rank), operator.index(start)
    if not -rank <= before <= rank:
        raise ValueError(f"rollaxis: start {start} is out of range for {type_of(a)}; pass {-rank} to {rank}")
    before += rank * (before < 0)
    return moveaxis(a, dim, before - (dim < before))


@documented(_PERMUTED)
def transpose(a: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Permute the dims of an array.

    Args:
        axes: the permutation: dim `i` of the result is dim `axes[i]` of `a`. With None, the order is reversed.

    Example:
        >>> jnp.transpose(jnp.array([[1, 2, 3], [4, 5, 6]]))
        Array([[1, 4],
               [2, 5],
               [3, 6]], dtype=int32)
    """
    return methods.transpose(a, axes=None if axes is None else tuple(axes))


@documented(_PERMUTED)
def permute_dims(a: ArrayLike, /, axes: Sequence[int]) -> Array:
    """Permute the dims of an array: `transpose` under its name in the array API standard.

    Example:
        >>> jnp.permute_dims(jnp.ones((2, 3, 4)), (1, 2, 0)).shape
        (3, 4, 2)
    """
    return methods.transpose(a, axes=tuple(axes))


@documented(ARRAYS, returns="The transposed matrices.", raises=["ValueError: if `x` has fewer than 2 dims."])
def matrix_transpose(x: ArrayLike, /) -> Array:
    """Exchange the last two dims of an array.

    Args:
        x: a matrix or a batch of matrices.

    Example:
        >>> jnp.matrix_transpose(jnp.ones((5, 2, 3))).shape
        (5, 3, 2)
    """
    if type_of(x, "matrix_transpose").ndim < 2:
        raise ValueError(f"matrix_transpose: needs an array of 2 or more dims, not {type_of(x)}")
    return swapaxes(x, -1, -2)


@overload
def atleast_1d(ary: ArrayLike, /) -> Array: ...


@overload
def atleast_1d(*arys: ArrayLike) -> Any: ...


@documented(_AT_LEAST)
def atleast_1d(*arys: ArrayLike) -> Any:
    """Reshape scalars to arrays of rank 1.

    Args:
        *arys: arrays or scalars. Those of rank 1 or more stay unchanged.

    Example:
        >>> jnp.atleast_1d(3)
        Array([3], dtype=int32, weak_type=True)
    """
    return _unwrap_single([_raise_rank("atleast_1d", x, ((1,),)) for x in arys])


@overload
def atleast_2d(ary: ArrayLike, /) -> Array: ...


@overload
def atleast_2d(*arys: ArrayLike) -> Any: ...


@documented(_AT_LEAST)
def atleast_2d(*arys: ArrayLike) -> Any:
    """Reshape arrays of rank 0 and 1 to matrices of one row.

    Args:
        *arys: arrays or scalars. Those of rank 2 or more stay unchanged.

    Example:
        >>> jnp.atleast_2d(jnp.arange(3)).shape
        (1, 3)
    """
    return _unwrap_single([_raise_rank("atleast_2d", x, ((1, 1), (1, -1))) for x in arys])


@overload
def atleast_3d(ary: ArrayLike, /) -> Array: ...


@overload
def atleast_3d(*arys: ArrayLike) -> Any: ...


@documented(_AT_LEAST)
def atleast_3d(*arys: ArrayLike) -> Any:
    """Reshape arrays of rank 0, 1 and 2 to rank 3.

    Args:
        *arys: arrays or scalars. Shape `(n,)` becomes `(1, n, 1)`, shape `(m, n)` becomes `(m, n, 1)`, and arrays of
            rank 3 or more stay unchanged.

    Example:
        >>> jnp.atleast_3d(jnp.arange(3)).shape
        (1, 3, 1)
    """
    results = []
    for x in arys:
        sizes = type_of(x, "atleast_3d").shape
        results.append(_raise_rank("atleast_3d", x, ((1, 1, 1), (1, *sizes, 1), (*sizes, 1))))
    return _unwrap_single(results)


def _raise_rank(name: str, x: ArrayLike, shapes: Sequence[tuple[int, ...]]) -> Any:
    """Reshape `x` to `shapes[rank]`, or return it unchanged if there is none for its rank."""
    rank = type_of(x, name).ndim
    return methods.reshape(x, shape=shapes[rank]) if rank < len(shapes) else as_operand(x)


def _unwrap_single(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else arrays


def broadcast_shapes(*shapes: Shape) -> tuple[int, ...]:
    """Return the shape that shapes broadcast to.

    Args:
        *shapes: shapes. An integer is the shape of an array of rank 1.

    Returns:
        The common shape.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: if the shapes do not broadcast.

    Example:
        >>> jnp.broadcast_shapes((3, 1), 4)
        (3, 4)
    """
    return lax_shape.broadcast_shapes(*(integer_tuple(shape) for shape in shapes))


@documented(ARRAYS, returns="The broadcast array.")
def broadcast_to(array: ArrayLike, shape: Shape, *, out_sharding: OutSharding = None) -> Array:
    """Broadcast an array to a shape.

    Args:
        array: an array or a scalar.
        shape: the shape of the result.

    Raises:
        TypeError: if `array` is not an array or a number, or does not broadcast to `shape`.

    Example:
        >>> jnp.broadcast_to(jnp.array([1, 2]), (2, 2))
        Array([[1, 2],
               [1, 2]], dtype=int32)
    """
    return constrain_sharding(methods.broadcast_to(array, shape=integer_tuple(shape)), out_sharding)


@documented(_AT_LEAST, returns="A list with the broadcast arrays.")
def broadcast_arrays(*args: ArrayLike) -> list[Array]:
    """Broadcast arrays to their common shape.

    Args:
        *args: arrays or scalars.

    Raises:
        ValueError: if the shapes do not broadcast.

    Example:
        >>> [x.shape for x in jnp.broadcast_arrays(jnp.ones((3, 1)), jnp.ones(4))]
        [(3, 4), (3, 4)]
    """
    common_shape = lax_shape.broadcast_shapes(*(type_of(x, "broadcast_arrays").shape for x in args))
    return _broadcast_all(*args, shape=common_shape) if args else []


@compiled_list_function
def _broadcast_all(*arrays: ArrayLike, shape: tuple[int, ...]) -> list[Any]:
    return [broadcast_to_shape(as_operand(x), shape) for x in arrays]


@documented(ARRAYS, returns="The resized array.")
def resize(a: ArrayLike, new_shape: int | Sequence[int]) -> Array:
    """Change the shape of an array, repeating or truncating its elements as needed.

    The elements of the flattened array are repeated in order until the new shape is filled. If there are none, the
    result is zeros.

    Args:
        new_shape: the shape of the result.

    Raises:
        TypeError: if `a` is not an array or a number, or a size is negative or not an integer.

    Example:
        >>> jnp.resize(jnp.array([1, 2, 3]), (2, 4))
        Array([[1, 2, 3, 1],
               [2, 3, 1, 2]], dtype=int32)
    """
    sizes = sizes_of("resize", integer_tuple(new_shape))
    new_size, old_size = math.prod(sizes), type_of(a, "resize").size
    if not old_size:
        return full(sizes, 0, type_of(a).dtype)
    copies = max(1, -(-new_size // old_size))
    flat = lax_shape.tile(methods.reshape(a, shape=-1), (copies,))
    return methods.reshape(slice_in_dim(flat, 0, new_size), shape=sizes)
