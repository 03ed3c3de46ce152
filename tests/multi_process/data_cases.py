"""Cases: batches to which all processes contribute, and training that is resumed on another number of processes."""

import os
from itertools import islice

import numpy as np

import shardwise as sw
from shardwise import P, data
from shardwise.errors import DataError
from shardwise.experimental import multihost_utils
from tests.data.resuming import resume

SAMPLES, BATCH = 50, 8


class Recorded:
    """Samples by index that record which are read."""

    def __init__(self, size=SAMPLES):
        self.size, self.read = size, []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.read.append(index)
        return {"x": np.full(3, index, np.float32), "y": np.int32(index)}


def rows():
    return sw.NamedSharding(sw.make_mesh((sw.device_count(),), ("data",)), P("data"))


def values(batch):
    """Return the samples of a batch, on every process."""
    x, y = multihost_utils.process_allgather((batch["x"], batch["y"]), tiled=True)
    np.testing.assert_array_equal(x, np.repeat(y[:, None], 3, 1))
    return y.tolist()


def recorded_run(folder, steps):
    """Continue the run in a folder for some steps: return the samples of each, and which of them this process read."""
    source = Recorded()
    batches = data.BatchIterator(source, rows(), batch_size=BATCH, seed=7, epochs=None, prefetch=2)
    seen, total = resume(folder, batches, rows().mesh, steps, values, lambda batch: batch["y"])
    return [seen, total, sorted(source.read)]


def case_resumed():
    return recorded_run(os.environ["DATA_FOLDER"], 3)


def case_each_process_reads_its_rows():
    source = Recorded(16)
    batches = data.BatchIterator(source, rows(), batch_size=16, prefetch=0)
    assert values(next(batches)) == list(range(16))
    part = 16 // sw.process_count()
    first = part * sw.process_index()
    assert source.read == list(range(first, first + part))
    # Replicated rows are read by every process, and a mesh without this process needs one row for the types.
    source.read.clear()
    batches = data.BatchIterator(source, sw.NamedSharding(rows().mesh, P()), batch_size=4, prefetch=0)
    assert np.asarray(next(batches)["y"]).tolist() == [0, 1, 2, 3] and source.read == [0, 1, 2, 3]
    source.read.clear()
    last = sw.NamedSharding(sw.sharding.Mesh(np.array(sw.devices()[-1:]), "data"), P("data"))
    batch = next(data.BatchIterator(source, last, batch_size=4, prefetch=0))
    assert batch["x"].shape == (4, 3)
    assert len(source.read) == (4 if sw.process_index() == sw.process_count() - 1 else 1)


def case_streams():
    """A stream that all processes read, and one of each process's own rows."""
    batches = data.BatchIterator((np.arange(8) + 8 * n for n in range(3)), rows())
    found = [multihost_utils.process_allgather(batch, tiled=True).tolist() for batch in batches]
    assert found == np.arange(24).reshape(3, 8).tolist()
    own = [np.full(2 * sw.local_device_count(), 10 * n + sw.process_index()) for n in range(3)]
    batches = data.BatchIterator(iter(own), rows(), per_process=True)
    for index, batch in enumerate(islice(batches, 3)):
        found = multihost_utils.process_allgather(batch, tiled=True)
        expected = [10 * index + process for process in range(sw.process_count())]
        np.testing.assert_array_equal(found, np.repeat(expected, 2 * sw.local_device_count()))
    state = batches.state()
    assert state["processes"] == sw.process_count()


def case_processes_with_different_seeds():
    try:
        data.BatchIterator(Recorded(), rows(), batch_size=BATCH, seed=sw.process_index())
    except DataError as error:
        assert "processes have different sources or arguments" in str(error) and '"seed": ' in str(error)
    else:
        raise AssertionError("different seeds were accepted")


def case_streams_in_different_orders():
    order = np.random.default_rng(sw.process_index()).permutation(24).reshape(3, 8)
    batches = data.BatchIterator(iter(order), rows())
    try:
        next(batches)
    except DataError as error:
        assert "the sources of the processes yield different batches" in str(error) and "per_process=True" in str(error)
    else:
        raise AssertionError("different batches were accepted")
    ended = data.BatchIterator(iter([] if sw.process_index() else [np.arange(8)]), rows())
    try:
        next(ended)
    except DataError as error:
        assert "yield different batches" in str(error)
    else:
        raise AssertionError("a source without batches was accepted")
