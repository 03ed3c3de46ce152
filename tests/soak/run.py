"""Soak: train on several processes for some minutes, with random kills, stops and restarts, by a seed.

python -m tests.soak.run [--minutes 20] [--seed 0] [--processes 4] [--log FILE]

A round is a training run under the launcher, in a new folder of checkpoints. While it trains, random faults happen: a
process or the launcher is killed, a process is stopped for ever or for a moment, the launcher gets SIGTERM. The
launcher starts the processes again; a launcher that ended is started again here. A round is right if every loss that
was printed equals that of a run without faults, bit for bit, and if no process outlives its launcher. All events are
logged, one JSON object per line. The exit code is 0 if all rounds are right.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "tests/soak/program.py"
MARK = "SHARDWISE_SOAK"  # a variable that all processes of a soak inherit
STEPS = 100  # of a round
MAX_RESTARTS = 1000  # of one launcher
PAUSE = 0.05  # seconds of every step, in which faults happen too
END_TIME = 60.0  # seconds until all processes of a launcher that ended must be gone
ROUND_TIME = 1800.0  # seconds after which a round counts as stuck
# The faults, with their weights. `pause` stops a process for a moment, which must do no harm.
FAULTS = {"kill": 4, "stop": 2, "pause": 2, "kill launcher": 1, "terminate launcher": 1}


@dataclass
class Totals:
    """What happened in all rounds."""

    faults: dict[str, int] = field(default_factory=dict)
    rounds: int = 0
    restarts: int = 0
    steps: int = 0
    errors: list[str] = field(default_factory=list)


class EventLog:
    """A file with one JSON object per event."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")
        self._start = time.monotonic()
        self._lock = threading.Lock()

    def write(self, event: str, **data: object) -> None:
        line = json.dumps({"seconds": round(time.monotonic() - self._start, 3), "event": event, **data})
        with self._lock:
            print(line, file=self._file, flush=True)

    def close(self) -> None:
        self._file.close()


class Launch:
    """A launcher, and what its processes print: their ids, by rank, and the losses."""

    def __init__(
        self,
        folder: Path,
        options: argparse.Namespace,
        mark: str,
        max_restarts: int,
        losses: dict[int, set[str]],
        log: EventLog,
    ):
        self.pids: dict[int, int] = {}
        self.starts = 0  # of process 0
        self.steps = 0  # since the last start
        self.mark = mark
        self._losses, self._log = losses, log
        program = [PROGRAM, str(folder), str(options.steps), str(PAUSE), str(options.timeout)]
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "shardwise", "launch", "-n", str(options.processes)),
                *("--devices-per-process", "2", "--timeout", str(options.timeout), "--max-restarts", str(max_restarts)),
                *("--log-dir", str(folder.with_suffix(".logs")), *program),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), MARK: mark},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                if found := re.match(r"\[\s*(\d+)\] pid (\d+)", line):
                    self.pids[int(found[1])] = int(found[2])
                    if found[1] == "0":
                        self.starts, self.steps = self.starts + 1, 0
                    self._log.write("start", rank=int(found[1]), pid=int(found[2]))
                elif found := re.match(r"\[\s*0\] step (\d+) loss (\S+)", line):
                    self._losses.setdefault(int(found[1]), set()).add(found[2])
                    self.steps += 1
                elif line.startswith("shardwise launch:"):
                    self._log.write("launcher", text=line.strip())

    def wait(self, seconds: float) -> int | None:
        """Return the exit code of the launcher, or None if it still runs after some seconds."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(END_TIME)
        return code


def is_marked(pid: int, mark: str) -> bool:
    """Return whether a process runs that has this mark in its environment."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return status not in "ZX" and f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(
            b"\0"
        )
    except OSError:  # it has ended
        return False


def marked_processes(mark: str) -> list[int]:
    """Return the processes that run with this mark in their environment."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in numbers if is_marked(pid, mark)]


def orphans(mark: str) -> list[int]:
    """Return the processes that still run `END_TIME` seconds after their launcher ended."""
    end = time.monotonic() + END_TIME
    while (alive := marked_processes(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    return alive


def inject(fault: str, launch: Launch, chance: random.Random, log: EventLog) -> None:
    """Let a fault happen in a random process, or in the launcher."""
    rank = chance.choice(sorted(launch.pids))
    pid = launch.pids[rank]
    log.write(fault, rank=rank, pid=pid)
    try:
        if not is_marked(pid, launch.mark):  # the launcher is starting the processes again
            raise ProcessLookupError
        if fault == "kill":
            os.kill(pid, signal.SIGKILL)
        elif fault == "stop":
            os.kill(pid, signal.SIGSTOP)
        elif fault == "pause":
            os.kill(pid, signal.SIGSTOP)
            time.sleep(chance.uniform(0.1, 1.0))
            os.kill(pid, signal.SIGCONT)
        elif fault == "kill launcher":
            launch.process.kill()
        else:
            launch.process.terminate()
    except ProcessLookupError:
        log.write("gone", pid=pid)


def run_round(
    folder: Path,
    options: argparse.Namespace,
    chance: random.Random | None,
    end: float,
    log: EventLog,
    totals: Totals,
) -> dict[int, set[str]]:
    """Train to the last step, with faults until the time `end` if there are any.

    Returns:
        The losses that were printed for each step.
    """
    losses: dict[int, set[str]] = {}
    limit = time.monotonic() + ROUND_TIME
    while len(losses) < options.steps:
        mark = f"{os.getpid()}-{folder.name}-{time.monotonic_ns()}"
        launch = Launch(folder, options, mark, 0 if chance is None else MAX_RESTARTS, losses, log)
        code = None
        try:
            while code is None and time.monotonic() < limit:
                delay = chance.uniform(0.5, 5.0) if chance is not None else 5.0
                code = launch.wait(delay)
                if code is None and chance is not None and launch.steps and time.monotonic() < end:
                    (fault,) = chance.choices(list(FAULTS), list(FAULTS.values()))
                    totals.faults[fault] = totals.faults.get(fault, 0) + 1
                    inject(fault, launch, chance, log)
                    launch.steps = 0  # the next fault comes when training goes on
        finally:
            if launch.process.poll() is None:
                launch.process.kill()
                launch.process.wait()
        log.write("end of launcher", code=code)
        totals.restarts += max(0, launch.starts - 1)
        if left := orphans(mark):
            totals.errors.append(f"{folder.name}: the processes {left} outlived their launcher")
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= limit:
            totals.errors.append(f"{folder.name}: not complete after {ROUND_TIME:.0f} s")
        if code and chance is None:
            totals.errors.append(f"the run without faults failed with exit code {code}")
        if totals.errors:
            break
    return losses


def soak(options: argparse.Namespace) -> Totals:
    """Run rounds until the time is over, and compare each with a run without faults."""
    totals, log = Totals(), EventLog(options.log)
    chance = random.Random(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    log.write("soak", seed=options.seed, minutes=options.minutes, processes=options.processes, steps=options.steps)
    try:
        expected = run_round(folder / "expected", options, None, 0.0, log, totals)
        end = time.monotonic() + 60 * options.minutes
        assert totals.errors or all(len(values) == 1 for values in expected.values())
        while not totals.errors and time.monotonic() < end:
            totals.rounds += 1
            losses = run_round(folder / f"round{totals.rounds}", options, chance, end, log, totals)
            totals.steps += len(losses)
            for step in range(options.steps):
                if losses.get(step) != expected[step]:
                    totals.errors.append(
                        f"round {totals.rounds}, step {step}: {losses.get(step)}, not {expected.get(step)}"
                    )
                    break
            log.write("end of round", number=totals.rounds, right=not totals.errors)
            print(
                f"round {totals.rounds}: {'right' if not totals.errors else 'WRONG'}; faults {totals.faults}",
                flush=True,
            )
    finally:
        if totals.errors:
            print(f"checkpoints and logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        log.write("result", **vars(totals))
        log.close()
    return totals


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train with random kills, stops and restarts.")
    parser.add_argument("--minutes", type=float, default=20, help="the time in which faults happen")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--steps", type=int, default=STEPS, help="the steps of each round")
    parser.add_argument("--timeout", type=float, default=20, help="seconds after which a process counts as stuck")
    parser.add_argument("--log", type=Path, default=ROOT / "build/soak.log", help="the file of all events")
    totals = soak(parser.parse_args(arguments))
    print(
        f"{totals.rounds} rounds, {totals.steps} steps, {sum(totals.faults.values())} faults ({totals.faults}), "
        f"{totals.restarts} restarts by the launcher"
    )
    for error in totals.errors:
        print(f"WRONG: {error}")
    print("wrong" if totals.errors else "every loss equals that of the run without faults; no process was left behind")
    return 1 if totals.errors else 0


if __name__ == "__main__":
    sys.exit(main())
