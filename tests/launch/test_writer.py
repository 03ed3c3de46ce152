"""The writer of the launcher's output, with pipes that nobody reads, and with streams that cannot be written."""

import errno
import os

import pytest

from shardwise.launch.writer import MAX_PENDING, Writer

WAIT = 60  # seconds that a test that passes never needs
LINES = [f"line {number}\n" for number in range(MAX_PENDING // 4)]


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    with os.fdopen(reader) as source, os.fdopen(writer, "w") as target:
        yield source, target


@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_full_pipe_does_not_block(pipe, is_blocking):
    """The text is written, in order, when somebody reads; also if another process made the pipe non-blocking."""
    source, target = pipe
    os.set_blocking(target.fileno(), is_blocking)
    writer = Writer(target)
    for line in LINES:
        writer.write(line)
    assert writer.is_full and not writer.wait_for_room(0.01) and not writer.flush(0.01)
    assert [source.readline() for _ in LINES] == LINES
    assert writer.flush(WAIT) and not writer.is_full and writer.error is None
    writer.close()


def test_a_pipe_without_reader_is_an_error(pipe):
    source, target = pipe
    source.close()
    writer = Writer(target)
    writer.write("lost")
    assert writer.flush(WAIT) and isinstance(writer.error, BrokenPipeError)
    writer.write("dropped")
    assert writer.flush(0)
    writer.close()


def test_a_full_disk_is_an_error():
    with open("/dev/full", "w") as target:
        writer = Writer(target)
        writer.write("lost")
        assert writer.flush(WAIT) and writer.error.errno == errno.ENOSPC
        writer.close()


def test_a_closed_stream_is_an_error(tmp_path):
    target = (tmp_path / "file").open("w")
    target.close()
    writer = Writer(target)
    writer.write("lost")
    assert writer.flush(WAIT) and "closed file" in str(writer.error)
    writer.close()
