"""Files of a checkpoint that were forged are errors, before anything is allocated or waited for."""

import os

import numpy as np
import pytest

from shardwise import checkpoints
from shardwise.checkpoints import host_memory, snapshot
from shardwise.errors import CheckpointError


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "LARGEST_PACKED", 100)
    checkpoints.save(tmp_path / "one", {"large": np.arange(600.0), "small": np.arange(3)}).wait()
    return tmp_path / "one"


@pytest.mark.parametrize("name", ["manifest.json", "arrays/0/c/0", "arrays/0/zarr.json", "packs/0/c/0"])
@pytest.mark.parametrize("kind", ["fifo", "device", "directory", "sparse"])
def test_what_is_not_a_file_of_a_checkpoint_is_an_error(saved, name, kind):
    path = saved / name
    if kind == "sparse":
        os.truncate(path, 1 << 40)
    else:
        path.unlink()
        {"fifo": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero"), "directory": os.mkdir}[kind](path)
    with pytest.raises(CheckpointError):
        checkpoints.verify(saved)
    if kind != "directory" or name != "arrays/0/zarr.json":  # only other readers use it
        with pytest.raises(CheckpointError):
            checkpoints.restore(saved)


def test_arrays_larger_than_the_memory_are_not_allocated(saved, monkeypatch):
    monkeypatch.setattr(host_memory, "memory_capacity", lambda: 1000)
    with pytest.raises(
        CheckpointError, match=r"'large', \[0:600\], needs 4,800 bytes of memory, and this machine has 1,000"
    ):
        checkpoints.restore(saved)
