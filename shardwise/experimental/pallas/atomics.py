"""Atomic updates. The interpreter runs the steps of a grid one after the other, so each is a read and a write."""

from collections.abc import Callable, Sequence
from typing import Any

import shardwise.numpy as jnp
from shardwise.api.ref import RefLike
from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays.dynamic_index import Slice
from shardwise.experimental.pallas.kernel_ref import kernel_view
from shardwise.typing import ArrayLike, Index

_ATOMIC = Family(
    {
        "x_ref_or_view": "a Ref or a view of one.",
        "idx": "the index of the elements.",
        "val": "the operand, which broadcasts to the elements.",
        "mask": "where to update; by default everywhere.",
    },
    returns="The elements before.",
    raises=["TypeError: if the shapes or dtypes do not fit."],
)


def _update(
    ref: RefLike,
    index: Any,
    kind: str,
    values: Sequence[ArrayLike],
    mask: ArrayLike | None,
    combine: Callable[..., Any],
) -> Any:
    """Replace elements by `combine(element, *values)`. `kind` is the name of the update in Triton."""
    if (view := kernel_view(ref)) is not None:
        return view[0].update(view[1], index, kind, values, mask)
    before = ref[index]
    after = combine(before, *values)
    ref[index] = after if mask is None else jnp.where(mask, after, before)
    return before


@documented(_ATOMIC)
def atomic_xchg(x_ref_or_view: RefLike, idx: Index, val: ArrayLike, *, mask: ArrayLike | None = None) -> Any:
    """Replace elements.

    Example:
        >>> ref = jax.new_ref(jnp.arange(3))
        >>> pallas.triton.atomic_xchg(ref, 1, 5), ref[...]
        (Array(1, dtype=int32), Array([0, 5, 2], dtype=int32))
    """
    return _update(x_ref_or_view, idx, "exch", [val], mask, lambda _, new: new)


@documented(_ATOMIC)
def atomic_add(x_ref_or_view: RefLike, idx: Index, val: ArrayLike, *, mask: ArrayLike | None = None) -> Any:
    """Add to elements. An element whose index repeats gets all the terms.

    Example:
        >>> ref = jax.new_ref(jnp.arange(3))
        >>> _ = pallas.triton.atomic_add(ref, jnp.array([1, 1]), 5)
        >>> ref[...]
        Array([ 0, 11,  2], dtype=int32)
    """
    entries = idx if isinstance(idx, tuple) else (idx,)
    if any(isinstance(entry, Slice) for entry in entries) or kernel_view(x_ref_or_view) is not None:  # no index repeats
        return _update(x_ref_or_view, idx, "add", [val], mask, lambda old, new: old + new)
    before = x_ref_or_view[idx]
    terms = val if mask is None else jnp.where(mask, val, jnp.zeros((), before.dtype))
    x_ref_or_view[...] = x_ref_or_view[...].at[idx].add(terms)
    return before


@documented(_ATOMIC)
def atomic_max(x_ref_or_view: RefLike, idx: Index, val: ArrayLike, *, mask: ArrayLike | None = None) -> Any:
    """Replace elements by the larger of the element and `val`.

    Example:
        >>> ref = jax.new_ref(jnp.arange(3))
        >>> _ = pallas.triton.atomic_max(ref, ..., 1)
        >>> ref[...]
        Array([1, 1, 2], dtype=int32)
    """
    return _update(x_ref_or_view, idx, "max", [val], mask, jnp.maximum)


@documented(_ATOMIC)
def atomic_min(x_ref_or_view: RefLike, idx: Index, val: ArrayLike, *, mask: ArrayLike | None = None) -> Any:
    """Replace elements by the smaller of the element and `val`.

    Example:
        >>> ref = jax.new_ref(jnp.arange(3))
        >>> _ = pallas.triton.atomic_min(ref, ..., 1)
        >>> ref[...]
        Array([0, 1, 1], dtype=int32)
    """
    return _update(x_ref_or_view, idx, "min", [val], mask, jnp.minimum)


@documented(_ATOMIC)
def atomic_and(x_ref_or_view: RefLike, idx: Index, val: ArrayLike, *, mask: ArrayLike | None = None) -> Any:
    """Replace integers by their bitwise and with `val`.

    Example:
        >>> ref = jax.new_ref(jnp.arange(3))
        >>> _ = pallas.triton.atomic_and(ref, ..., 1)
        >>> ref[...]
        Array([0, 1, 0], dtype=int32)
    """
    return _update(x_ref_or_view, idx, "and", [val], mask, jnp.bitwise_and)


@documented(_ATOMIC)
def atomic_or(x_ref_or_view: RefLike, idx: Index, val: ArrayLike, *, mask: ArrayLike | None = None) -> Any:
    """Replace integers by their bitwise or with `val`.

    Example:
        >>> ref = jax.new_ref(jnp.arange(3))
        >>> _ = pallas.triton.atomic_or(ref, ..., 1)
        >>> ref[...]
        Array([1, 1, 3], dtype=int32)
    """
    return _update(x_ref_or_view, idx, "or", [val], mask, jnp.bitwise_or)


@documented(_ATOMIC)
def atomic_xor(x_ref_or_view: RefLike, idx: Index, val: ArrayLike, *, mask: ArrayLike | None = None) -> Any:
    """Replace integers by their bitwise exclusive or with `val`.

    Example:
        >>> ref = jax.new_ref(jnp.arange(3))
        >>> _ = pallas.triton.atomic_xor(ref, ..., 1)
        >>> ref[...]
        Array([1, 0, 3], dtype=int32)
    """
    return _update(x_ref_or_view, idx, "xor", [val], mask, jnp.bitwise_xor)


def atomic_cas(ref: RefLike, cmp: ArrayLike, val: ArrayLike) -> Any:
    """Replace the element of a scalar Ref, if it is equal to `cmp`.

    Args:
        ref: a Ref or view of a scalar.
        cmp: the expected value.
        val: the new value.

    Returns:
        The value before.

    Raises:
        TypeError: if the dtypes do not fit.

    Example:
        >>> ref = jax.new_ref(jnp.int32(3))
        >>> pallas.triton.atomic_cas(ref, 3, 7), ref[...]
        (Array(3, dtype=int32), Array(7, dtype=int32))
    """
    return _update(ref, ..., "cas", [cmp, val], None, lambda old, expected, new: jnp.where(old == expected, new, old))
