"""Checkpoints of Shardwise, of Orbax on JAX, and the same bytes written by numpy: processes that take turns."""

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.row import Case, Row, Unit
from benchmarks.worker import workers

WORKER = "benchmarks/checkpoint_worker.py"
LIBRARIES = ("shardwise", "orbax", "numpy")
SIZES = ("32 × 16 MiB, 8 shards", "4 × 16 MiB, replicated", "10,000 × 1 KiB", "one of 4 GiB, 8 shards")
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
    return [Case(size, partial(rows, size, 1 if "4 GiB" in size else 5)) for size in SIZES]


def rows(case: str, rounds: int) -> list[Row]:
    """Return the figures of ours, of Orbax as the peer, and of numpy in the column of experts."""
    with TemporaryDirectory() as folder, workers(*((WORKER, library) for library in LIBRARIES)) as processes:
        for process in processes:
            process.ask(case="smoke", folder=folder)
        measured = [[process.ask(case=case, folder=folder) for process in processes] for _ in range(rounds)]
    ours, orbax, numpy = ([each[number] for each in measured] for number in range(len(LIBRARIES)))
    return [_row(case, name, unit, ours, orbax, numpy) for name, unit in UNITS.items()]


def _row(
    case: str,
    name: str,
    unit: Unit,
    ours: Sequence[Mapping[str, float]],
    orbax: Sequence[Mapping[str, float]],
    numpy: Sequence[Mapping[str, float]],
) -> Row:
    best = [min(each[name] for each in side) for side in (ours, orbax, numpy)]
    ratio = median(mine[name] / theirs[name] if theirs[name] else 1.0 for mine, theirs in zip(ours, orbax, strict=True))
    return Row(f"{case}: {name}", unit, best[0], best[1], 1.0, ratio, best[2])
