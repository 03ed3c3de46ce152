"""Readers: host batches of a source, from any batch on.

An `IndexedReader` reads samples by index, each process its own rows. A `StreamReader` iterates over a source.
"""

import json
import sys
from base64 import b64decode, b64encode
from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import count, islice
from typing import Any, Protocol, TypeAlias, TypeGuard, final

import numpy as np

from shardwise.data.array_source import ArraySource
from shardwise.data.batch_placement import BatchPlacement
from shardwise.data.host_batch import batch_digest, check_batch, stack_samples
from shardwise.data.permutation import Permutation
from shardwise.errors import DataError, DataStateMismatch
from shardwise.runtime.client import process_count

NumpyArray = np.ndarray[Any, Any]
# The state of a source after a batch, as JSON: of a stream, a digest of the batch, and the state of a Grain iterator.
SourceState: TypeAlias = Mapping[str, Any] | None
# Batches on devices, each with the state of the source after it.
Batches = Generator[tuple[Any, SourceState], None, None]


class Samples(Protocol):
    """Samples by index: a sequence, a Grain MapDataset, a map-style dataset of torch."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def is_indexed(source: object) -> TypeGuard[Samples]:
    """Return whether a source has samples by index."""
    return hasattr(source, "__getitem__") and hasattr(source, "__len__")


@final
class IndexedReader:
    """Batches of a source with samples by index, in order or shuffled anew in every epoch.

    Sample `i` of all epochs is sample `i % len(source)` of epoch `i // len(source)`. A batch may span two epochs, so
    that each epoch has every sample exactly once, for any batch size.
    """

    def __init__(
        self, source: Samples, placement: BatchPlacement, batch_size: int, seed: int | None, epochs: int | None
    ):
        if isinstance(source, dict):
            raise DataError("BatchIterator: a dict is not a source of samples; wrap it: data.ArraySource(arrays)")
        self._source = ArraySource(source) if isinstance(source, np.ndarray) else source
        self._size, self._seed, self._batch_size = len(source), seed, batch_size
        if not self._size:
            raise DataError("BatchIterator: the source has no samples: its length is 0")
        if seed is not None:
            if self._size == sys.maxsize:  # the length of a Grain MapDataset after repeat()
                raise DataError(
                    f"BatchIterator: a {type(source).__name__} without an end cannot be shuffled by `seed`. Pass the "
                    "dataset before repeat(), with epochs=None"
                )
            Permutation(self._size, seed)  # checks both
        placement.check_rows(batch_size)
        self._placement, self._held = placement, placement.local_rows(batch_size)
        self.batch_count = None if epochs is None else epochs * self._size // batch_size
        self.identity = {
            "kind": "indexed",
            "batch_size": batch_size,
            "seed": None if seed is None else int(seed),
            "samples": self._size,
            "fingerprint": getattr(self._source, "fingerprint", None),
        }

    def batches(self, start: int, state: SourceState) -> Batches:
        """Yield the batches from number `start` on."""
        numbers = count(start) if self.batch_count is None else range(start, self.batch_count)
        for number in numbers:
            batch = self._read(self.sample_indices(number * self._batch_size + self._held))
            yield self._placement.put_rows(batch, self._held, self._batch_size), None

    def sample_indices(self, samples: NumpyArray) -> NumpyArray:
        """Return the index in the source of each sample, which is counted over all epochs."""
        epochs, indices = np.divmod(samples, self._size)
        if self._seed is None:
            return indices
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            indices[chosen] = Permutation(self._size, self._seed, int(epoch))(indices[chosen])
        return indices

    def _read(self, indices: NumpyArray) -> Any:
        if hasattr(self._source, "read_batch"):
            batch, rows = check_batch(self._source.read_batch(indices), "the batch that `read_batch` returned")
            if rows != len(indices):
                raise DataError(f"`read_batch` returned {rows} rows for {len(indices)} indices")
            return batch
        numbers = indices.tolist()
        if hasattr(self._source, "__getitems__"):  # of torch's datasets
            samples = list(self._source.__getitems__(numbers))
        else:
            samples = [self._source[index] for index in numbers]
        for index, sample in zip(numbers, samples, strict=True):
            if sample is None:
                raise DataError(
                    f"sample {index} is None, as a filtered element of a Grain MapDataset is. A filtered dataset has "
                    "no samples by index: pass dataset.to_iter_dataset()"
                )
        return stack_samples(samples, [f"sample {index}" for index in numbers])


@final
class StreamReader:
    """Batches of an iterable, or of an iterator, of batches or of samples.

    To start at a later batch, a Grain iterator gets the state that it had there. Others are read from the beginning;
    the digest of the last batch that is skipped must be the saved one. All processes read the same batches, unless
    `per_process`.
    """

    def __init__(
        self,
        source: Iterable[Any],
        placement: BatchPlacement,
        batch_size: int | None,
        epochs: int | None,
        per_process: bool,
    ):
        self._source, self._placement, self._batch_size = source, placement, batch_size
        self._epochs, self._per_process = epochs, per_process
        self._is_iterator = isinstance(source, Iterator)
        self._is_opened = False
        if self._is_iterator and epochs != 1:
            raise DataError(
                "BatchIterator: an iterator can be read once only; pass epochs=1, or an iterable such as a list"
            )
        self._check_rows = placement.check_process_rows if per_process else placement.check_rows
        if batch_size is not None:
            self._check_rows(batch_size)
        self.batch_count: int | None = None
        self.identity = {
            "kind": "stream",
            "batch_size": batch_size,
            "processes": process_count() if per_process else None,  # each has read its own part
        }

    def batches(self, start: int, state: SourceState) -> Batches:
        """Yield the batches from number `start` on. `state` is that of the source after the batch before."""
        if self._is_opened and self._is_iterator and not _has_iterator(state):
            raise DataError(
                "BatchIterator: the source is an iterator that has been read already, and cannot start again. Restore "
                "the state before the first batch, or pass an iterable"
            )
        self._is_opened = True
        return self._batches(start, state)

    def _batches(self, start: int, state: Any) -> Batches:
        elements = self._elements(state)
        batches = elements if self._batch_size is None else self._stacked(elements, self._batch_size)
        rows = None
        for index, (element, after) in enumerate(batches, start if _has_iterator(state) else 0):
            if index < start - 1 or (index < start and state is None):
                continue
            name = f"batch {index}"
            batch, count = check_batch(element, name)
            digest = None if self._per_process else batch_digest(batch)  # processes differ, and a checkpoint has one
            if index < start:
                _check_digest(digest, state["digest"], name)
                continue
            if rows is None:
                self._check_rows(count)
                rows = count
            if count != rows:
                raise DataError(
                    f"{name} has {count} rows, and the ones before have {rows}: all batches must have one size. Drop "
                    "the last, smaller batch in the source, as DataLoader(drop_last=True) does"
                )
            if self._per_process:
                yield self._placement.put_process_rows(batch), None
            else:
                state_after = {"digest": digest, **(after or {})}
                yield self._placement.put_rows(batch, np.arange(count), count), state_after

    def _stacked(self, elements: Iterator[tuple[Any, Any]], size: int) -> Iterator[tuple[Any, Any]]:
        """Yield batches of `size` samples, each with the state of the source after its last sample."""
        for number in count():
            group = list(islice(elements, size))
            if len(group) < size:
                return
            names = [f"sample {number * size + position} of the stream" for position in range(size)]
            yield stack_samples([sample for sample, _ in group], names), group[-1][1]

    def _elements(self, state: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the elements of all epochs, each with the state of the source after it, if the source has states."""
        is_saved = _has_iterator(state)
        first = state["epoch"] if is_saved else 0
        for epoch in count(first) if self._epochs is None else range(first, self._epochs):
            iterator: Any = iter(self._source)
            # The states of several processes would differ, and a checkpoint has one.
            has_state = not self._per_process and hasattr(iterator, "get_state") and hasattr(iterator, "set_state")
            is_resumed = is_saved and epoch == first
            if is_resumed:
                if not has_state:
                    raise DataError("BatchIterator: the saved source had a state of its own, and this one has not")
                iterator.set_state(_decode(state["iterator"]))
            is_empty = True
            for element in iterator:
                is_empty = False
                yield element, {"epoch": epoch, "iterator": _encode(iterator.get_state())} if has_state else None
            if is_empty and not is_resumed:
                return  # all later epochs are empty too


def _has_iterator(state: SourceState) -> bool:
    """Return whether a saved state has the state of a Grain iterator."""
    return state is not None and "iterator" in state


def _check_digest(digest: str | None, saved: str, name: str) -> None:
    """Check the last batch before the ones to deliver.

    Raises:
        DataStateMismatch: if it is not the batch that was delivered before the state was saved.
    """
    if digest != saved:
        raise DataStateMismatch(
            f"BatchIterator: {name} differs from the one that was delivered before the state was saved, so the source "
            "cannot resume: it must yield the same batches again. Seed its shuffling, as "
            "DataLoader(shuffle=True, generator=torch.Generator().manual_seed(0)) does, and create it anew; or pass "
            "samples by index and `seed`",
            (f"the digest of {name} was {saved} when the state was saved, and is {digest} now",),
        )


def _encode(state: object) -> dict[str, Any]:
    """Return a copy of the state of a Grain iterator, a JSON object or bytes, as JSON.

    Raises:
        DataError: if it is neither.
    """
    if isinstance(state, bytes):
        return {"base64": b64encode(state).decode()}
    try:
        return {"json": json.loads(json.dumps(state))}
    except (TypeError, ValueError) as error:
        raise DataError(f"BatchIterator: the state of the source is neither JSON nor bytes: {error}") from error


def _decode(state: Mapping[str, Any]) -> Any:
    return b64decode(state["base64"]) if "base64" in state else state["json"]
