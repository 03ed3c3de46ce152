"""Only regular files are opened, and no more bytes than the limit are read."""

import os

import pytest

from shardwise.base import regular_file
from shardwise.base.regular_file import NotRegularFileError, open_regular_file, read_regular_file


def test_a_file_is_read_up_to_its_limit(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"12345")
    assert read_regular_file(path, 5) == b"12345"
    with pytest.raises(ValueError, match="data has more than 4 bytes"):
        read_regular_file(path, 4)


def test_other_kinds_of_files_are_errors_that_name_the_kind(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path, kind in ((tmp_path, "a directory"), (tmp_path / "fifo", "a FIFO"), ("/dev/null", "a device")):
        with pytest.raises(NotRegularFileError, match=f"cannot be read: Is {kind}, not a regular file"):
            open_regular_file(path)


def test_a_rejected_file_is_closed(tmp_path, monkeypatch):
    descriptors = []

    def close(descriptor, original=os.close):
        descriptors.append(descriptor)
        original(descriptor)

    monkeypatch.setattr(regular_file.os, "close", close)
    with pytest.raises(NotRegularFileError):
        open_regular_file(tmp_path)
    assert len(descriptors) == 1
