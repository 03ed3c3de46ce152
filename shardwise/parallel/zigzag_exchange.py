"""Exchange of a device's shard of a sequence in contiguous order for its shard in zigzag order, and back.

    device        0      1      2      3
    contiguous  0, 1   2, 3   4, 5   6, 7
    zigzag      0, 7   1, 6   2, 5   3, 4

The even chunks of all devices go to different devices, and so do the odd ones: each is one permute. The sequence is
dim 1. The functions are called inside a region over the ring.
"""

import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.parallel.ring import Ring


def exchange_to_zigzag(x: Array, ring: Ring) -> Array:
    """Return this device's shard in zigzag order, given its shard in contiguous order."""
    chunks = jnp.split(x, 2, 1)
    even, odd = (lax.ppermute(chunk, ring.axes, _targets(ring.size, parity)) for parity, chunk in enumerate(chunks))
    return _order_chunks(even, odd, ring)


def exchange_from_zigzag(x: Array, ring: Ring) -> Array:
    """Return this device's shard in contiguous order, given its shard in zigzag order."""
    first, last = jnp.split(x, 2, 1)
    chunks = jnp.split(_order_chunks(first, last, ring), 2, 1)
    sources = [[(target, source) for source, target in _targets(ring.size, parity)] for parity in (0, 1)]
    return jnp.concatenate(
        [lax.ppermute(chunk, ring.axes, pairs) for chunk, pairs in zip(chunks, sources, strict=True)], 1
    )


def _targets(size: int, parity: int) -> list[tuple[int, int]]:
    """Return pairs of a device and the one that holds its even (0) or odd (1) chunk in zigzag order."""
    chunks = range(parity, 2 * size, 2)
    return [(device, min(chunk, 2 * size - 1 - chunk)) for device, chunk in enumerate(chunks)]


def _order_chunks(first: Array, last: Array, ring: Ring) -> Array:
    """Concatenate two chunks, in the other order on odd devices, whose first chunk in zigzag order is odd."""
    is_even = ring.index() % 2 == 0
    return jnp.where(is_even, jnp.concatenate([first, last], 1), jnp.concatenate([last, first], 1))
