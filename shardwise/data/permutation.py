"""A pseudorandom permutation of `range(size)` in constant memory: a Feistel network with cycle walking."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, final

import numpy as np

from shardwise.errors import DataError

NumpyArray = np.ndarray[Any, Any]

_ROUNDS = 8


@final
class Permutation:
    """A pseudorandom permutation of `range(size)`, computed index by index.

    A Feistel network permutes the integers of an even number of bits. An index that leaves the range is permuted again
    until it is inside (cycle walking), which takes four rounds of the network on average at most. So the memory does
    not depend on the size, and every process can compute the part that it needs.

    Args:
        size: the number of indices.
        seed: an integer. Equal seeds mean equal permutations, on all machines.
        epoch: another integer, such as the number of the pass over the data: each has a permutation of its own.

    Raises:
        DataError: if `size` is not between 1 and 2**62, or `seed` is not an integer.

    Example:
        >>> shuffled = jax.data.Permutation(8, seed=0)(np.arange(8))
        >>> sorted(shuffled.tolist())
        [0, 1, 2, 3, 4, 5, 6, 7]
    """

    def __init__(self, size: int, seed: int, epoch: int = 0):
        if not 1 <= size <= 2**62:
            raise DataError(f"Permutation: size must be between 1 and 2**62, not {size}")
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise DataError(f"Permutation: seed must be an integer, not {seed!r}")
        self.size = int(size)
        self._half = np.uint64(max(1, ((self.size - 1).bit_length() + 1) // 2))  # bits of each half of an index
        self._mask = np.uint64((1 << int(self._half)) - 1)
        digest = blake2b(f"{int(seed)} {int(epoch)}".encode(), digest_size=8 * _ROUNDS).digest()
        self._keys = np.frombuffer(digest, "<u8")

    def __call__(self, indices: int | Sequence[int] | NumpyArray) -> NumpyArray:
        """Return the images of indices, as an int64 array of the same shape.

        Args:
            indices: integers between 0 and `size` - 1.

        Raises:
            DataError: if an index is outside of the range.
        """
        array = np.asarray(indices)
        if array.size and (array.min() < 0 or array.max() >= self.size):
            raise DataError(f"Permutation: indices must be between 0 and {self.size - 1}")
        images = self._network(array.astype(np.uint64).reshape(-1))
        while (outside := images >= self.size).any():
            images[outside] = self._network(images[outside])
        return images.astype(np.int64).reshape(array.shape)

    def _network(self, indices: NumpyArray) -> NumpyArray:
        left, right = indices >> self._half, indices & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right ^ key) & self._mask)
        return (left << self._half) | right


def _mix(x: NumpyArray) -> NumpyArray:
    """Return the hash of each 64-bit integer: the finalizer of SplitMix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NumpyArray = x ^ (x >> np.uint64(31))
    return mixed
