"""Run cases in worker processes with a memory limit and a watchdog, and classify the outcomes."""

import multiprocessing
import os
import random
import resource
import shutil
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.checkpoints.forgeries.damage import DAMAGE
from tests.checkpoints.forgeries.formats import FORMATS

SECONDS = 60.0  # for one case, on a busy machine
START_SECONDS = 300.0  # until a worker has written the originals
ADDRESS_SPACE = 6 << 30  # bytes that a worker may map besides those that it has at first
RESIDENT = 1500 << 20  # bytes by which the resident memory of a worker may grow
WEIGHTS = {"shardwise": 5, "orbax-zarr2": 3, "orbax-zarr2-ocdbt": 2, "orbax-zarr3-ocdbt": 2, "safetensors": 3, "npy": 2}
PASSED = ("typed error", "equal values", "changed values, in a format without checksums")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case.

    Attributes:
        seed: the seed of the case.
        format: the name of the format.
        damage: the name of the damage.
        kind: what happened.
        detail: the error.
    """

    seed: int
    format: str
    damage: str
    kind: str
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.kind in PASSED


def case(seed: int) -> tuple[str, int]:
    """Return the format of a case, and the position of its damage."""
    rng = random.Random(seed)
    names = list(FORMATS)
    (name,) = rng.choices(names, [WEIGHTS.get(name, 1) for name in names])
    return name, rng.randrange(len(DAMAGE[name]))


def run_cases(seeds: range, folder: Path) -> Iterator[Outcome]:
    """Run cases one after the other. A worker that crashes or hangs is replaced."""
    worker = None
    try:
        for seed in seeds:
            worker = worker or _Worker(folder)
            name, position = case(seed)
            answer = worker.run(seed)
            if answer is None:
                kind = worker.end()
                worker = None
                answer = kind, ""
            yield Outcome(seed, name, DAMAGE[name][position].__name__, *answer)
    finally:
        if worker is not None:
            worker.end()


class _Worker:
    """A process that runs cases."""

    def __init__(self, folder: Path):
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, folder), daemon=True)
        self._process.start()
        theirs.close()
        if not self._connection.poll(START_SECONDS):
            self.end()
            raise RuntimeError("a worker did not start")
        self._connection.recv()

    def run(self, seed: int) -> tuple[str, str] | None:
        """Return the outcome and the error of a case; None if the process crashes or hangs."""
        self._connection.send(seed)
        try:
            return self._connection.recv() if self._connection.poll(SECONDS) else None
        except EOFError:
            return None

    def end(self) -> str:
        """End the process, and return whether it had crashed, or hangs."""
        self._process.join(1)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            self._process.join(30)
        return "hang" if code is None else f"crash with code {code}"


def _serve(connection, folder: Path) -> None:
    """Write the originals, and run the cases that come."""
    warnings.simplefilter("ignore")
    os.environ["TENSORSTORE_VERBOSE_LOGGING"] = ""
    expected = {}
    originals, copies = folder / f"originals-{os.getpid()}", folder / f"copies-{os.getpid()}"
    for name, form in FORMATS.items():
        (originals / name).mkdir(parents=True)
        form.write(originals / name)
        shutil.copytree(originals / name, copies / name)
        expected[name] = form.read(copies / name)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    first_peak = _peak()
    connection.send("ready")
    while True:
        seed = connection.recv()
        name, position = case(seed)
        copied = copies / name
        _remove(copied)
        shutil.copytree(originals / name, copied)
        answer = _run_case(seed, name, position, copied, expected[name])
        if _peak() - first_peak > RESIDENT:
            answer = "too much memory", f"{_peak() - first_peak:,} bytes; {answer}"
        connection.send(answer)


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _run_case(seed: int, name: str, position: int, folder: Path, expected: list[str]) -> tuple[str, str]:
    form = FORMATS[name]
    DAMAGE[name][position](random.Random(seed), folder)
    try:
        values = form.read(folder)
    except form.error as error:
        return "typed error", f"{type(error).__name__}: {error}"
    except BaseException as error:
        return "untyped error", "".join(traceback.format_exception(error))
    if values == expected:
        return "equal values", ""
    return (PASSED[2] if not form.has_checksums else "wrong values"), ""
