"""Checkpoints of Shardwise, of Orbax on JAX, of PyTorch, and the same bytes written by numpy.

The libraries take turns. Each save and each restore has a new process, as in training: memory that a process has freed
and kept would make its next restore faster. PyTorch is measured where it is installed: with one tensor for each array,
and with eight where arrays have eight replicas.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.checkpoint_worker import CASES
from benchmarks.row import Case, Row, Unit
from benchmarks.worker import workers

WORKER = "benchmarks/checkpoint_worker.py"
TORCH = {"torch": "PyTorch DCP", "torch-replicas": "PyTorch DCP, 8 replicas"}
PEERS = {"orbax": "Orbax", **(TORCH if find_spec("torch") else {})}
SIZES = ("32 × 16 MiB, 8 shards", "4 × 16 MiB, replicated", "10,000 × 1 KiB", "one of 4 GiB, 8 shards")
WARM_UP = "warm-up"
ROUNDS = {"10,000 × 1 KiB": 2, "one of 4 GiB, 8 shards": 1}  # 5 of the others
UNITS: dict[str, Unit] = {
    "time until arrays may change": "seconds",
    "save time": "seconds",
    "restore time": "seconds",
    "host memory of save": "bytes",
    "host memory of restore": "bytes",
}


def cases(quick: bool) -> list[Case]:
    if quick:
        return [Case("smoke", partial(rows, "smoke", 1))]
    return [Case(size, partial(rows, size, ROUNDS.get(size, 5))) for size in SIZES]


def rows(case: str, rounds: int) -> list[Row]:
    """Return the figures of ours and of each peer, and of numpy in the column of experts."""
    peers = [peer for peer in PEERS if peer != "torch-replicas" or _is_replicated(case)]
    libraries = ["shardwise", *peers, "numpy"]
    measured = [[_save_and_restore(library, case) for library in libraries] for _ in range(rounds)]
    by_library = dict(zip(libraries, zip(*measured, strict=True), strict=True))
    return [_row(case, name, unit, peer, by_library) for name, unit in UNITS.items() for peer in peers]


def _save_and_restore(library: str, case: str) -> dict[str, float]:
    """Return the figures of a save and of a restore. A small one before each is not counted: it imports modules."""
    with TemporaryDirectory() as folder:
        with workers((WORKER, library)) as (process,):
            process.ask(call="save", case=WARM_UP, folder=folder)
            saved = process.ask(call="save", case=case, folder=folder)
        with workers((WORKER, library)) as (process,):
            process.ask(call="restore", case=WARM_UP, folder=folder, array_bytes=0)
            restored = process.ask(call="restore", case=case, folder=folder, array_bytes=saved["array_bytes"])
    return {**saved, **restored}


def _is_replicated(case: str) -> bool:
    """Return whether each device has all elements of the arrays of a case."""
    return all(axis is None for axis in CASES[case].spec)


def _row(case: str, name: str, unit: Unit, peer: str, measured: Mapping[str, Sequence[Mapping[str, float]]]) -> Row:
    ours, theirs = measured["shardwise"], measured[peer]
    best = {library: min(each[name] for each in rounds) for library, rounds in measured.items()}
    ratio = median(mine[name] / other[name] if other[name] else 1.0 for mine, other in zip(ours, theirs, strict=True))
    label = f"{case}: {name} / {PEERS[peer]}"
    return Row(label, unit, best["shardwise"], best[peer], 1.0, ratio, best["numpy"])
