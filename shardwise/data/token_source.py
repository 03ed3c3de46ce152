"""TokenSource: sequences of tokens in files.

The format is one file, or several, of tokens without a header in a given integer dtype and little-endian order, as
`array.tofile` writes them; or files `.npy` of one-dimensional integer arrays, as `numpy.save` writes them.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from shardwise.data.array_source import fingerprint, probe_indices
from shardwise.data.packing import check_length, segments_of
from shardwise.data.token_file import TokenFile
from shardwise.errors import DataError
from shardwise.typing import DTypeLike

NumpyArray = np.ndarray[Any, Any]


@final
class TokenSource:
    """Samples by index that are consecutive sequences of tokens in files.

    Sample `i` of a file has the tokens from `i * length` on as `tokens`, and the tokens that follow each of them as
    `targets`, both int32 arrays of size `length`. The tokens at the end of a file that do not fill a sequence are left
    out.

    With a `separator`, a sequence is a pack of documents. It has `segment_ids`, which count its documents from 1 on,
    `positions` in each document, and `loss_mask`, which is false where the target belongs to the next document. A
    document that begins in an earlier sequence has positions from 0 on.

    Args:
        paths: the path of a file, or several. A file `.npy` has a header, others are tokens alone.
        length: the number of tokens of a sample.
        dtype: the dtype of the tokens. Files without a header need it.
        separator: the token that ends each document, which is part of it.
        vocabulary: the number of different tokens. Every sample that is read is checked against it.

    Attributes:
        fingerprint: a digest of the sizes and of some sequences, by which a saved state finds out that the data is
            another.

    Raises:
        DataError: if a file does not exist, does not hold tokens of `dtype`, or is too short for one sequence. Also
            when a sample is read that has a token outside of the vocabulary, or if a file has shrunk.

    Example:
        >>> np.arange(100, 110, dtype=np.uint16).tofile(folder / "tokens.bin")
        >>> source = jax.data.TokenSource(folder / "tokens.bin", 4, dtype=np.uint16)
        >>> len(source), source[1]["tokens"].tolist(), source[1]["targets"].tolist()
        (2, [104, 105, 106, 107], [105, 106, 107, 108])
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        length: int,
        *,
        dtype: DTypeLike | None = None,
        separator: int | None = None,
        vocabulary: int | None = None,
    ):
        check_length("TokenSource", length)
        listed = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if not listed:
            raise DataError("TokenSource: there is no file")
        self._paths = [Path(path) for path in listed]
        self._files = [TokenFile(path, None if dtype is None else np.dtype(dtype)) for path in self._paths]
        self._length, self._separator, self._vocabulary = length, separator, vocabulary
        counts = [max(0, len(file) - 1) // length for file in self._files]
        for path, file, rows in zip(self._paths, self._files, counts, strict=True):
            if not rows:
                raise DataError(
                    f"{path} has {len(file)} tokens, but a sequence and its targets need {length + 1}: pass a smaller "
                    "length, or a larger file"
                )
        self._starts = np.cumsum([0, *counts])  # the first sample of each file; the last entry is their number
        probes = self.read_batch(probe_indices(len(self)))
        self.fingerprint = fingerprint(probes, length, separator, [len(file) for file in self._files])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> dict[str, NumpyArray]:
        return {name: rows[0] for name, rows in self.read_batch(np.array([index])).items()}

    def read_batch(self, indices: NumpyArray) -> dict[str, NumpyArray]:
        """Return the samples with these indices, stacked along a new first dim."""
        rows = np.stack([self._row(int(index)) for index in indices])
        tokens, targets = rows[:, :-1], rows[:, 1:]
        batch = {"tokens": tokens, "targets": targets}
        if self._separator is None:
            return batch
        ends = tokens == self._separator
        segment_ids, positions = segments_of(ends)
        return {**batch, "segment_ids": segment_ids, "positions": positions, "loss_mask": ~ends}

    def _row(self, index: int) -> NumpyArray:
        """Return the tokens of a sample and the one after them, as int32."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        start = (index - int(self._starts[number])) * self._length
        row = self._files[number].read(start, self._length + 1)
        low, high = int(row.min()), int(row.max())
        limit = np.iinfo(np.int32).max + 1 if self._vocabulary is None else self._vocabulary
        if low < 0 or high >= limit:
            raise DataError(
                f"{self._paths[number]} has the token {low if low < 0 else high} between {start} and "
                f"{start + self._length}, outside of the vocabulary of {limit}: is {row.dtype} the dtype of the file?"
            )
        return row.astype(np.int32)
