"""`x[...]` at places that are known: an index and a type come in, ops that take those elements come out.

x[2]          a slice of one element, and a reshape without its dim
x[5:1:-2]     a slice, reversed
x[..., None]  a reshape
"""

import operator
from typing import Any

import numpy as np

from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.types import ArrayType, Typed
from shardwise.compiler.ops.shape import Reshape
from shardwise.compiler.ops.slicing import Reverse, Slice

_KNOWN = "an index is made of integers, slices, None and `...` that are known now"


def indexing_ops(index: Any, type: ArrayType) -> tuple[Op, ...]:
    """The ops that, one after the other, make `x[index]` of an `x` of this type; none where that is `x` itself.

    As in JAX an integer beyond either end means the element there: an array cannot fail while it is computed, and
    integers that are known now mean what others will.
    """
    parts: list[tuple[int, int, int]] = []
    reversed_dims: list[int] = []
    shape: list[int] = []
    for entry in _expanded(index, type):
        if entry is None:
            shape.append(1)
            continue
        dim, size = len(parts), type.shape[len(parts)]
        if isinstance(entry, slice):
            start, stop, step = entry.indices(size)
            count = len(range(start, stop, step))
            if step < 0 and count:
                start, stop = start + (count - 1) * step, start + 1
                reversed_dims.append(dim)
            parts.append((start, stop, abs(step)) if count else (0, 0, 1))
            shape.append(count)
        else:
            at = operator.index(entry)
            if size == 0:
                raise IndexError(f"index: {at} is out of bounds for dim {dim} of {type}, which has no elements")
            at = min(max(at + size if at < 0 else at, 0), size - 1)
            parts.append((at, at + 1, 1))
    cut = Slice(*(tuple(part[i] for part in parts) for i in range(3)))
    taken = cut.out_type(type)
    steps: list[Op] = []
    if taken.shape != type.shape:
        steps.append(cut)
    if reversed_dims:
        steps.append(Reverse(tuple(reversed_dims)))
    if tuple(shape) != taken.shape:
        steps.append(Reshape(tuple(shape)))
    return tuple(steps)


def _expanded(index: Any, type: ArrayType) -> list[Any]:
    """The entries of an index, one for each dim and None for each new one."""
    entries = list(index) if isinstance(index, tuple) else [index]
    for entry in entries:
        _check(entry, type)
    given = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if given > type.ndim:
        raise IndexError(f"index: {given} entries are too many for {type}, which has rank {type.ndim}")
    places = [place for place, entry in enumerate(entries) if entry is Ellipsis]
    if len(places) > 1:
        raise IndexError("index: only one entry can be `...`")
    at = places[0] if places else len(entries)
    return [*entries[:at], *[slice(None)] * (type.ndim - given), *entries[at + 1 :]]


def _check(entry: Any, type: ArrayType) -> None:
    """Whether this is a kind of entry that can be taken now."""
    if isinstance(entry, (bool, np.bool_, Typed)) or (isinstance(entry, np.ndarray) and entry.shape):
        raise NotImplementedError(
            f"index: {type} cannot be indexed by {_described(entry)} yet: {_KNOWN}. "
            "Read a number out with `int(i)`, or choose elements with `numpy.where`"
        )
    if entry is None or entry is Ellipsis or isinstance(entry, slice):
        return
    try:
        operator.index(entry)
    except TypeError:
        raise TypeError(f"index: {type} cannot be indexed by {entry!r}: {_KNOWN}") from None


def _described(entry: Any) -> str:
    if isinstance(entry, Typed):
        return f"the array {entry.type}"
    return f"an array of shape {entry.shape}" if isinstance(entry, np.ndarray) else f"the boolean {entry}"


def dim_of(name: str, axis: Any, ndim: int) -> int:
    """An axis of an array of this rank as a dim from 0; one that does not exist is an error of `name`."""
    at = operator.index(axis)
    if not -ndim <= at < ndim:
        raise ValueError(f"{name}: axis {at} does not exist in an array of rank {ndim}")
    return at % ndim
