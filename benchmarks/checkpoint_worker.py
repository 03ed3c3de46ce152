"""The process of one library in the suite `checkpoints`: answers requests, one JSON object per line.

    python benchmarks/checkpoint_worker.py shardwise | orbax | numpy

{"case": CASE, "folder": FOLDER} saves the arrays of a case and restores them; it returns the seconds until the arrays
may be changed, until everything is on the disk, and of the restore, and the most host memory that both used beside the
arrays themselves.
"""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

LIBRARY = sys.argv[1]
if LIBRARY == "shardwise":
    import shardwise as jax
    from shardwise import checkpoints
else:
    import jax
if LIBRARY == "orbax":
    import orbax.checkpoint as ocp

# The number of arrays, their shapes, and their specs.
CASES: dict[str, tuple[int, tuple[int, ...], tuple[str | None, ...]]] = {
    "32 × 16 MiB, 8 shards": (32, (2048, 2048), ("data", None)),
    "4 × 16 MiB, replicated": (4, (2048, 2048), (None, None)),
    "10,000 × 1 KiB": (10_000, (256,), (None,)),
    "one of 4 GiB, 8 shards": (1, (32_768, 32_768), ("data", None)),
    "smoke": (3, (64, 64), ("data", None)),
}


def arrays(case: str) -> dict[str, Any]:
    count, shape, spec = CASES[case]
    mesh = jax.make_mesh((8,), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    host = np.random.default_rng(0).random(shape, np.float32)
    made = {f"array{number}": jax.device_put(host, sharding) for number in range(count)}
    return jax.block_until_ready(made)


class PeakMemory:
    """The largest resident memory of this process while it is entered, beside that at the beginning."""

    def __enter__(self) -> "PeakMemory":
        self.before = self.peak = _resident()
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


def save(path: Path, tree: dict[str, Any]) -> Callable[[], None]:
    """Start to save; return a function that waits until everything is on the disk."""
    if LIBRARY == "shardwise":
        return checkpoints.save(path, tree).wait
    if LIBRARY == "orbax":
        checkpointer = ocp.StandardCheckpointer()
        checkpointer.save(path, tree)
        return checkpointer.wait_until_finished
    path.mkdir()
    for name, array in tree.items():
        with open(path / f"{name}.npy", "wb") as file:
            np.save(file, np.asarray(array))
            file.flush()
            os.fsync(file.fileno())
    return lambda: None


def restore(path: Path, tree: dict[str, Any]) -> Any:
    like = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for name, x in tree.items()}
    if LIBRARY == "shardwise":
        return checkpoints.restore(path, like)
    if LIBRARY == "orbax":
        return ocp.StandardCheckpointer().restore(path, like)
    return {name: jax.device_put(np.load(path / f"{name}.npy"), x.sharding) for name, x in like.items()}


def answer(case: str, folder: str) -> dict[str, float]:
    tree, path = arrays(case), Path(folder) / LIBRARY
    size = sum(shard.data.nbytes for x in tree.values() for shard in x.addressable_shards)
    with PeakMemory() as saving:
        start = time.perf_counter()
        wait = save(path, tree)
        blocked = time.perf_counter() - start
        wait()
        saved = time.perf_counter() - start
    with PeakMemory() as restoring:
        start = time.perf_counter()
        restored = jax.block_until_ready(restore(path, tree))
        read = time.perf_counter() - start
    first = next(iter(tree))
    np.testing.assert_array_equal(np.asarray(restored[first]), np.asarray(tree[first]))
    shutil.rmtree(path)
    return {
        "time until arrays may change": blocked,
        "save time": saved,
        "restore time": read,
        "host memory of save": saving.used,
        "host memory of restore": max(restoring.used - size, 0),
    }


for line in sys.stdin:
    print(json.dumps(answer(**json.loads(line))), flush=True)
