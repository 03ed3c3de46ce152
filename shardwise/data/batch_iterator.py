"""BatchIterator: batches of a source as sharded arrays, read ahead and resumable to the exact batch."""

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, final

from shardwise.api.process_data import check_equal, digest
from shardwise.data.batch_placement import BatchPlacement
from shardwise.data.prefetch import Prefetcher
from shardwise.data.readers import Batches, IndexedReader, SourceState, StreamReader, is_indexed
from shardwise.errors import DataError, DataStateMismatch, EndOfDataError
from shardwise.runtime.client import process_count

_VERSION = 1


@final
class BatchIterator:
    """An iterator of batches as sharded arrays.

    A source has samples by index, or it is an iterable:

    - Samples by index: a sequence, an `ArraySource`, a `TokenSource`, a `PackedSource`, a Grain `MapDataset`, a
      map-style dataset of torch, or any object with `__len__` and `__getitem__`. Each process reads the samples of its
      own devices. They can be shuffled. A state can be restored on any number of processes, without reading earlier
      samples.
    - An iterable or iterator of batches, such as a torch `DataLoader`, or of samples if `batch_size` is given, such as
      `pack(...)` or a Grain `IterDataset`. Every process reads all of it, and keeps the rows of its own devices. With
      `per_process=True`, each process has a source of its own rows.

    All processes create it and iterate together.

    Args:
        source: the source of samples or batches. Leaves of samples are numbers or arrays.
        sharding: the sharding of the batches: a `NamedSharding`, a `PartitionSpec` on the current mesh, or a tree
            prefix of a batch with these. The first dim of each array has the rows of the batch.
        batch_size: the number of rows of a batch, over all processes; of this process with `per_process=True`.
        seed: an integer shuffles the samples, in another order in each epoch. By default they keep their order.
        epochs: how often to go through the source; None for no end.
        steps: the number of batches. A source that ends earlier is an error.
        per_process: whether each process has a source of its own rows, such as a `DataLoader` with a
            `DistributedSampler`. All must have equally many.
        prefetch: how many batches a background thread reads and copies to devices ahead; 0 reads without a thread.

    Raises:
        DataError: if arguments do not fit the source, if devices do not divide the batch size, or if processes differ
            in their arguments. When a batch is read, if leaves are ragged or not numeric.
        EndOfDataError: when the source ends before `steps` batches.

    Example:
        >>> mesh = jax.make_mesh((4,), ("data",))
        >>> rows = jax.NamedSharding(mesh, P("data"))
        >>> with jax.data.BatchIterator(np.arange(10), rows, batch_size=4) as batches:
        ...     for batch in batches:
        ...         print(batch, batch.sharding.spec)
        [0 1 2 3] P('data')
        [4 5 6 7] P('data')
    """

    def __init__(
        self,
        source: Any,
        sharding: object,
        *,
        batch_size: int | None = None,
        seed: int | None = None,
        epochs: int | None = 1,
        steps: int | None = None,
        per_process: bool = False,
        prefetch: int = 2,
    ):
        for name, value, least in (("batch_size", batch_size, 1), ("epochs", epochs, 1), ("steps", steps, 0)):
            if value is not None and value < least:
                raise DataError(f"BatchIterator: {name} must be at least {least}, not {value}")
        if prefetch < 0:
            raise DataError(f"BatchIterator: prefetch must be at least 0, not {prefetch}")
        placement = BatchPlacement(sharding)
        self._reader: IndexedReader | StreamReader
        if is_indexed(source) and not per_process:
            if batch_size is None:
                raise DataError(
                    f"BatchIterator: samples by index need batch_size: a sample of {type(source).__name__} is one row. "
                    "If its samples are batches, as those of Grain's MapDataset.batch, pass dataset.to_iter_dataset(), "
                    "or a generator of them"
                )
            self._reader = IndexedReader(source, placement, batch_size, seed, epochs)
        elif not hasattr(source, "__iter__"):
            raise DataError(
                f"BatchIterator: a {type(source).__name__} is not a source: it needs `__len__` and `__getitem__`, or "
                "`__iter__`"
            )
        elif seed is not None:
            raise DataError(
                "BatchIterator: a stream is not shuffled by `seed`. Shuffle it in the source, or pass samples by "
                "index: an object with `__len__` and `__getitem__`, and per_process=False"
            )
        else:
            self._reader = StreamReader(source, placement, batch_size, epochs, per_process)
        self._steps, self._prefetch, self._source_name = steps, prefetch, type(source).__qualname__
        self._delivered = 0
        self._source_state: SourceState = None
        self._batches: Batches | Prefetcher | None = None
        self._error: Exception | None = None  # of the last batch: it is raised again
        self._is_ended = False
        is_shared = process_count() > 1 and placement.spans_all_processes
        self._must_compare = is_shared and isinstance(self._reader, StreamReader) and not per_process
        if is_shared:
            text = json.dumps(self._reader.identity, sort_keys=True)
            check_equal(
                digest(text.encode()),
                lambda: f"BatchIterator: processes have different sources or arguments. This one has {text}.",
                DataError,
            )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: after the last batch.
            EndOfDataError: if there are fewer than `steps` batches.
        """
        if self._error is not None:
            raise self._error
        if self._is_ended or self._delivered == self._steps:
            self.close()
            raise StopIteration
        if self._batches is None:
            generator = self._reader.batches(self._delivered, self._source_state)
            self._batches = Prefetcher(generator, self._prefetch, self._source_name) if self._prefetch else generator
        try:
            batch, self._source_state = next(self._batches)
            self._compare_processes(self._source_state)
        except StopIteration:
            self._compare_processes(None)
            self.close()
            self._is_ended = True
            if self._steps is None:
                raise
            self._error = EndOfDataError(self._delivered, self._steps)
            raise self._error from None
        except Exception as error:
            self._error = error
            raise
        self._delivered += 1
        return batch

    def _compare_processes(self, source_state: SourceState) -> None:
        """Check that all processes read the same first batch of a stream, before any of them uses it.

        Raises:
            DataError: if they differ.
        """
        if self._must_compare:
            self._must_compare = False
            first = "no batch" if source_state is None else source_state["digest"]
            check_equal(
                digest(first.encode()),
                lambda: (
                    "BatchIterator: the sources of the processes yield different batches. Every process reads all of a "
                    "stream, and keeps the rows of its devices: seed its shuffling equally on all of them, or pass "
                    "per_process=True if each process has rows of its own"
                ),
                DataError,
            )

    def __len__(self) -> int:
        """Return the number of batches, from the first one on.

        Raises:
            TypeError: if it is not known.
        """
        counts = [count for count in (self._steps, self._reader.batch_count) if count is not None]
        if not counts:
            raise TypeError("the number of batches is not known: the source is a stream, or epochs is None")
        return min(counts)

    @property
    def position(self) -> int:
        """The number of batches that were delivered."""
        return self._delivered

    def state(self) -> dict[str, Any]:
        """Return the state as a JSON object, to save as metadata of a checkpoint.

        It is the position after the batches that were delivered, whatever is read ahead. It does not depend on the
        process, nor on their number unless `per_process=True`.

        Returns:
            The state, for `restore`.
        """
        return {
            "version": _VERSION,
            **self._reader.identity,
            "batches": self._delivered,
            "source": self._source_state,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue after the batches that were delivered when `state` was saved.

        It may be called at any time. The sharding may differ from that of the saved iterator, and the number of
        processes too unless `per_process=True`.

        Args:
            state: the result of `state`.

        Raises:
            DataStateMismatch: if the state belongs to another dataset, seed or batch size, or is not a state.
        """
        expected = {"version": _VERSION, **self._reader.identity}
        if not isinstance(state, Mapping) or not isinstance(state.get("batches"), int) or state["batches"] < 0:
            raise DataStateMismatch("BatchIterator.restore: this is not a state of a BatchIterator", (repr(state),))
        differences = tuple(
            f"{name} was {state.get(name)!r} when the state was saved, and is {value!r} now"
            for name, value in expected.items()
            if state.get(name) != value
        )
        if differences:
            raise DataStateMismatch(
                "BatchIterator.restore: the state belongs to another iterator: " + "; ".join(differences), differences
            )
        self.close()
        self._delivered, self._source_state, self._error = state["batches"], state.get("source"), None
        self._is_ended = False

    def close(self) -> None:
        """End the background thread. Iteration starts it again.

        It returns in a few seconds even if the source blocks. A RuntimeWarning then names the source and the line that
        it executes; the thread ends when the source returns, and does not keep the program from ending.
        """
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
