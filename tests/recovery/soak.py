"""Soak: train on several processes, with a random fault every 29 s, and compare with a run without faults.

python -m tests.recovery.soak [--minutes 20] [--undisturbed-minutes M] [--disk-minutes M] [--seed 0] [--processes 4]
    [--spares 2] [--log FILE]

The same training runs three times: without faults, with faults and spare processes, and with faults and restarts from
checkpoints on disk. All save every tenth step on disk. A rate is the number of new steps per second from the end of the
first one, so the run without faults may be shorter than the others. Then the steps of the longest run are repeated
without faults and pauses, for the losses.

The exit code is 0 if both runs with faults continue to their ends, if a step follows every fault, if no program is
compiled again, if every loss is that of the run without faults (bit for bit, until fewer processes have continued for
some time), if the newest checkpoint on disk is intact, and if no process was left behind. All events are logged, one
JSON object per line.
"""

import argparse
import math
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

from shardwise.errors import CheckpointError
from tests.recovery.launches import PROGRAM, ROOT, environment, undisturbed, verify_newest
from tests.soak.run import MARK, EventLog, orphans

PAUSE = 0.25  # seconds of every step, for the computation of a larger program
TIMEOUT = 20  # seconds after which a process counts as stuck
START_TIME = 300.0  # seconds for the first step
RECOVERY_TIME = 60.0  # seconds after which a step must have followed a fault
KINDS = ("kill", "kill", "stop", "raise", "drop", "coordinator", "disk", "snapshot", "recovery")
DISK_KINDS = ("kill", "stop", "raise", "drop")  # faults that end processes of the launcher without spares


@dataclass
class Start:
    """One call of the training function in one process: its time, the number of processes, and what it compiled."""

    time: float
    count: int
    compiled: int = 0


@dataclass
class Training:
    """What the processes of one run have printed.

    Attributes:
        losses: the losses of each step, as hexadecimal strings.
        starts: the calls of the training function, in order.
        steps: the time and the number of each step that a process has completed.
        end: the time at which the run was ended.
    """

    losses: dict[int, set[str]] = field(default_factory=dict)
    starts: list[Start] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)
    end: float = 0.0
    _current: dict[str, Start] = field(default_factory=dict)  # the last call in each process

    def read(self, line: str) -> None:
        if found := re.match(r"\[\s*(\d+)\] step (\d+) loss (\S+) at (\S+) compiled (\d+)", line):
            self.losses.setdefault(int(found[2]), set()).add(found[3])
            self.steps.append((float(found[4]), int(found[2])))
            self._current[found[1]].compiled = int(found[5])
        elif found := re.match(r"\[\s*(\d+)\] .* of (\d+) starts at step \d+ at (\S+)", line):
            self._current[found[1]] = Start(float(found[3]), int(found[2]))
            self.starts.append(self._current[found[1]])

    def throughput(self) -> float:
        """Return the new steps per second from the end of the first one until the end of the run."""
        done = [each for each in self.steps if each[0] <= self.end]
        return max(step for _, step in done) / (self.end - done[0][0]) if done else 0.0

    def recovery_time(self, fault: float) -> float | None:
        """Return the seconds from a fault to the end of the next step in the next generation."""
        start = min((each.time for each in self.starts if each.time > fault), default=None)
        step = min((time for time, _ in self.steps if start is not None and time > start), default=None)
        return None if step is None else step - fault

    def compiled_again(self, processes: int) -> int:
        """Return the number of programs that were compiled after the first start, for as many processes."""
        return sum(start.compiled for start in self.starts[processes:] if start.count == processes)


def commands(kind: str, rank: int, processes: int) -> list[str]:
    """Return the commands of `training.py` for a fault: KIND:RANK, or KIND.POINT:RANK."""
    if kind == "snapshot":
        return [f"kill.send:{rank}"]
    if kind == "recovery":  # not the partner of the first one, if there is another process
        return [f"kill:{rank}", f"kill.fetch:{(rank + 2) % processes if processes > 3 else rank}"]
    return [f"{kind}:{rank}"]


def train(
    name: str,
    launch: list[str],
    program: list[str],
    minutes: float,
    options: argparse.Namespace,
    log: EventLog,
    kinds: tuple[str, ...],
) -> tuple[Training, list[tuple[str, float]], list[str]]:
    """Train for some minutes, with a fault of one of these kinds every few seconds.

    Returns:
        What the processes have printed, the faults with their times, and what was wrong.
    """
    training, chance, wrong = Training(), random.Random(options.seed), []
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        mark = f"{name}-{time.time_ns()}"
        command = [sys.executable, "-m", "shardwise", "launch", "-n", str(options.processes), *launch]
        command += ["--devices-per-process", "2", "--timeout", str(TIMEOUT), "--log-dir", f"{folder}/logs"]
        process = subprocess.Popen(
            [*command, str(PROGRAM), folder, "--steps", "1000000", "--pause", str(PAUSE), *program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=ROOT,
            env=environment(**{MARK: mark}),
        )

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                training.read(line)
                if line.startswith("shardwise launch:") or "not saved" in line or "lost:" in line:
                    log.write("line", run=name, text=line.strip())

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            limit = time.monotonic() + START_TIME
            while not training.steps and process.poll() is None and time.monotonic() < limit:
                time.sleep(0.1)
            end = time.monotonic() + 60 * minutes
            faults: list[tuple[str, Path]] = []
            next_fault = time.monotonic() + options.every
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.1)
                if kinds and time.monotonic() >= next_fault:
                    kind, rank = chance.choice(kinds), chance.randrange(options.processes)
                    next_fault += options.every
                    for text in commands(kind, rank, options.processes):
                        path = Path(folder, f"now-{len(faults)}")
                        faults.append((kind, path.with_name(f"happened-{path.name}")))
                        path.with_suffix(".new").write_text(text)
                        path.with_suffix(".new").rename(path)
                    log.write("fault", run=name, kind=kind, rank=rank)
            training.end = time.time()
            if process.poll() is not None:
                wrong.append(f"{name}: the launch has ended with exit code {process.returncode}")
            happened = [(kind, path.stat().st_ctime) for kind, path in faults if path.exists()]
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
        try:
            log.write("verified", run=name, step=verify_newest(folder))
        except CheckpointError as error:
            wrong.append(f"{name}: the newest checkpoint on disk is not intact: {error}")
    starts = [(start.time, start.count, start.compiled) for start in training.starts]
    log.write("run", name=name, rate=training.throughput(), faults=happened, starts=starts, wrong=wrong)
    return training, happened, wrong


def compare(name: str, training: Training, expected: dict[int, set[str]], processes: int) -> tuple[int, list[str]]:
    """Compare the losses with those of a run without faults.

    Returns:
        The number of steps whose losses are equal bit for bit, and what is wrong.
    """
    is_exact = {start.count for start in training.starts} == {processes}
    equal = 0
    for step, losses in training.losses.items():
        equal += losses == expected[step]
        (wanted,) = map(float.fromhex, expected[step])
        is_close = all(math.isclose(float.fromhex(loss), wanted, rel_tol=1e-4) for loss in losses)
        if losses != expected[step] if is_exact else not is_close:
            return equal, [f"{name}: the losses of step {step} are {losses}, not {wanted.hex()}"]
    return equal, []


def report(name: str, training: Training, undisturbed_rate: float, faults: list[tuple[str, float]]) -> list[str]:
    """Print what has happened in a run, and return what is wrong."""
    rate = training.throughput()
    print(f"{name}: {rate:.3f} steps/s, {rate / undisturbed_rate:.1%}", flush=True)
    print(f"  {len(faults)} faults: {dict(Counter(kind for kind, _ in faults))}")
    print(f"  processes of each start: {dict(Counter(start.count for start in training.starts))}")
    times = {(kind, at): training.recovery_time(at) for kind, at in faults if kind != "disk"}
    waits = [wait for wait in times.values() if wait is not None]
    if waits:
        median, most = statistics.median(waits), max(waits)
        print(f"  seconds from a fault to the end of the next step: median {median:.2f}, most {most:.2f}")
    print(f"  {len(waits)} of {len(times)} faults that end a generation were followed by a step")
    return [
        f"{name}: no step has followed a fault: {kind}"
        for (kind, at), wait in times.items()
        if wait is None and training.end - at > RECOVERY_TIME
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train with random faults, and compare the throughput.")
    parser.add_argument("--minutes", type=float, default=20, help="the time of the run with spares")
    parser.add_argument("--undisturbed-minutes", type=float, help="the time of the run without faults")
    parser.add_argument("--disk-minutes", type=float, help="the time of the run with restarts from disk; 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--spares", type=int, default=2)
    parser.add_argument("--every", type=float, default=29, help="seconds between two faults")
    parser.add_argument("--log", type=Path, default=ROOT / "build/soak.log", help="the file of all events")
    options = parser.parse_args(arguments)
    log, processes = EventLog(options.log), options.processes
    disk_minutes = options.minutes if options.disk_minutes is None else options.disk_minutes
    spares = ["--spares", str(options.spares)]
    plain, _, wrong = train(
        "without faults", spares, [], options.undisturbed_minutes or options.minutes, options, log, ()
    )
    runs, rate = {"without faults": plain}, plain.throughput()
    print(f"without faults: {rate:.3f} steps/s", flush=True)
    for name, launch, program, minutes, kinds in (
        ("with spares", spares, [], options.minutes, KINDS),
        ("with restarts from disk", ["--max-restarts", "1000000"], ["--from-disk"], disk_minutes, DISK_KINDS),
    ):
        if minutes:
            runs[name], faults, errors = train(name, launch, program, minutes, options, log, kinds)
            wrong += errors
            wrong += report(name, runs[name], rate, faults)
    if "with spares" in runs:
        again = runs["with spares"].compiled_again(processes)
        print(f"programs that were compiled again with spares: {again}", flush=True)
        wrong += ["with spares: programs were compiled again"] if again else []
    expected = undisturbed(processes, max(max(training.losses, default=0) for training in runs.values()) + 1)
    for name, training in runs.items():
        equal, errors = compare(name, training, expected, processes)
        print(f"{name}: the losses of {equal} of {len(training.losses)} steps are equal bit for bit", flush=True)
        wrong += errors
    for error in wrong:
        print(f"WRONG: {error}")
    log.write("result", wrong=wrong)
    log.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
