"""ArraySource: samples that are the rows of arrays."""

from hashlib import blake2b
from typing import Any, final

import numpy as np

from shardwise import tree
from shardwise.data.host_batch import check_batch
from shardwise.errors import DataError

NumpyArray = np.ndarray[Any, Any]

_PROBES = 16  # rows that identify the data


@final
class ArraySource:
    """Samples by index that are the rows of arrays in memory, or of memory-mapped arrays.

    Args:
        arrays: a pytree of arrays whose first dims have one size, the number of samples.

    Attributes:
        fingerprint: a digest of the types and of some rows, by which a saved state finds out that the data is another.

    Raises:
        DataError: if there is no array, if sizes differ, or if a leaf is not numeric.

    Example:
        >>> source = jax.data.ArraySource({"x": np.arange(6).reshape(3, 2), "y": np.array([0, 1, 0])})
        >>> len(source), source[1]
        (3, {'x': array([2, 3]), 'y': array(1)})
    """

    def __init__(self, arrays: object):
        self._arrays, self._size = check_batch(arrays, "ArraySource")
        if not self._size:
            raise DataError("ArraySource: the arrays have no rows")
        self.fingerprint = fingerprint(self.read_batch(probe_indices(self._size)), self._size)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        return tree.map(lambda array: np.asarray(array[index]), self._arrays)

    def read_batch(self, indices: NumpyArray) -> Any:
        """Return the rows with these indices."""
        return tree.map(lambda array: np.asarray(array[indices]), self._arrays)


def probe_indices(size: int) -> NumpyArray:
    """Return the samples that identify the data of a source with `size` samples."""
    return np.unique(np.linspace(0, size - 1, _PROBES).astype(np.int64))


def fingerprint(probes: object, *parts: object) -> str:
    """Return a digest of the sizes, dtypes and elements of some samples, and of further values."""
    hasher = blake2b(repr(parts).encode(), digest_size=16)
    for path, leaf in tree.leaves_with_path(probes):
        hasher.update(f"{tree.keystr(path)} {leaf.shape} {leaf.dtype}".encode())
        hasher.update(np.ascontiguousarray(leaf).view(np.uint8).data)
    return hasher.hexdigest()
