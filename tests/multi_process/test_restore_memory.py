"""The host memory of a restore is bounded in every process: see `restore_memory`."""

import numpy as np
import pytest

from shardwise import checkpoints
from tests.multi_process.cluster import ROOT, run_processes
from tests.multi_process.restore_memory import DEVICES, SHAPE

LIMIT = 1 << 24  # bytes; the shard of a device has as many


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_memory_limit_bounds_the_host_memory_of_every_process(tmp_path, processes, monkeypatch):
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(1 << 20))  # otherwise glibc keeps freed memory
    array = np.zeros(SHAPE, np.float32)
    checkpoints.save(tmp_path / "one", {"large": array, "small": np.zeros(16, np.float32)}).wait()
    script = str(ROOT / "tests/multi_process/restore_memory.py")
    outputs = run_processes(
        lambda rank, port: [script, *map(str, (rank, processes, port, tmp_path / "one", LIMIT))], processes
    )
    for output in outputs:
        growth, own = (int(number) for number in output.split("RESULT ")[1].split()[:2])
        assert own == array.nbytes // processes == LIMIT * (DEVICES // processes)
        assert 0 <= growth - own < 3 * LIMIT  # beside the devices, which are in the same memory
