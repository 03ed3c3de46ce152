"""Soak: train on several processes, with a random fault every 29 s, and compare with a run without faults.

python -m tests.recovery.soak [--minutes 20] [--seed 0] [--processes 4] [--spares 1] [--log FILE]

The same training runs three times, for as many minutes each: without faults, with faults and spare processes, and with
faults and restarts from checkpoints on disk. All save every tenth step on disk. The exit code is 0 if both runs with
faults continue to their ends, if every loss is that of the run without faults (bit for bit if the number of processes
did not change), and if no process was left behind. All events are logged, one JSON object per line.
"""

import argparse
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.recovery.launches import PROGRAM, ROOT
from tests.soak.run import MARK, EventLog, orphans

PAUSE = 0.25  # seconds of every step, for the computation of a larger program
TIMEOUT = 20  # seconds after which a process counts as stuck
START_TIME = 300.0  # seconds for the first step
KINDS = ("kill", "kill", "stop", "raise", "drop", "coordinator", "disk")
NO_RESTART = ("coordinator", "disk")  # faults that the launcher without spares does not have, or that end no process


@dataclass
class Training:
    """What the processes of one run have printed.

    Attributes:
        losses: the losses of each step, as hexadecimal strings.
        starts: the time of each call of the training function, and the number of its processes.
        steps: the time and the number of each step that process 0 has completed.
    """

    losses: dict[int, set[str]] = field(default_factory=dict)
    starts: list[tuple[float, int]] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)
    compiled: list[int] = field(default_factory=list)

    def read(self, line: str) -> None:
        if found := re.search(r"\] step (\d+) loss (\S+) at (\S+)", line):
            self.losses.setdefault(int(found[1]), set()).add(found[2])
            self.steps.append((float(found[3]), int(found[1])))
        elif found := re.search(r"of (\d+) starts at step \d+ at (\S+)", line):
            self.starts.append((float(found[2]), int(found[1])))

    def throughput(self, end: float) -> float:
        """Return the new steps per second from the first one until the time `end`."""
        done = [each for each in self.steps if each[0] <= end]
        return (max(step for _, step in done) + 1) / (end - done[0][0])

    def recovery_time(self, fault: float) -> float | None:
        """Return the seconds from a fault to the end of the next step in the next generation."""
        start = min((time for time, _ in self.starts if time > fault), default=None)
        step = min((time for time, _ in self.steps if start is not None and time > start), default=None)
        return None if step is None else step - fault


def train(
    name: str, launch: list[str], program: list[str], options: argparse.Namespace, log: EventLog, kinds: tuple[str, ...]
) -> tuple[Training, float, list[tuple[str, float]], list[str]]:
    """Train for some minutes, with a fault of one of these kinds every few seconds.

    Returns:
        What the processes have printed, the steps per second, the faults with their times, and what was wrong.
    """
    training, chance, wrong = Training(), random.Random(options.seed), []
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        mark = f"{os.getpid()}-{name}"
        command = [sys.executable, "-m", "shardwise", "launch", "-n", str(options.processes), *launch]
        command += [
            "--devices-per-process",
            "2",
            "--timeout",
            str(TIMEOUT),
            "--log-dir",
            f"{folder}/logs",
            str(PROGRAM),
        ]
        process = subprocess.Popen(
            [*command, folder, "--steps", "1000000", "--pause", str(PAUSE), *program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), MARK: mark},
        )

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                training.read(line)
                if line.startswith("shardwise launch:") or "not saved" in line:
                    log.write("line", run=name, text=line.strip())

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            limit = time.monotonic() + START_TIME
            while not training.steps and process.poll() is None and time.monotonic() < limit:
                time.sleep(0.1)
            end = time.monotonic() + 60 * options.minutes
            commands: list[tuple[str, Path]] = []
            next_fault = time.monotonic() + options.every
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.1)
                if kinds and time.monotonic() >= next_fault:
                    kind, rank = chance.choice(KINDS), chance.randrange(options.processes)
                    next_fault += options.every
                    if kind in kinds:
                        path = Path(folder, f"now-{len(commands)}")
                        commands.append((kind, path.with_name(f"happened-{path.name}")))
                        path.with_suffix(".new").write_text(f"{kind}:{rank}")
                        path.with_suffix(".new").rename(path)
                        log.write("fault", run=name, kind=kind, rank=rank)
            rate = training.throughput(time.time()) if training.steps else 0.0
            if process.poll() is not None:
                wrong.append(f"{name}: the launch has ended with exit code {process.returncode}")
            faults = [(kind, path.stat().st_ctime) for kind, path in commands if path.exists()]
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        reader.join(60)
        if left := orphans(mark):
            wrong.append(f"{name}: the processes {left} outlived their launcher")
    log.write("run", name=name, rate=rate, faults=faults, starts=training.starts, wrong=wrong)
    return training, rate, faults, wrong


def compare(name: str, training: Training, expected: Training, processes: int) -> list[str]:
    """Return how the losses differ from those of the run without faults."""
    is_exact = {count for _, count in training.starts} == {processes}
    for step, losses in training.losses.items():
        if step not in expected.losses:
            continue
        (wanted,) = expected.losses[step]
        close = pytest.approx([float.fromhex(wanted)] * len(losses), rel=1e-4)
        if losses != {wanted} if is_exact else [float.fromhex(loss) for loss in losses] != close:
            return [f"{name}: the losses of step {step} are {losses}, not {wanted}"]
    return []


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train with random faults, and compare the throughput.")
    parser.add_argument("--minutes", type=float, default=20, help="the time of each of the three runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--every", type=float, default=29, help="seconds between two faults")
    parser.add_argument("--log", type=Path, default=ROOT / "build/soak.log", help="the file of all events")
    options = parser.parse_args(arguments)
    log = EventLog(options.log)
    spares = ["--spares", str(options.spares)]
    plain, rate, _, wrong = train("without faults", spares, [], options, log, ())
    print(f"without faults: {rate:.2f} steps/s", flush=True)
    for name, launch, program, kinds in (
        ("with spares", spares, [], KINDS),
        ("with restarts from disk", ["--max-restarts", "1000000"], ["--from-disk"], tuple(set(KINDS) - {*NO_RESTART})),
    ):
        training, faulty_rate, faults, errors = train(name, launch, program, options, log, kinds)
        wrong += errors + compare(name, training, plain, options.processes)
        waits = [wait for kind, at in faults if kind != "disk" and (wait := training.recovery_time(at)) is not None]
        print(f"{name}: {faulty_rate:.2f} steps/s, {faulty_rate / rate:.1%}", flush=True)
        print(f"  {len(faults)} faults: {dict(Counter(kind for kind, _ in faults))}")
        print(f"  processes of each start: {dict(Counter(count for _, count in training.starts))}")
        if waits:
            median, most = statistics.median(waits), max(waits)
            print(
                f"  seconds from a fault to the end of the next step: median {median:.1f}, most {most:.1f}", flush=True
            )
    for error in wrong:
        print(f"WRONG: {error}")
    log.write("result", wrong=wrong)
    log.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
