"""random_bcoo: sparse arrays with random elements at random coordinates."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise import random
from shardwise.compiler.arrays.methods import Array
from shardwise.experimental.sparse.bcoo import BCOO, split_shape
from shardwise.experimental.sparse.coordinates import map_batch
from shardwise.typing import ArrayLike, DTypeLike


def random_bcoo(
    key: ArrayLike,
    shape: Sequence[int],
    *,
    dtype: DTypeLike = float,
    indices_dtype: DTypeLike | None = None,
    nse: float | int = 0.2,
    n_batch: int = 0,
    n_dense: int = 0,
    unique_indices: bool = True,
    sorted_indices: bool = False,
    generator: Callable[..., Array] = random.uniform,
    **kwds: Any,
) -> BCOO:
    """Sample a sparse array.

    Args:
        key: the PRNG key.
        shape: the shape of the array.
        dtype: the dtype of the elements.
        indices_dtype: the dtype of the coordinates; int32 if None.
        nse: the number of elements to store per batch element, or the share of all elements if it is less than 1.
        n_batch: the number of leading dims that are batch dims.
        n_dense: the number of trailing dims that are dense.
        unique_indices: whether the coordinates of the elements are distinct.
        sorted_indices: whether the coordinates are sorted.
        generator: a function of a key, a shape and a dtype, which samples the elements.
        **kwds: further keyword arguments of `generator`.

    Returns:
        The sparse array.

    Raises:
        ValueError: if `nse` is negative or exceeds the number of elements, or the rank is too small.

    Example:
        >>> jax.experimental.sparse.random_bcoo(jax.random.key(0), (4, 5), nse=6)
        BCOO(float32[4, 5], nse=6)
    """
    shape = tuple(shape)
    batch, sparse, dense = split_shape("random_bcoo", shape, n_batch, n_dense)
    size = math.prod(sparse)
    if (not 0 <= nse <= size and nse >= 1) or nse < 0:
        raise ValueError(f"random_bcoo: nse={nse} must be between 0 and {size}, the number of elements")
    count = math.ceil(nse * size) if 0 < nse < 1 else int(nse)
    data_key, index_key = random.split(key)
    index_dtype = np.int32 if indices_dtype is None else indices_dtype

    def sample_indices(key: Array) -> Array:
        positions = (
            random.choice(key, size, (count,), replace=False)
            if unique_indices
            else random.randint(key, (count,), 0, size)
        )
        if not sparse:
            return jnp.zeros((count, 0), index_dtype)
        return jnp.stack(jnp.unravel_index(positions, sparse), axis=-1).astype(index_dtype)

    keys = random.split(index_key, batch) if batch else index_key
    indices = map_batch(sample_indices, n_batch)(keys)
    data = generator(data_key, shape=(*batch, count, *dense), dtype=dtype, **kwds)
    result = BCOO((data, indices), shape=shape, unique_indices=unique_indices)
    return result.sort_indices() if sorted_indices else result
