"""Prefetching: how far the thread reads ahead, errors of the source, and the end of the thread."""

import gc
import subprocess
import sys
import threading
import traceback

import numpy as np
import pytest

import shardwise as sw
from shardwise import P, data
from shardwise.data import prefetch as prefetch_module


@pytest.fixture
def rows(mesh):
    return sw.NamedSharding(mesh, P("data"))


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "shardwise-prefetch"]


class Recorded:
    """Samples by index, with an event for each that is read, and the thread that reads them."""

    def __init__(self, size, fails_at=None):
        self.size, self.fails_at = size, fails_at
        self.read = [threading.Event() for _ in range(size)]
        self.threads = set()

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.threads.add(threading.current_thread())
        self.read[index].set()
        if index == self.fails_at:
            raise OSError(f"cannot read sample {index}")
        return np.int32(index)


@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_thread_reads_a_bounded_number_of_batches_ahead(rows, prefetch):
    source = Recorded(80)
    with data.BatchIterator(source, rows, batch_size=4, prefetch=prefetch) as batches:
        for index in range(4):
            assert np.asarray(next(batches)).tolist() == list(range(4 * index, 4 * index + 4))
            last = 4 * (index + 1 + prefetch)
            assert source.read[last - 1].wait(60)  # the last sample of the batches that are read ahead
            (thread,) = threads()
            assert not any(event.is_set() for event in source.read[last:])
        assert source.threads == {thread}
    assert threads() == [] and not thread.is_alive()


def test_an_exception_reaches_the_consumer_after_the_batches_before_it(rows):
    for prefetch in (0, 2):
        batches = data.BatchIterator(Recorded(40, fails_at=9), rows, batch_size=4, prefetch=prefetch)
        assert [np.asarray(next(batches))[0] for _ in range(2)] == [0, 4]
        for _ in range(2):
            with pytest.raises(OSError, match="cannot read sample 9") as caught:
                next(batches)
        assert "__getitem__" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert batches.state()["batches"] == 2  # a new iterator can continue there
        batches.close()
    assert threads() == []


def test_the_thread_ends_with_its_iterator(rows):
    batches = data.BatchIterator(Recorded(40), rows, batch_size=4)
    next(batches)
    (thread,) = threads()
    del batches
    gc.collect()
    thread.join(60)
    assert threads() == []
    for _ in data.BatchIterator(Recorded(8), rows, batch_size=4):
        pass
    assert threads() == []  # at the end of the data
    batches = data.BatchIterator(Recorded(40), rows, batch_size=4, steps=2)
    assert len(list(batches)) == 2
    assert threads() == []  # after the last step
    next_batches = data.BatchIterator(Recorded(40), rows, batch_size=4)
    next(next_batches)
    next_batches.restore(next_batches.state())
    assert threads() == []
    next(next_batches)
    next_batches.close()
    next_batches.close()
    assert threads() == []


def test_iterators_of_the_source_are_closed(rows):
    events = []

    class Source:
        def __iter__(self):
            try:
                yield from [np.arange(4)] * 10
            finally:
                events.append("closed")

    batches = data.BatchIterator(Source(), rows)
    next(batches)
    batches.close()
    gc.collect()
    assert events == ["closed"] and threads() == []


class Blocked:
    """Samples by index, of which one does not return before an event."""

    def __init__(self, at):
        self.at, self.entered, self.released = at, threading.Event(), threading.Event()

    def __len__(self):
        return 400

    def __getitem__(self, index):
        if index == self.at:
            self.entered.set()
            self.released.wait(120)
        return np.int32(index)


@pytest.mark.parametrize("call", ["close", "restore", "exit", "collect"])
def test_a_source_that_blocks_does_not_block_the_end(rows, monkeypatch, call):
    monkeypatch.setattr(prefetch_module, "_SECONDS_TO_CLOSE", 0.1)
    source = Blocked(9)
    batches = data.BatchIterator(source, rows, batch_size=4)
    next(batches)
    assert source.entered.wait(60)
    (thread,) = threads()
    with pytest.warns(
        RuntimeWarning, match=r"the source Blocked does not return: .* runs \w+.* \(.*threading.py:\d+\)"
    ):
        if call == "close":
            batches.close()
        elif call == "restore":
            batches.restore(batches.state())
        elif call == "exit":
            batches.__exit__(None, None, None)
        else:
            del batches
            gc.collect()
    source.released.set()
    thread.join(60)
    assert not thread.is_alive()
    if call in ("close", "restore"):  # which starts a new thread
        assert np.asarray(next(batches)).tolist() == [4, 5, 6, 7]
        batches.close()


BLOCKED_PROGRAM = """
import threading
import numpy as np
import shardwise as sw
from shardwise import P, data
from shardwise.data import prefetch
prefetch._SECONDS_TO_CLOSE = 0.2

class Source:
    def __len__(self):
        return 40
    def __getitem__(self, index):
        if index > 3:
            threading.Event().wait()
        return np.int32(index)

rows = sw.NamedSharding(sw.make_mesh((4,), ("data",)), P("data"))
batches = data.BatchIterator(Source(), rows, batch_size=4)
print(next(batches))
"""


@pytest.mark.slow
@pytest.mark.parametrize("close", ["batches.close()", ""], ids=["closed", "open"])
def test_a_program_ends_while_the_source_blocks(close):
    command = [sys.executable, "-c", BLOCKED_PROGRAM + close]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stdout) == (0, "[0 1 2 3]\n"), run.stderr
    assert run.stderr.count("the source Source does not return") == 1


PROGRAM = """
import numpy as np
import shardwise as sw
from shardwise import P, data
rows = sw.NamedSharding(sw.make_mesh((4,), ("data",)), P("data"))
batches = data.BatchIterator(np.arange(400), rows, batch_size=4, epochs=None)
print(next(batches))
"""


def test_a_program_ends_while_the_thread_waits():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "[0 1 2 3]\n", "")
