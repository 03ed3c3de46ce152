"""The process of one library in the suite `checkpoints`: answers requests, one JSON object per line.

    python benchmarks/checkpoint_worker.py shardwise | orbax | torch | torch-replicas | numpy

{"call": "save", "case": CASE, "folder": FOLDER} saves the arrays of a case; it returns the seconds until the arrays may
be changed and until everything is on the disk, the host memory of the arrays (`array_bytes`), and the most memory that
the save used beside them. {"call": "restore", …, "array_bytes": BYTES} restores what another process of the library has
saved, and returns the seconds and the most host memory beside the arrays.
"""

import ctypes
import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.checkpoint_libraries import LIBRARIES, Library, Tree

CASES = {
    "32 × 16 MiB, 8 shards": Tree(32, (2048, 2048), ("data", None)),
    "4 × 16 MiB, replicated": Tree(4, (2048, 2048), (None, None)),
    "10,000 × 1 KiB": Tree(10_000, (256,), (None,)),
    "one of 4 GiB, 8 shards": Tree(1, (32_768, 32_768), ("data", None)),
    "smoke": Tree(3, (64, 64), ("data", None)),
    "warm-up": Tree(1, (8, 8), ("data", None)),
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


def save(library: Library, path: Path, tree: Tree) -> dict[str, float]:
    before = _trimmed()
    arrays = library.arrays(tree)
    # Small arrays need more memory than their elements; arrays that share memory need less.
    array_bytes = max(_trimmed() - before, sum(map(library.nbytes, arrays.values())))
    with PeakMemory() as memory:
        start = time.perf_counter()
        wait = library.save(path, arrays)
        blocked = time.perf_counter() - start
        wait()
        saved = time.perf_counter() - start
    return {
        "time until arrays may change": blocked,
        "save time": saved,
        "host memory of save": memory.used,
        "array_bytes": array_bytes,
    }


def restore(library: Library, path: Path, tree: Tree, array_bytes: int) -> dict[str, float]:
    with PeakMemory() as memory:
        start = time.perf_counter()
        restored = library.restore(path, tree)
        seconds = time.perf_counter() - start
    used = max(memory.used - array_bytes, 0)
    first, elements = tree.names[0], tree.elements()
    # numpy's assert_array_equal would need three times the memory of the arrays beside them.
    if not np.array_equal(np.asarray(restored[first]), elements):
        raise ValueError(f"{path}: the restored {first} differs from the saved one")
    return {"restore time": seconds, "host memory of restore": used}


def main() -> None:
    name = sys.argv[1]
    library = LIBRARIES[name]()
    for line in sys.stdin:
        request = json.loads(line)
        path, tree = Path(request["folder"]) / name / request["case"], CASES[request["case"]]
        if request["call"] == "save":
            path.parent.mkdir(exist_ok=True)
            answer = save(library, path, tree)
        else:
            answer = restore(library, path, tree, request["array_bytes"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
