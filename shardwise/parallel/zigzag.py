"""The zigzag order of a sequence, in which causal attention gives every device the same work.

The sequence is divided into 2n chunks for n devices, and device i holds the chunks i and 2n-1-i:

    device      0      1      2      3
    chunks    0, 7   1, 6   2, 5   3, 4
"""

import shardwise.numpy as jnp
from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays.methods import Array
from shardwise.errors import StrategyError
from shardwise.typing import ArrayLike

_ZIGZAG = Family(
    {
        "x": "an array.",
        "shards": "the number of devices along the mesh axis that shards the sequence.",
        "dim": "the dim of the sequence.",
    },
    returns="An array with the shape of `x`.",
    raises=["StrategyError: if `x` has no such dim, or if its size is not divisible by twice the number of shards."],
)


@documented(_ZIGZAG)
def zigzag(x: ArrayLike, shards: int, *, dim: int = 1) -> Array:
    """Permute a sequence into the zigzag order: shard i of the result holds the chunks i and 2·shards - 1 - i.

    Permute tokens, targets, positions and segment ids once, where batches are made. All functions of single positions
    then work unchanged, and attention is called with `layout="zigzag"`.

    Example:
        >>> jax.parallel.zigzag(jnp.arange(8), 2, dim=0)
        Array([0, 1, 6, 7, 2, 3, 4, 5], dtype=int32)
    """
    x, dim = _check("zigzag", x, shards, dim)
    chunks = x.reshape(*x.shape[:dim], 2, shards, x.shape[dim] // (2 * shards), *x.shape[dim + 1 :])
    first, second = jnp.split(chunks, 2, dim)
    return jnp.concatenate([first, jnp.flip(second, dim + 1)], dim).swapaxes(dim, dim + 1).reshape(x.shape)


@documented(_ZIGZAG)
def unzigzag(x: ArrayLike, shards: int, *, dim: int = 1) -> Array:
    """Permute a sequence from the zigzag order into its own order: the inverse of `zigzag`.

    Example:
        >>> jax.parallel.unzigzag(jnp.array([0, 1, 6, 7, 2, 3, 4, 5]), 2, dim=0)
        Array([0, 1, 2, 3, 4, 5, 6, 7], dtype=int32)
    """
    x, dim = _check("unzigzag", x, shards, dim)
    chunks = x.reshape(*x.shape[:dim], shards, 2, x.shape[dim] // (2 * shards), *x.shape[dim + 1 :])
    first, second = jnp.split(chunks.swapaxes(dim, dim + 1), 2, dim)
    return jnp.concatenate([first, jnp.flip(second, dim + 1)], dim).reshape(x.shape)


def _check(name: str, x: ArrayLike, shards: int, dim: int) -> tuple[Array, int]:
    """Return `x` as an array and `dim` as a nonnegative number."""
    x = jnp.asarray(x)
    if not -x.ndim <= dim < x.ndim:
        raise StrategyError(f"{name}: dim {dim} does not exist in an array of shape {x.shape}")
    if shards < 1 or x.shape[dim] % (2 * shards):
        raise StrategyError(
            f"{name}: dim {dim} of an array of shape {x.shape} has size {x.shape[dim]}, which is not divisible by "
            f"{2 * shards}, twice the number of shards"
        )
    return x, dim % x.ndim
