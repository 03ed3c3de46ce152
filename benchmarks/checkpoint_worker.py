"""The process of one library in the suite `checkpoints`: answers requests, one JSON object per line.

    python benchmarks/checkpoint_worker.py shardwise | orbax | torch | torch-replicas | numpy

{"case": CASE, "folder": FOLDER} saves the arrays of a case and restores them; it returns the seconds until the arrays
may be changed, until everything is on the disk, and of the restore, and the most host memory that both used beside the
arrays themselves. Before each, freed memory is returned to the operating system: both begin as in a new process.
"""

import ctypes
import gc
import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.checkpoint_libraries import LIBRARIES, Library

# The number of arrays, their shapes, and their specs.
CASES: dict[str, tuple[int, tuple[int, ...], tuple[str | None, ...]]] = {
    "32 × 16 MiB, 8 shards": (32, (2048, 2048), ("data", None)),
    "4 × 16 MiB, replicated": (4, (2048, 2048), (None, None)),
    "10,000 × 1 KiB": (10_000, (256,), (None,)),
    "one of 4 GiB, 8 shards": (1, (32_768, 32_768), ("data", None)),
    "smoke": (3, (64, 64), ("data", None)),
}


class PeakMemory:
    """The largest resident memory of this process while it is entered, beside that at the beginning."""

    def __enter__(self) -> "PeakMemory":
        self.before = self.peak = _trimmed()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stopped.wait(0.005):
            self.peak = max(self.peak, _resident())

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def used(self) -> int:
        return self.peak - self.before


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _trimmed() -> int:
    """Return the resident memory after freed memory is returned to the operating system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return _resident()


def answer(library: Library, path: Path, case: str) -> dict[str, float]:
    before = _trimmed()
    tree = library.arrays(*CASES[case])
    # Small arrays need more memory than their elements; arrays that share memory need less.
    size = max(_trimmed() - before, sum(map(library.nbytes, tree.values())))
    with PeakMemory() as saving:
        start = time.perf_counter()
        wait = library.save(path, tree)
        blocked = time.perf_counter() - start
        wait()
        saved = time.perf_counter() - start
    with PeakMemory() as restoring:
        start = time.perf_counter()
        restored = library.restore(path, tree)
        read = time.perf_counter() - start
    first = next(iter(tree))
    # numpy's assert_array_equal would need three times the memory of the arrays beside them.
    if not np.array_equal(np.asarray(restored[first]), np.asarray(tree[first])):
        raise ValueError(f"{path}: the restored {first} differs from the saved one")
    shutil.rmtree(path)
    return {
        "time until arrays may change": blocked,
        "save time": saved,
        "restore time": read,
        "host memory of save": saving.used,
        "host memory of restore": max(restoring.used - size, 0),
    }


def main() -> None:
    name = sys.argv[1]
    library = LIBRARIES[name]()
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answer(library, Path(request["folder"]) / name, request["case"])), flush=True)


if __name__ == "__main__":
    main()
