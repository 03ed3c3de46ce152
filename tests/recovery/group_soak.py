"""Soak of groups: local updates of several groups, with a random fault every 29 s, beside a run without faults.

python -m tests.recovery.group_soak [--minutes 4] [--seed 0] [--groups 4] [--spares 1] [--log FILE]

Each group is a program of one process, and so is each spare. A launcher starts each of them again when it ends, and the
outer server lets a spare take the place of a group that has ended or is late. A fault is a kill, an exception, a stop
or a partition; the last two end after some seconds. The group-steps that count are those of outer gradients in updates.
The exit code is 0 if all groups have the same loss after each update, bit for bit, if the losses of the last half of
both runs differ by at most `TOLERANCE` on average, and if no process was left behind. In the first updates, losses are
large, and groups are late because they have started at different times.
"""

import argparse
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from shardwise import strategies
from tests.recovery.launches import ROOT
from tests.soak.run import MARK, EventLog, orphans

PROGRAM = ROOT / "tests/recovery/group_training.py"
STEPS, PAUSE = 20, 0.05  # of a group between two exchanges, and the seconds of each step, for a larger program
STOP_TIME = 5.0  # seconds of a stop or a partition
START_TIME = 300.0  # seconds until all groups have taken part in an update
WARM_UPDATES = 3  # updates before the time is measured
TOLERANCE = 0.05  # of the losses without faults
SIGNALS = {
    "kill": signal.SIGKILL,
    "exception": signal.SIGUSR1,
    "stop": signal.SIGSTOP,
    "partition": signal.SIGUSR2,
}


@dataclass
class Groups:
    """What the processes of a run have printed.

    Attributes:
        losses: the losses after each update, as hexadecimal strings.
        starts: how many processes have been ready for a place.
    """

    losses: dict[int, set[str]] = field(default_factory=dict)
    starts: int = 0

    def read(self, line: str) -> None:
        if found := re.search(r"\] group \d+ update (\d+) loss (\S+)", line):
            self.losses.setdefault(int(found[1]), set()).add(found[2])
        elif "] ready" in line:
            self.starts += 1


def launch(server: strategies.OuterServer, folder: Path, mark: str, index: int) -> "subprocess.Popen[str]":
    """Start a launcher of one process, which is started again whenever it ends."""
    launcher = [sys.executable, "-m", "shardwise", "launch", "-n", "1", "--max-restarts", "1000000"]
    launcher += ["--log-dir", str(folder / f"logs-{index}"), str(PROGRAM)]
    program = [server.ticket, str(folder), "--steps", str(STEPS), "--pause", str(PAUSE), "--cut-off", str(STOP_TIME)]
    return subprocess.Popen(
        [*launcher, *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), MARK: mark},
    )


def inject(kind: str, group: str, folder: Path) -> None:
    """Let a fault happen in the process that has the place of a group."""
    marks = [path for path in folder.iterdir() if path.name.isdecimal() and path.read_text() == group]
    pid = int(max(marks, key=lambda path: path.stat().st_mtime).name)
    with suppress(ProcessLookupError):
        os.kill(pid, SIGNALS[kind])
        if kind == "stop":
            threading.Timer(STOP_TIME, _continue, [pid]).start()


def _continue(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def train(
    name: str, options: argparse.Namespace, log: EventLog, kinds: tuple[str, ...]
) -> tuple[Groups, float, Counter[str], list[str]]:
    """Train for some minutes, with a fault of one of these kinds every few seconds.

    Returns:
        What the groups have printed, the group-steps per second, the faults, and what was wrong.
    """
    groups, chance, wrong, faults = Groups(), random.Random(options.seed), [], Counter[str]()
    names = [str(index) for index in range(options.groups)]
    server = strategies.OuterServer(deadline=options.deadline, max_staleness=1000, groups=names)
    mark, launchers, readers = f"{os.getpid()}-{name}", [], []
    rate = 0.0
    with tempfile.TemporaryDirectory(prefix="soak-groups-") as root:
        folder = Path(root)

        def read(lines: "subprocess.Popen[str]") -> None:
            assert lines.stdout is not None
            for line in lines.stdout:
                groups.read(line)
                if line.startswith("shardwise launch:"):
                    log.write("line", run=name, text=line.strip())

        try:
            for index in range(options.groups + options.spares):
                launchers.append(launch(server, folder, mark, index))
                readers.append(threading.Thread(target=read, args=(launchers[-1],), daemon=True))
                readers[-1].start()
            limit = time.monotonic() + START_TIME
            is_warm = False
            while not is_warm and time.monotonic() < limit:
                time.sleep(0.1)
                is_ready = groups.starts == options.groups + options.spares and len(server.groups) == options.groups
                is_warm = is_ready and server.version >= WARM_UPDATES
            if not is_warm:
                return groups, 0.0, faults, [f"{name}: the groups {server.groups} train, not {names}"]
            version = server.version
            while server.version == version:  # the rate begins at an update
                time.sleep(0.01)
            start, first = time.monotonic(), server.gradients
            next_fault = start + options.every
            while (now := time.monotonic()) < start + 60 * options.minutes:
                time.sleep(0.02)
                if server.version != version:
                    version = server.version
                    log.write("update", run=name, version=version, gradients=server.gradients)
                if kinds and now >= next_fault:
                    next_fault += options.every
                    kind, group = chance.choice(kinds), chance.choice(names)
                    faults[kind] += 1
                    inject(kind, group, folder)
                    log.write("fault", run=name, kind=kind, group=group)
            version = server.version
            while server.version == version:
                time.sleep(0.01)
            rate = STEPS * (server.gradients - first) / (time.monotonic() - start)
            if ended := [process.returncode for process in launchers if process.poll() is not None]:
                wrong.append(f"{name}: launchers have ended with the exit codes {ended}")
        finally:
            for process in launchers:
                process.terminate()
            for process in launchers:
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            server.close()
        for reader in readers:
            reader.join(60)
        if left := orphans(mark):
            wrong.append(f"{name}: the processes {left} outlived their launchers")
    for update, losses in sorted(groups.losses.items()):
        if len(losses) > 1 or not all(math.isfinite(float.fromhex(loss)) for loss in losses):
            wrong.append(f"{name}: the losses after update {update} are {losses}")
    return groups, rate, faults, wrong


def differences(faulty: Groups, plain: Groups) -> list[float]:
    """Return the relative differences of the losses after the last half of the updates that both runs have made."""
    result = []
    updates = sorted(faulty.losses.keys() & plain.losses.keys())
    for update in updates[len(updates) // 2 :]:
        one, other = (float.fromhex(next(iter(run.losses[update]))) for run in (faulty, plain))
        result.append(abs(one - other) / other)
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train groups with random faults, and compare the group-steps.")
    parser.add_argument("--minutes", type=float, default=4, help="the time of each of the two runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--every", type=float, default=29, help="seconds between two faults")
    parser.add_argument("--deadline", type=float, default=0.2, help="the seconds for which groups wait for a late one")
    parser.add_argument("--log", type=Path, default=ROOT / "build/soak-groups.log", help="the file of all events")
    options = parser.parse_args(arguments)
    log = EventLog(options.log)
    plain, rate, _, wrong = train("without faults", options, log, ())
    print(f"without faults: {rate:.2f} group-steps/s, {len(plain.losses)} updates", flush=True)
    faulty, faulty_rate, faults, errors = train("with faults", options, log, tuple(SIGNALS))
    wrong += errors
    share = faulty_rate / rate if rate else 0.0
    print(f"with faults: {faulty_rate:.2f} group-steps/s, {share:.1%}, {len(faulty.losses)} updates", flush=True)
    print(f"  {faults.total()} faults: {dict(faults)}")
    if differing := differences(faulty, plain):
        mean, most = statistics.mean(differing), max(differing)
        last = float.fromhex(next(iter(faulty.losses[max(faulty.losses)])))
        print(
            f"  losses after the last {len(differing)} updates: mean difference {mean:.2%}, most {most:.2%}; "
            f"last {last:.4f}"
        )
        if mean > TOLERANCE:
            wrong.append(f"the losses differ by {mean:.2%} on average, more than {TOLERANCE:.0%}")
    for error in wrong:
        print(f"WRONG: {error}")
    log.write("result", share=share, wrong=wrong)
    log.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
