"""Arrays put together, taken apart and turned around."""

import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from shardwise.compiler.ops.indexing import dim_of
from shardwise.compiler.ops.methods import reshape
from shardwise.compiler.ops.operands import as_operand, astype_weak, composed, type_of
from shardwise.compiler.ops.promote import canonical_dtype, meet
from shardwise.compiler.ops.slicing import Concatenate, Reverse, along


def concatenate(arrays: Any, axis: int | None = 0, dtype: Any = None) -> Any:
    """Arrays one after the other along `axis`; where that is None, all their elements in one row.

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
        raise ValueError(
            f"concatenate: a 0-d array has no dim to be joined along: {', '.join(map(str, types))}; use `stack`"
        )
    dim = 0 if axis is None else dim_of("concatenate", axis, types[0].ndim)
    return _joined(*operands, dim=dim, dtype=dtype)


def stack(arrays: Any, axis: int = 0, out: None = None, dtype: Any = None) -> Any:
    """Arrays of one shape along a new dim, which is dim `axis` of the result.

    >>> jnp.stack([jnp.array([1, 2]), jnp.array([3, 4])], axis=1)
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    if out is not None:
        raise NotImplementedError("stack: arrays are immutable, so there is no `out`; use the result")
    operands = list(arrays)
    shapes = [type_of(x, "stack").shape for x in operands]
    if not shapes:
        raise ValueError("stack: needs at least one array")
    if len(set(shapes)) > 1:
        raise ValueError(f"stack: arrays must have one shape, not {', '.join(map(str, shapes))}")
    return _joined(*operands, dim=dim_of("stack", axis, len(shapes[0]) + 1), dtype=dtype, stacked=True)


@composed
def _joined(*arrays: Any, dim: int, dtype: Any, stacked: bool = False) -> Any:
    """Promoted to one dtype, given a dim of their own where they are stacked, and joined."""
    found, weak = meet("concatenate", [type_of(x) for x in arrays])
    if dtype is not None:
        found, weak = canonical_dtype(dtype), False
    operands = [astype_weak(as_operand(x), found, weak) for x in arrays]
    if stacked:
        shape = operands[0].type.shape
        operands = [reshape(x, shape=(*shape[:dim], 1, *shape[dim:])) for x in operands]
    return Concatenate(dim)(*operands) if len(operands) > 1 else operands[0]


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Parts along `axis`: as many of equal size, or those between the places that are given.

    >>> jnp.split(jnp.arange(4), 2)
    [Array([0, 1], dtype=int32), Array([2, 3], dtype=int32)]
    """
    x = as_operand(ary, "split")
    dim = dim_of("split", axis, x.type.ndim)
    size = x.type.shape[dim]
    if np.ndim(indices_or_sections):
        places = [operator.index(place) for place in indices_or_sections]
    else:
        sections = operator.index(indices_or_sections)
        if sections < 1 or size % sections:
            raise ValueError(f"split: dim {dim} of {x.type} does not divide into {sections} equal parts")
        places = [size // sections * number for number in range(1, sections)]
    bounds = [0, *places, size]
    if bounds != sorted(bounds):
        raise ValueError(f"split: places must ascend from 0 to {size}, the size of dim {dim} of {x.type}, not {places}")
    return [along(x, dim, start, limit) for start, limit in pairwise(bounds)]


def flip(m: Any, axis: int | Sequence[int] | None = None) -> Any:
    """The elements in opposite order along `axis` (all dims where none is given).

    >>> jnp.flip(jnp.arange(3))
    Array([2, 1, 0], dtype=int32)
    """
    x = as_operand(m, "flip")
    if axis is None:
        dims = tuple(range(x.type.ndim))
    else:
        axes = axis if isinstance(axis, Sequence) else (axis,)
        dims = tuple(dim_of("flip", one, x.type.ndim) for one in axes)
    return Reverse(dims)(x)
