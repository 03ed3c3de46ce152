"""Elements chosen by conditions and by places, and elements put there."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.compiler.ir.types import integer_range, is_integer
from shardwise.compiler.ops import methods, numeric
from shardwise.compiler.ops.indexed import clamped
from shardwise.compiler.ops.indexing import as_index, dim_of, from_start, mode_of
from shardwise.compiler.ops.operands import (
    aligned,
    as_operand,
    astype_weak,
    broadcast_shapes,
    composed,
    known,
    stretch,
    type_of,
)
from shardwise.compiler.ops.promote import canonical_dtype, meet
from shardwise.compiler.ops.scatter import Scatter
from shardwise.compiler.ops.shape import Reshape
from shardwise.lax.choice import select_n
from shardwise.numpy.indexing import nonzero, take
from shardwise.numpy.ordering import cumsum
from shardwise.numpy.shapes import resize


def choose(a: Any, choices: Any, out: None = None, mode: str = "raise") -> Any:
    """Of several arrays, for each place the element of the one whose number `a` has there; all broadcast.

    `mode`: what a number outside means: the nearest ("clip"), one found by counting around ("wrap"), or an error, for
    which the numbers must be known now ("raise").

    >>> jnp.choose(jnp.array([0, 1, 0]), [jnp.array([1, 2, 3]), jnp.array([10, 20, 30])])
    Array([ 1, 20,  3], dtype=int32)
    """
    if out is not None:
        raise NotImplementedError("choose: arrays are not written to, so `out` must be None")
    kind = type_of(a, "choose")
    if not is_integer(kind.dtype):
        raise ValueError(f"choose: numbers of choices must be integers, not {kind}")
    given = list(choices)
    if not given:
        raise ValueError("choose: needs at least one choice")
    number = _inside("choose", a, len(given), mode, ("raise", "wrap", "clip"))
    return _chosen(number, *given)


def _inside(name: str, index: Any, size: int, mode: str, modes: Sequence[str]) -> Any:
    """Indices brought inside of a dim as `mode` says."""
    if mode not in modes:
        raise ValueError(f"{name}: mode is {', '.join(modes[:-1])} or {modes[-1]}, not {mode!r}")
    if mode == "raise":
        unknown = (
            "that nobody can see now whether it lies inside: say what is meant where it does not, with mode='clip' or "
            "mode='wrap'"
        )
        places = known(name, index, unknown)
        if places.size and (places.min() < 0 or places.max() >= size):
            raise ValueError(f"{name}: {places.min()} to {places.max()} is not inside of 0 to {size - 1}")
    if mode == "wrap":
        return numeric.remainder(index, size)
    return _clipped(index, limit=size - 1) if mode == "clip" else index


@composed
def _clipped(index: Any, *, limit: int) -> Any:
    return clamped(as_index(index), limit)


@composed
def _chosen(number: Any, *choices: Any) -> Any:
    cases = aligned("choose", choices)
    shape = broadcast_shapes("choose", type_of(number).shape, cases[0].type.shape)
    index = methods.astype(stretch(as_operand(number), shape), dtype=np.int32)
    spread = [stretch(astype_weak(case, case.type.dtype, False), shape) for case in cases]
    return select_n(index, *spread) if len(spread) > 1 else spread[0]


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """For each place the element of the choice whose condition is the first that holds there, else `default`.

    >>> x = jnp.arange(4)
    >>> jnp.select([x < 1, x < 3], [x + 10, x + 20], -1)
    Array([10, 21, 22, -1], dtype=int32)
    """
    conditions, choices = list(condlist), list(choicelist)
    if len(conditions) != len(choices):
        raise ValueError(f"select: {len(conditions)} conditions do not go with {len(choices)} choices")
    if not conditions:
        raise ValueError("select: needs at least one condition")
    return _selected(default, *conditions, *choices)


@composed
def _selected(default: Any, *both: Any) -> Any:
    half = len(both) // 2
    *choices, found = aligned("select", (*both[half:], default))
    for condition, choice in reversed(list(zip(both[:half], choices, strict=True))):
        found = methods.where(condition, choice, found)
    return found


def compress(
    condition: Any,
    a: Any,
    axis: int | None = None,
    *,
    size: int | None = None,
    fill_value: Any = 0,
    out: None = None,
) -> Any:
    """The elements along `axis` at which the row `condition` holds; without an axis, of all elements in a row.

    How many there are must be known: of a condition of the program, give `size`. `fill_value` follows where there are
    fewer.

    >>> jnp.compress(jnp.array([True, False, True]), jnp.array([1, 2, 3]))
    Array([1, 3], dtype=int32)
    """
    if out is not None:
        raise NotImplementedError("compress: arrays are not written to, so `out` must be None")
    kind, x = type_of(condition, "compress"), as_operand(a, "compress")
    if kind.ndim != 1:
        raise ValueError(f"compress: the condition must be a row, not {kind}")
    if axis is None:
        x, axis = methods.reshape(x, shape=-1), 0
    dim = dim_of("compress", axis, x.type.ndim)
    whole = x.type.shape[dim]
    if kind.size > whole:
        if size is not None or np.asarray(condition)[whole:].any():
            raise ValueError(f"compress: the condition {kind} is longer than dim {dim} of {x.type}")
        condition = condition[:whole]
    if size is None:
        return take(x, nonzero(condition)[0], dim, mode="clip")
    if not 0 <= operator.index(size) <= whole:
        raise ValueError(f"compress: size {size} is not from 0 to {whole}, the size of dim {dim} of {x.type}")
    return _compressed(x, condition, fill_value, dim=dim, size=operator.index(size))


@composed
def _compressed(x: Any, condition: Any, fill: Any, *, dim: int, size: int) -> Any:
    shape = (*x.type.shape[:dim], size, *x.type.shape[dim + 1 :])
    (places,) = nonzero(condition, size=size, fill_value=x.type.shape[dim])
    found = take(x, places, dim, mode="clip")
    row = tuple(size if d == dim else 1 for d in range(len(shape)))
    is_there = stretch(Reshape(row)(methods.compare(places, x.type.shape[dim], direction="LT")), shape)
    other = stretch(astype_weak(as_operand(fill), x.type.dtype, x.type.weak), shape)
    return methods.where(is_there, found, other)


def extract(condition: Any, arr: Any, *, size: int | None = None, fill_value: Any = 0) -> Any:
    """The elements at which `condition` holds, in a row; see `compress`.

    >>> jnp.extract(jnp.array([[True, False], [False, True]]), jnp.array([[1, 2], [3, 4]]))
    Array([1, 4], dtype=int32)
    """
    row = methods.reshape(condition, shape=-1)
    return compress(row, methods.reshape(arr, shape=-1), size=size, fill_value=fill_value)


def place(arr: Any, mask: Any, vals: Any, *, inplace: bool = True) -> Any:
    """`arr` with `vals`, taken in a row, over and over, where `mask` holds. Arrays are not written to: `inplace=False`.

    >>> jnp.place(jnp.array([1, 2, 3]), jnp.array([True, False, True]), jnp.array([7, 8]), inplace=False)
    Array([7, 2, 8], dtype=int32)
    """
    _not_in_place("place", inplace)
    kind, values = type_of(arr, "place"), type_of(vals, "place")
    if type_of(mask, "place").size != kind.size:
        raise ValueError(f"place: the mask {type_of(mask)} has not as many elements as {kind}")
    if not values.size:
        raise ValueError(f"place: {values} has no elements to put into {kind}")
    return _placed(arr, mask, vals) if kind.size else as_operand(arr)


@composed
def _placed(x: Any, mask: Any, values: Any) -> Any:
    x, which = as_operand(x), numeric.truth(mask, "place")
    held = Reshape(x.type.shape)(which)
    if type_of(values).size == 1:
        new = stretch(Reshape(())(as_operand(values)), x.type.shape)
    else:
        flat = Reshape((x.type.size,))(which)
        number = numeric.subtract(cumsum(flat), 1)  # how many are before each of those that are held
        new = take(Reshape((type_of(values).size,))(as_operand(values)), number, mode="wrap")
        new = Reshape(x.type.shape)(new)
    return methods.where(held, astype_weak(new, x.type.dtype, x.type.weak), x)


def _not_in_place(name: str, inplace: bool) -> None:
    if inplace:
        raise ValueError(f"{name}: arrays are not written to: use the result, with `inplace=False`")


def put(a: Any, ind: Any, v: Any, mode: str | None = None, *, inplace: bool = True) -> Any:
    """`a` with `v`, taken in a row, over and over, at the places `ind` of its elements in a row.

    `mode`: what a place outside means: the nearest ("clip", unless told), or one that is found by counting around
    ("wrap"). Arrays are not written to: say `inplace=False`.

    >>> jnp.put(jnp.array([1, 2, 3]), jnp.array([0, -1]), jnp.array([7, 8]), inplace=False)
    Array([7, 2, 8], dtype=int32)
    """
    _not_in_place("put", inplace)
    if mode == "raise":
        raise NotImplementedError("put: a computation cannot raise; the modes are 'clip' and 'wrap'")
    if mode not in (None, "clip", "wrap"):
        raise ValueError(f"put: mode is 'clip' or 'wrap', not {mode!r}")
    kind, places, values = (type_of(x, "put") for x in (a, ind, v))
    if not is_integer(places.dtype):
        raise TypeError(f"put: places must be integers, not {places}")
    if not (places.size and values.size and kind.size):
        return as_operand(a)
    new = resize(v, (places.size,)) if values.ndim else v
    return _put(a, ind, new, wraps=mode == "wrap", counts_back=mode is None)


@composed
def _put(x: Any, places: Any, values: Any, *, wraps: bool, counts_back: bool) -> Any:
    x = as_operand(x)
    row, index = Reshape((x.type.size,))(x), as_index(places)
    if counts_back:
        index = from_start(index, x.type.size)
    index = numeric.remainder(index, x.type.size) if wraps else clamped(index, x.type.size - 1)
    new = astype_weak(as_operand(values), x.type.dtype, x.type.weak)
    return Reshape(x.type.shape)(row.at[Reshape((index.type.size,))(index)].set(new))


def put_along_axis(
    arr: Any, indices: Any, values: Any, axis: int | None, inplace: bool = True, *, mode: str | None = None
) -> Any:
    """`arr` with `values` along `axis` at indices of their own for each place of the other dims.

    Indices and values broadcast; an index outside is left out, or the nearest is meant (`mode` "clip"). Arrays are not
    written to: say `inplace=False`.

    >>> jnp.put_along_axis(jnp.zeros((2, 2)), jnp.array([[0], [1]]), 5, axis=1, inplace=False)
    Array([[5., 0.],
           [0., 5.]], dtype=float32)
    """
    _not_in_place("put_along_axis", inplace)
    how = mode_of("put_along_axis", mode, "drop")
    x, kind = as_operand(arr, "put_along_axis"), type_of(indices, "put_along_axis")
    if not is_integer(kind.dtype):
        raise TypeError(f"put_along_axis: indices must be integers, not {kind}")
    shape = x.type.shape
    if axis is None:
        x, axis = methods.reshape(x, shape=-1), 0
    if kind.ndim != x.type.ndim:
        raise ValueError(f"put_along_axis: {x.type} and the indices {kind} must have one rank")
    dim = dim_of("put_along_axis", axis, x.type.ndim)
    return methods.reshape(_put_along(x, indices, values, dim=dim, clips=how == "clip"), shape=shape)


@composed
def _put_along(x: Any, indices: Any, values: Any, *, dim: int, clips: bool) -> Any:
    index = from_start(as_index(indices), x.type.shape[dim])
    if clips:
        index = clamped(index, x.type.shape[dim] - 1)
    sizes = (*x.type.shape[:dim], index.type.shape[dim], *x.type.shape[dim + 1 :])
    index = methods.broadcast_to(index, shape=sizes)
    new = methods.broadcast_to(astype_weak(as_operand(values), x.type.dtype, x.type.weak), shape=sizes)
    rest = tuple(d for d in range(x.type.ndim) if d != dim)
    return Scatter((), (dim,), rest, rest, (dim,), how="set")(x, Reshape((*sizes, 1))(index), new)


def ravel_multi_index(
    multi_index: Sequence[Any], dims: Sequence[int], mode: str = "raise", order: str = "C", *, dtype: Any = None
) -> Any:
    """Indices along each dim of an array of shape `dims` as places among its elements in a row.

    `mode`: what an index outside means: the nearest ("clip"), one found by counting around ("wrap"), whatever comes
    out ("ignore"), or an error, for which the indices must be known now ("raise"). `order` "F" counts the first dim
    fastest.

    >>> jnp.ravel_multi_index((jnp.array([0, 1]), jnp.array([2, 0])), (2, 3))
    Array([2, 3], dtype=int32)
    """
    parts, sizes = list(multi_index), tuple(map(operator.index, dims))
    if len(parts) != len(sizes) or not parts:
        raise ValueError(f"ravel_multi_index: {len(parts)} indices are not for the {len(sizes)} dims of {sizes}")
    if order not in ("C", "F"):
        raise ValueError(f"ravel_multi_index: order is 'C' or 'F', not {order!r}")
    kinds = [type_of(part, "ravel_multi_index") for part in parts]
    if not all(is_integer(kind.dtype) for kind in kinds):
        raise ValueError(f"ravel_multi_index: indices must be integers, not {', '.join(map(str, kinds))}")
    inside = [
        _inside("ravel_multi_index", part, size, mode, ("raise", "wrap", "clip", "ignore"))
        for part, size in zip(parts, sizes, strict=True)
    ]
    wanted = meet("ravel_multi_index", kinds)[0] if dtype is None else canonical_dtype(dtype)
    if integer_range(wanted)[1] < math.prod(sizes) - 1:
        raise ValueError(
            f"ravel_multi_index: {wanted} cannot hold all places of an array of shape {sizes}: give `dtype`"
        )
    steps = [math.prod(sizes[dim + 1 :] if order == "C" else sizes[:dim]) for dim in range(len(sizes))]
    found = [
        numeric.multiply(methods.astype(part, dtype=wanted), step) for part, step in zip(inside, steps, strict=True)
    ]
    total = found[0]
    for more in found[1:]:
        total = numeric.add(total, more)
    return total
