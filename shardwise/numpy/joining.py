"""concatenate, stack, split and flip."""

import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from shardwise.base.docstrings import documented
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array, reshape
from shardwise.compiler.arrays.operands import as_operand, astype_weak, compiled_function, type_of
from shardwise.compiler.arrays.promotion import promote_dtypes, requested_dtype
from shardwise.compiler.ops.shape.slicing import Concatenate, Reverse, slice_along
from shardwise.numpy.families import ARRAYS
from shardwise.typing import ArrayLike, Arrays, DTypeLike, Sections


def concatenate(arrays: Arrays, axis: int | None = 0, dtype: DTypeLike | None = None) -> Array:
    """Concatenate arrays along an existing axis.

    Args:
        arrays: the arrays, a sequence or an array whose rows are concatenated. Their sizes are equal along all axes but
            `axis`.
        axis: the axis along which to concatenate. None flattens the arrays first.
        dtype: the dtype of the result. By default the promoted dtype of the arrays.

    Returns:
        The concatenated array.

    Raises:
        TypeError: if an element of `arrays` is not an array or a number, or if the sizes along other axes differ.
        ValueError: if there is no array, if an array has rank 0, or if `axis` does not exist.

    Example:
        >>> jnp.concatenate([jnp.array([1, 2]), jnp.array([3])])
        Array([1, 2, 3], dtype=int32)
    """
    operands = list(arrays)
    types = [type_of(x, "concatenate") for x in operands]
    if not types:
        raise ValueError("concatenate: needs at least one array")
    if axis is None:
        operands = [reshape(x, shape=-1) for x in operands]
    elif not all(type.ndim for type in types):
        raise ValueError(f"concatenate: 0-d arrays cannot be concatenated: {', '.join(map(str, types))}; use `stack`")
    dim = 0 if axis is None else canonical_axis("concatenate", axis, types[0].ndim)
    return _concatenate(*operands, dim=dim, dtype=requested_dtype("concatenate", dtype))


@documented(ARRAYS, returns="The stacked array, whose rank is one higher.")
def stack(arrays: Arrays, axis: int = 0, out: None = None, dtype: DTypeLike | None = None) -> Array:
    """Join arrays of equal shapes along a new axis.

    Args:
        arrays: the arrays, a sequence or an array whose rows are stacked.
        axis: the position of the new axis in the result.
        dtype: the dtype of the result. By default the promoted dtype of the arrays.

    Raises:
        TypeError: if an element of `arrays` is not an array or a number.
        ValueError: if there is no array, if the shapes differ, or if `axis` does not exist in the result.

    Example:
        >>> jnp.stack([jnp.array([1, 2]), jnp.array([3, 4])], axis=1)
        Array([[1, 3],
               [2, 4]], dtype=int32)
    """
    if out is not None:
        raise NotImplementedError("stack: arrays are immutable, so `out` must be None; use the result")
    operands = list(arrays)
    shapes = [type_of(x, "stack").shape for x in operands]
    if not shapes:
        raise ValueError("stack: needs at least one array")
    if len(set(shapes)) > 1:
        raise ValueError(f"stack: arrays must have equal shapes, not {', '.join(map(str, shapes))}")
    dim = canonical_axis("stack", axis, len(shapes[0]) + 1)
    return _concatenate(*operands, dim=dim, dtype=requested_dtype("stack", dtype), new_dim=True)


@compiled_function
def _concatenate(*arrays: ArrayLike, dim: int, dtype: np.dtype[Any], new_dim: bool = False) -> Any:
    """Promote arrays to one dtype and concatenate them along `dim`, which is inserted first if `new_dim`."""
    out_dtype, weak = promote_dtypes("concatenate", [type_of(x) for x in arrays])
    if dtype is not None:
        out_dtype, weak = dtype, False
    operands = [astype_weak(as_operand(x), out_dtype, weak) for x in arrays]
    if new_dim:
        shape = operands[0].type.shape
        operands = [reshape(x, shape=(*shape[:dim], 1, *shape[dim:])) for x in operands]
    return Concatenate(dim)(*operands) if len(operands) > 1 else operands[0]


@documented(ARRAYS, returns="The list of the parts.")
def split(ary: ArrayLike, indices_or_sections: Sections, axis: int = 0) -> list[Array]:
    """Split an array along an axis.

    Args:
        indices_or_sections: the number of parts of equal size, or the indices at which the parts after the first start.
        axis: the axis to split.

    Raises:
        TypeError: if `ary` is not an array or a number, or if the indices are not integers.
        ValueError: if the size is not a multiple of the number of parts, if the indices do not ascend or exceed the
            size, or if `axis` is out of bounds.

    Example:
        >>> jnp.split(jnp.arange(4), 2)
        [Array([0, 1], dtype=int32), Array([2, 3], dtype=int32)]
    """
    x = as_operand(ary, "split")
    dim = canonical_axis("split", axis, x.type.ndim)
    size = x.type.shape[dim]
    points = np.asarray(indices_or_sections)
    if points.ndim:
        indices = [operator.index(index) for index in points]
    else:
        sections = operator.index(points[()])
        if sections < 1 or size % sections:
            raise ValueError(f"split: dim {dim} of {x.type} cannot be split into {sections} equal parts")
        indices = [size // sections * section for section in range(1, sections)]
    bounds = [0, *indices, size]
    if bounds != sorted(bounds):
        raise ValueError(
            f"split: indices must ascend from 0 to {size}, the size of dim {dim} of {x.type}, not {indices}"
        )
    return [slice_along(x, dim, start, limit) for start, limit in pairwise(bounds)]


def flip(m: ArrayLike, axis: int | Sequence[int] | None = None) -> Array:
    """Reverse the order of the elements along axes.

    Args:
        m: the array.
        axis: the axis or axes to reverse. None reverses all.

    Returns:
        An array of the same shape.

    Raises:
        TypeError: if `m` is not an array or a number, or if an axis repeats.
        ValueError: if an axis does not exist.

    Example:
        >>> jnp.flip(jnp.arange(3))
        Array([2, 1, 0], dtype=int32)
    """
    x = as_operand(m, "flip")
    if axis is None:
        dims = tuple(range(x.type.ndim))
    else:
        axes = axis if isinstance(axis, Sequence) else (axis,)
        dims = tuple(canonical_axis("flip", each, x.type.ndim) for each in axes)
    return Reverse(dims)(x)
