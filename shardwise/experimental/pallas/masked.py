"""load, store and swap with masks: elements that are masked out may be out of bounds."""

from typing import Any

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.api.ref import RefLike
from shardwise.api.ref_index import read_elements, write_elements
from shardwise.api.ref_view import IndexTransform, TransformedRef
from shardwise.compiler.arrays.dynamic_index import Slice
from shardwise.compiler.arrays.methods import Array
from shardwise.experimental.pallas.kernel_ref import kernel_view
from shardwise.experimental.pallas.memory import undefined
from shardwise.typing import ArrayLike


def load_masked(ref: RefLike, mask: ArrayLike | None = None, other: ArrayLike | None = None, eviction: str = "") -> Any:
    """Return the elements of a Ref or view; `other`, or undefined ones, where the mask is false."""
    if (view := kernel_view(ref)) is not None:
        return view[0].load(view[1], ..., mask, other, eviction)
    array, index = _last_index(ref)
    value = array[...]
    elements = read_elements(_padded(value, index), index)
    return elements if mask is None or other is None else jnp.where(mask, elements, jnp.asarray(other, elements.dtype))


def store_masked(ref: RefLike, value: ArrayLike, mask: ArrayLike | None = None) -> None:
    """Write elements of a Ref or view, where the mask is true. Elements out of bounds are dropped."""
    if (view := kernel_view(ref)) is not None:
        view[0].store(view[1], ..., value, mask)
        return
    array, index = _last_index(ref)
    padded = _padded(array[...], index)
    if mask is not None:
        value = jnp.where(mask, value, read_elements(padded, index))
    updated = write_elements(padded, index, value)
    array[...] = updated if padded.shape == tuple(array.shape) else updated[tuple(map(slice, array.shape))]


def _last_index(ref: RefLike) -> tuple[Any, Any]:
    """Return a view as another one and the index into it."""
    if isinstance(ref, TransformedRef):
        *before, last = ref.transforms
        if isinstance(last, IndexTransform):
            return (TransformedRef(ref.ref, tuple(before)) if before else ref.ref), last.index
    return ref, (...,)


def _padded(x: Array, index: tuple[Any, ...]) -> Any:
    """Return an array with undefined elements at the end of dims that dynamic slices index.

    A dynamic slice that exceeded the array would be moved into bounds, and its elements shifted.
    """
    if any(entry is None or entry is Ellipsis for entry in index) or not any(isinstance(e, Slice) for e in index):
        return x
    widths = [
        entry.size * entry.stride if isinstance(entry, Slice) and not _is_inside(entry, size) else 0
        for entry, size in zip(index, x.shape, strict=False)
    ]
    widths += [0] * (x.ndim - len(widths))
    return lax.pad(x, undefined((), x.dtype), [(0, width, 0) for width in widths]) if any(widths) else x


def _is_inside(entry: Slice, size: int) -> bool:
    """Return whether a slice is known to be inside of a dim."""
    return isinstance(entry.start, int) and entry.start + (entry.size - 1) * entry.stride < size
