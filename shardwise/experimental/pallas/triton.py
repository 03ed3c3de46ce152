"""jax.experimental.pallas.triton: what kernels for GPUs use."""

from typing import Any

from shardwise.api.ref import RefLike
from shardwise.base.unsupported import set_unsupported_names
from shardwise.experimental.pallas.arithmetic import approx_tanh, dot
from shardwise.experimental.pallas.atomics import (
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_xchg,
    atomic_xor,
)
from shardwise.experimental.pallas.compiler_params import TritonCompilerParams as CompilerParams
from shardwise.experimental.pallas.hints import debug_barrier, max_contiguous
from shardwise.experimental.pallas.masked import load_masked, store_masked
from shardwise.typing import ArrayLike

__all__ = [
    "CompilerParams",
    "approx_tanh",
    "atomic_add",
    "atomic_and",
    "atomic_cas",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_xchg",
    "atomic_xor",
    "debug_barrier",
    "dot",
    "load",
    "max_contiguous",
    "store",
]


def load(
    ref: RefLike,
    *,
    mask: ArrayLike | None = None,
    other: ArrayLike | None = None,
    cache_modifier: str | None = None,
    eviction_policy: str | None = None,
    volatile: bool = False,
) -> Any:
    """Return the elements of a Ref.

    Args:
        ref: a Ref, or a view such as `ref.at[pl.ds(i, 8)]`. Elements that are masked out may be out of bounds.
        mask: which elements are needed; the others are `other`, or undefined.
        other: the value of the others.
        eviction_policy: "evict_first" or "evict_last": when the cache of a GPU may drop the elements.
        cache_modifier, volatile: hints for compilers; ignored.

    Returns:
        An array.

    Raises:
        TypeError: if the mask does not fit.
        ValueError: if `eviction_policy` is unknown.

    Example:
        >>> pallas.triton.load(jax.new_ref(jnp.arange(2)), mask=jnp.array([False, True]), other=7)
        Array([7, 1], dtype=int32)
    """
    del cache_modifier, volatile
    if eviction_policy not in (None, "", "evict_first", "evict_last"):
        raise ValueError(f"load: eviction_policy must be 'evict_first' or 'evict_last', not {eviction_policy!r}")
    return load_masked(ref, mask, other, eviction_policy or "")


def store(ref: RefLike, val: ArrayLike, *, mask: ArrayLike | None = None, eviction_policy: str | None = None) -> None:
    """Write the elements of a Ref.

    Args:
        ref: a Ref, or a view such as `ref.at[pl.ds(i, 8)]`. Elements that are masked out may be out of bounds.
        val: the new elements.
        mask: which elements to write; by default all.
        eviction_policy: a hint for compilers; ignored.

    Raises:
        TypeError: if the mask or the elements do not fit.

    Example:
        >>> ref = jax.new_ref(jnp.arange(2))
        >>> pallas.triton.store(ref, jnp.array([5, 6]), mask=jnp.array([True, False]))
        >>> ref[...]
        Array([5, 1], dtype=int32)
    """
    del eviction_policy
    store_masked(ref, val, mask)


set_unsupported_names(
    __name__, ["elementwise_inline_asm"], "Write the function with `numpy` and `lax`, which run anywhere.", __all__
)
