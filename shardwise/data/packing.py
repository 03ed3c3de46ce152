"""Packing: documents of different lengths as sequences of one length, with segment ids and positions.

Documents are taken in order. One that does not fit into the rest of a sequence begins the next one, and the rest is
padding. A document that is longer than a sequence is split, and its last part may share a sequence with others.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final

import numpy as np

from shardwise.data.array_source import fingerprint, probe_indices
from shardwise.data.readers import Samples
from shardwise.errors import DataError

NumpyArray = np.ndarray[Any, Any]
Part = tuple[NumpyArray, NumpyArray]  # tokens of a document, and the tokens that follow each of them


def segments_of(ends: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """Return the segment ids, from 1 on, and the positions in each segment. `ends` marks the last token of each."""
    starts = np.zeros_like(ends)
    starts[..., 1:] = ends[..., :-1]
    indices = np.arange(ends.shape[-1], dtype=np.int32)
    first = np.maximum.accumulate(np.where(starts, indices, 0), axis=-1)
    return 1 + np.cumsum(starts, axis=-1, dtype=np.int32), (indices - first).astype(np.int32)


def pack(documents: Iterable[Any], length: int, *, padding: int = 0) -> Iterator[dict[str, NumpyArray]]:
    """Pack documents of different lengths into sequences of one length, in the order of the documents.

    A sequence has `tokens`; `targets`, the tokens that follow them in their documents; `segment_ids`, which count the
    documents of the sequence from 1 on, and are 0 for padding; `positions` in each document, or in its part; and
    `loss_mask`, which is true where there is a target. All are arrays of size `length`.

    Args:
        documents: an iterable of one-dimensional arrays or lists of tokens.
        length: the number of tokens of a sequence.
        padding: the token that fills the rest of a sequence.

    Returns:
        An iterator of sequences.

    Raises:
        DataError: if `length` is less than 1, or a document is not a one-dimensional array of integers.

    Example:
        >>> for sequence in jax.data.pack([[5, 6], [7, 8, 9], [4]], 4):
        ...     print(sequence["tokens"], sequence["segment_ids"], sequence["targets"])
        [5 6 0 0] [1 1 0 0] [6 0 0 0]
        [7 8 9 4] [1 1 1 2] [8 9 0 0]
    """
    check_length("pack", length)
    return _pack(documents, length, padding)


def _pack(documents: Iterable[Any], length: int, padding: int) -> Iterator[dict[str, NumpyArray]]:
    parts: list[Part] = []
    next_fit = _NextFit(length)
    for index, document in enumerate(documents):
        tokens = _as_document(document, index)
        for start, end, begins_sequence in next_fit.split(len(tokens)):
            if begins_sequence and parts:
                yield _sequence(parts, length, padding)
                parts = []
            parts.append((tokens[start:end], tokens[start + 1 : end + 1]))
    if parts:
        yield _sequence(parts, length, padding)


@final
class PackedSource:
    """Samples by index that are packs of documents: the sequences that `pack` yields, in any order.

    It keeps one number per document in memory. Sequences can be shuffled and read by several processes, and a saved
    state can be restored on another number of them.

    Args:
        documents: a sequence of one-dimensional arrays or lists of tokens: an object with a length and items by index.
        length: the number of tokens of a sample.
        lengths: the number of tokens of each document, if it is known; otherwise all documents are read once.
        padding: the token that fills the rest of a sample.

    Attributes:
        fill: the part of all tokens that is not padding.
        fingerprint: a digest by which a saved state finds out that the data is another.

    Raises:
        DataError: if there is no document, if a document is not a one-dimensional array of integers, or if it has
            another length than `lengths` says.

    Example:
        >>> source = jax.data.PackedSource([[5, 6], [7, 8, 9], [4]], 4)
        >>> len(source), source[1]["tokens"], source.fill
        (2, array([7, 8, 9, 4], dtype=int32), 0.75)
    """

    def __init__(
        self, documents: Samples, length: int, *, lengths: Sequence[int] | NumpyArray | None = None, padding: int = 0
    ):
        check_length("PackedSource", length)
        self._documents, self._length, self._padding = documents, length, padding
        if lengths is None:
            lengths = [len(_as_document(documents[index], index)) for index in range(len(documents))]
        sizes = np.asarray(lengths)
        if sizes.shape != (len(documents),) or not sizes.any() or sizes.dtype.kind not in "iu":
            raise DataError(
                f"PackedSource: {len(documents)} documents need as many integers as lengths, not all 0; lengths has "
                f"shape {sizes.shape} and dtype {sizes.dtype}"
            )
        next_fit = _NextFit(length)
        self._sizes = sizes
        self._first_parts = np.array(  # the document and the start of the first part of each sequence
            [
                *(
                    (index, start)
                    for index, size in enumerate(sizes)
                    for start, _, begins in next_fit.split(size)
                    if begins
                ),
                (len(sizes), 0),
            ]
        )
        self.fill = float(sizes.sum() / (length * len(self)))
        self.fingerprint = fingerprint(self.read_batch(probe_indices(len(self))), len(self), int(sizes.sum()))

    def __len__(self) -> int:
        return len(self._first_parts) - 1

    def __getitem__(self, index: int) -> dict[str, NumpyArray]:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        (number, start), stop = self._first_parts[index].tolist(), self._first_parts[index + 1].tolist()
        parts: list[Part] = []
        while [number, start] < stop:
            tokens = _as_document(self._documents[number], number)
            if len(tokens) != self._sizes[number]:
                raise DataError(
                    f"document {number} has {len(tokens)} tokens, but lengths[{number}] is {self._sizes[number]}"
                )
            end = min(start + self._length, len(tokens))
            if end > start:
                parts.append((tokens[start:end], tokens[start + 1 : end + 1]))
            number, start = (number, end) if end < len(tokens) else (number + 1, 0)
        return _sequence(parts, self._length, self._padding)

    def read_batch(self, indices: NumpyArray) -> dict[str, NumpyArray]:
        """Return the samples with these indices, stacked along a new first dim."""
        rows = [self[int(index)] for index in indices]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@final
class _NextFit:
    """Next-fit packing: a part that does not fit into the rest of the current sequence begins the next one."""

    def __init__(self, length: int):
        self._length, self._room = length, 0

    def split(self, size: int) -> Iterator[tuple[int, int, bool]]:
        """Yield the start and the end of each part of the next document, and whether it begins a sequence."""
        for start in range(0, size, self._length):
            end = min(start + self._length, size)
            begins_sequence = end - start > self._room
            self._room = (self._length if begins_sequence else self._room) - (end - start)
            yield start, end, begins_sequence


def _sequence(parts: Sequence[Part], length: int, padding: int) -> dict[str, NumpyArray]:
    """Return the sequence of some parts, and padding."""
    tokens = np.full(length, padding, np.int32)
    targets = np.full(length, padding, np.int32)
    segment_ids, positions = np.zeros(length, np.int32), np.zeros(length, np.int32)
    loss_mask = np.zeros(length, bool)
    start = 0
    for segment, (part, following) in enumerate(parts, 1):
        end = start + len(part)
        tokens[start:end], segment_ids[start:end] = part, segment
        positions[start:end] = np.arange(len(part))
        targets[start : start + len(following)], loss_mask[start : start + len(following)] = following, True
        start = end
    return {
        "tokens": tokens,
        "targets": targets,
        "segment_ids": segment_ids,
        "positions": positions,
        "loss_mask": loss_mask,
    }


def _as_document(document: Sequence[int] | NumpyArray, number: int) -> NumpyArray:
    tokens = np.asarray(document)
    if tokens.size == 0:
        return np.zeros(0, np.int32)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise DataError(
            f"document {number} has shape {tokens.shape} and dtype {tokens.dtype}; documents are one-dimensional "
            "arrays of integers"
        )
    return tokens


def check_length(name: str, length: int) -> None:
    """Raise an error of the function `name` if sequences of this length have no tokens."""
    if length < 1:
        raise DataError(f"{name}: length must be at least 1, not {length}")
