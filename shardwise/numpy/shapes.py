"""The rank and the dims of arrays: dims added, left out, merged, put in another order."""

import math
import operator
from collections.abc import Sequence
from typing import Any

from shardwise.api.placement import device_put
from shardwise.compiler.ops import methods
from shardwise.compiler.ops.indexing import dim_of
from shardwise.compiler.ops.operands import as_operand, composed_list, dims_of, stretch, type_of
from shardwise.compiler.ops.promote import canonical_dtype, default_dtype
from shardwise.compiler.ops.shape import permuted
from shardwise.lax import shape as lax_shape
from shardwise.lax.shape import laid_out, sizes_of
from shardwise.lax.slicing import slice_in_dim
from shardwise.numpy.creation import array, full

_FLOAT = "float*"


def shape(a: Any) -> tuple[int, ...]:
    """The sizes of the dims.

    >>> jnp.shape(jnp.ones((2, 3)))
    (2, 3)
    """
    return type_of(a, "shape").shape


def ndim(a: Any) -> int:
    """How many dims there are.

    >>> jnp.ndim(jnp.ones((2, 3)))
    2
    """
    return type_of(a, "ndim").ndim


def size(a: Any, axis: int | Sequence[int] | None = None) -> int:
    """How many elements there are along `axis`, one or several; without one, in all.

    >>> jnp.size(jnp.ones((2, 3)), axis=1)
    3
    """
    kind = type_of(a, "size")
    if axis is None:
        return kind.size
    return math.prod(kind.shape[dim] for dim in dims_of("size", _several(axis), kind))


def _several(axis: Any) -> tuple[int, ...]:
    return tuple(map(operator.index, axis)) if isinstance(axis, Sequence) else (operator.index(axis),)


def astype(x: Any, dtype: Any, /, *, copy: bool = False, device: Any = None) -> Any:
    """`x` with elements of `dtype` (None: the default float). A complex number gives its real part.

    >>> jnp.astype(jnp.array([1.7, -1.7]), jnp.int32)
    Array([ 1, -1], dtype=int32)
    """
    wanted = default_dtype(_FLOAT) if dtype is None else canonical_dtype(dtype)
    made = methods.astype(x, dtype=wanted)
    made = array(made) if copy and made is x else made
    return made if device is None else device_put(made, device)


def copy(a: Any, order: str | None = None) -> Any:
    """A copy in memory of its own. `order` is how numpy's would lie there; devices lay out as they like.

    >>> jnp.copy(jnp.arange(3))
    Array([0, 1, 2], dtype=int32)
    """
    return array(a)


def reshape(a: Any, shape: Any, order: str = "C", *, copy: bool | None = None, out_sharding: Any = None) -> Any:
    """The same elements in another shape; one size may be -1 and is worked out.

    They are counted with the last dim fastest ("C"), or with the first ("F").

    >>> jnp.reshape(jnp.arange(6), (2, -1))
    Array([[0, 1, 2],
           [3, 4, 5]], dtype=int32)
    """
    return reshaped("reshape", a, shape if isinstance(shape, int) else tuple(shape), order, out_sharding)


def ravel(a: Any, order: str = "C", *, out_sharding: Any = None) -> Any:
    """All elements in one row: of the last dim first ("C"), or of the first dim first ("F").

    >>> jnp.ravel(jnp.array([[1, 2], [3, 4]]), order="F")
    Array([1, 3, 2, 4], dtype=int32)
    """
    return reshaped("ravel", a, -1, order, out_sharding)


def reshaped(name: str, a: Any, shape: int | tuple[int, ...], order: str, out_sharding: Any) -> Any:
    """The same elements in another shape, counted in row-major ("C") or column-major ("F") order."""
    if order not in ("C", "F"):
        raise NotImplementedError(
            f"{name}: order is 'C' or 'F', not {order!r}: where elements lie is not for us to say"
        )
    if order == "C":
        return laid_out(methods.reshape(a, shape=shape), out_sharding)
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    turned = methods.reshape(methods.transpose(a), shape=sizes[::-1])
    return laid_out(methods.transpose(turned), out_sharding)


def squeeze(a: Any, axis: int | Sequence[int] | None = None) -> Any:
    """`a` without dims of size 1: all of them, or those that `axis` says.

    >>> jnp.squeeze(jnp.ones((1, 3, 1)), axis=0).shape
    (3, 1)
    """
    sizes = type_of(a, "squeeze").shape
    chosen = [dim for dim, size in enumerate(sizes) if size == 1] if axis is None else _several(axis)
    return lax_shape.squeeze(a, chosen)


def expand_dims(a: Any, axis: int | Sequence[int]) -> Any:
    """`a` with dims of size 1, which are the dims `axis` of the result.

    >>> jnp.expand_dims(jnp.arange(3), (0, -1)).shape
    (1, 3, 1)
    """
    return lax_shape.expand_dims(a, _several(axis))


def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    """`a` with two dims in each other's place.

    >>> jnp.swapaxes(jnp.ones((2, 3, 4)), 0, -1).shape
    (4, 3, 2)
    """
    x = as_operand(a, "swapaxes")
    order = list(range(x.type.ndim))
    one, two = (dim_of("swapaxes", axis, x.type.ndim) for axis in (axis1, axis2))
    order[one], order[two] = two, one
    return permuted(x, tuple(order))


def moveaxis(a: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    """`a` with the dims `source` at the places `destination`, the others in order.

    >>> jnp.moveaxis(jnp.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = as_operand(a, "moveaxis")
    sources, targets = (dims_of("moveaxis", _several(axes), x.type) for axes in (source, destination))
    if len(sources) != len(targets):
        raise ValueError(f"moveaxis: {len(sources)} dims cannot go to {len(targets)} places: {source} to {destination}")
    order = [dim for dim in range(x.type.ndim) if dim not in sources]
    for target, dim in sorted(zip(targets, sources, strict=True)):
        order.insert(target, dim)
    return permuted(x, tuple(order))


def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    """`a` with the dim `axis` moved to before the dim `start`; `moveaxis` is easier to read.

    >>> jnp.rollaxis(jnp.ones((2, 3, 4)), 2).shape
    (4, 2, 3)
    """
    rank = type_of(a, "rollaxis").ndim
    dim, before = dim_of("rollaxis", axis, rank), operator.index(start)
    if not -rank <= before <= rank:
        raise ValueError(f"rollaxis: start {start} is no place among the dims of {type_of(a)}")
    before += rank * (before < 0)
    return moveaxis(a, dim, before - (dim < before))


def transpose(a: Any, axes: Sequence[int] | None = None) -> Any:
    """Dims in the order `axes`; reversed where none is given.

    >>> jnp.transpose(jnp.array([[1, 2, 3], [4, 5, 6]]))
    Array([[1, 4],
           [2, 5],
           [3, 6]], dtype=int32)
    """
    return methods.transpose(a, axes=None if axes is None else tuple(axes))


def permute_dims(a: Any, /, axes: Sequence[int]) -> Any:
    """Dims in the order `axes`.

    >>> jnp.permute_dims(jnp.ones((2, 3, 4)), (1, 2, 0)).shape
    (3, 4, 2)
    """
    return methods.transpose(a, axes=tuple(axes))


def matrix_transpose(x: Any, /) -> Any:
    """`x` with its last two dims in each other's place.

    >>> jnp.matrix_transpose(jnp.ones((5, 2, 3))).shape
    (5, 3, 2)
    """
    if type_of(x, "matrix_transpose").ndim < 2:
        raise ValueError(f"matrix_transpose: needs an array of 2 or more dims, not {type_of(x)}")
    return swapaxes(x, -1, -2)


def atleast_1d(*arys: Any) -> Any:
    """Arrays of rank 1 or more: a number becomes a row. One array bare, several in a list.

    >>> jnp.atleast_1d(3)
    Array([3], dtype=int32)
    """
    return _one_or_all([_raised("atleast_1d", x, ((1,),)) for x in arys])


def atleast_2d(*arys: Any) -> Any:
    """Arrays of rank 2 or more: a row becomes a matrix of one row. One array bare, several in a list.

    >>> jnp.atleast_2d(jnp.arange(3)).shape
    (1, 3)
    """
    return _one_or_all([_raised("atleast_2d", x, ((1, 1), (1, -1))) for x in arys])


def atleast_3d(*arys: Any) -> Any:
    """Arrays of rank 3 or more: a row is the middle dim, a matrix the first two. One array bare, several in a list.

    >>> jnp.atleast_3d(jnp.arange(3)).shape
    (1, 3, 1)
    """
    found = []
    for x in arys:
        sizes = type_of(x, "atleast_3d").shape
        found.append(_raised("atleast_3d", x, ((1, 1, 1), (1, *sizes, 1), (*sizes, 1))))
    return _one_or_all(found)


def _raised(name: str, x: Any, shapes: Sequence[tuple[int, ...]]) -> Any:
    """`x` in the shape for its rank; as it is where its rank is higher."""
    rank = type_of(x, name).ndim
    return methods.reshape(x, shape=shapes[rank]) if rank < len(shapes) else as_operand(x)


def _one_or_all(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else arrays


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape to which arrays of these shapes are repeated, by numpy's rule. A shape may be one size.

    >>> jnp.broadcast_shapes((3, 1), 4)
    (3, 4)
    """
    return lax_shape.broadcast_shapes(*(_several(shape) for shape in shapes))


def broadcast_to(array: Any, shape: Any, *, out_sharding: Any = None) -> Any:
    """`array` repeated to `shape`, by numpy's rule.

    >>> jnp.broadcast_to(jnp.array([1, 2]), (2, 2))
    Array([[1, 2],
           [1, 2]], dtype=int32)
    """
    return laid_out(methods.broadcast_to(array, shape=_several(shape)), out_sharding)


def broadcast_arrays(*args: Any) -> list[Any]:
    """Arrays repeated to one shape, by numpy's rule.

    >>> [x.shape for x in jnp.broadcast_arrays(jnp.ones((3, 1)), jnp.ones(4))]
    [(3, 4), (3, 4)]
    """
    wanted = lax_shape.broadcast_shapes(*(type_of(x, "broadcast_arrays").shape for x in args))
    return _stretched(*args, shape=wanted) if args else []


@composed_list
def _stretched(*arrays: Any, shape: tuple[int, ...]) -> list[Any]:
    return [stretch(as_operand(x), shape) for x in arrays]


def resize(a: Any, new_shape: int | Sequence[int]) -> Any:
    """The elements in a row, over and over, as far as the new shape goes; zeros where there are none.

    >>> jnp.resize(jnp.array([1, 2, 3]), (2, 4))
    Array([[1, 2, 3, 1],
           [2, 3, 1, 2]], dtype=int32)
    """
    sizes = sizes_of("resize", _several(new_shape))
    count, held = math.prod(sizes), type_of(a, "resize").size
    if not held:
        return full(sizes, 0, type_of(a).dtype)
    times = max(1, -(-count // held))
    row = lax_shape.tile(methods.reshape(a, shape=-1), (times,))
    return methods.reshape(slice_in_dim(row, 0, count), shape=sizes)
