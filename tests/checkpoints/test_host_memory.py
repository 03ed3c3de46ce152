"""Arrays that are larger than the memory are not allocated."""

import numpy as np
import pytest

from shardwise.checkpoints import host_memory
from shardwise.checkpoints.host_memory import check_fits_memory, empty_host_array, memory_capacity
from shardwise.errors import CheckpointError


def test_the_capacity_is_memory_and_swap(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemTotal:  100 kB\nMemFree:  50 kB\nSwapTotal:  20 kB\n")
    monkeypatch.setattr(host_memory, "_MEMORY", tmp_path / "meminfo")
    assert memory_capacity() == 120 * 1024
    check_fits_memory(120 * 1024, "w")
    with pytest.raises(CheckpointError, match="w needs 122,881 bytes of memory, and this machine has 122,880"):
        check_fits_memory(120 * 1024 + 1, "w")


def test_without_a_table_the_capacity_is_the_physical_memory(tmp_path, monkeypatch):
    with_swap = memory_capacity()
    monkeypatch.setattr(host_memory, "_MEMORY", tmp_path / "absent")
    assert 0 < memory_capacity() <= with_swap


def test_an_array_is_allocated_only_if_it_fits():
    assert empty_host_array((2, 3), np.dtype(np.int16), "w").shape == (2, 3)
    with pytest.raises(CheckpointError, match="w needs"):
        empty_host_array((1 << 50, 1 << 5), np.dtype(np.int16), "w")
