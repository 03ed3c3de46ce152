"""Launches with faults, by seeds: python -m tests.recovery.campaign [--faults 100] [--seed 0] [--jobs 1] [--log FILE]

First the launches of `SCRIPTED`, which have every kind of fault in every situation; then random ones. Each of these has
two to four processes on one node or two, up to two spares on each, and two to eight faults of all kinds: at the
beginning of a step, while a snapshot is sent, while processes join a generation, or while they restore. A node that is
lost comes back once. A launch is right if it ends with the losses
of a run without faults: bit for bit if the number of processes did not change, within rounding otherwise. It is right
too if it ends with an error that says what was lost. In each case, the newest checkpoint on disk must be intact. The
exit code is 0 if all launches are right, and if they have had every fault of `REQUIRED`.
"""

import argparse
import json
import math
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TextIO

from shardwise.errors import CheckpointError
from tests.recovery.launches import ROOT, Outcome, run, undisturbed
from tests.recovery.training import POINTS

# The number of nodes, of processes and of spares on each node, and the faults.
Launch = tuple[int, int, int, list[str]]

STEPS, PAUSE = 60, 0.2
STEP_FAULTS = ("kill", "kill", "stop", "raise", "coordinator", "drop", "gloo", "disk")
NODE_STEP_FAULTS = ("kill", "kill", "stop", "raise", "node", "node", "drop", "gloo", "disk")
POINT_FAULTS = ("kill", "kill", "stop", "drop")
LOST = (
    "CheckpointNotFound: no snapshot is complete",
    "no process is left that has a snapshot",
    "no other process is left",
)


TIME_LIMIT = 240.0  # seconds after which a launch counts as stuck
SCRIPTED: tuple[Launch, ...] = (
    (1, 3, 2, ["kill@8:1", "drop@20:2", "stop@32:0", "disk@44:1"]),
    (1, 3, 2, ["coordinator@8:0", "raise@20:2", "gloo@32:1", "disk@44:2"]),
    (1, 4, 2, ["kill.send@0:1", "kill@20:2", "kill.send@2:3", "kill@45:0"]),
    (1, 4, 2, ["kill@10:1", "kill.send@1:2", "kill@45:0", "stop.join@3:2"]),
    (1, 4, 2, ["kill@10:1", "kill.fetch@1:3", "kill@45:0", "kill.choose@3:2"]),
    (1, 4, 0, ["kill@10:1", "kill.fetch@1:1", "raise@50:1"]),  # the process that had rank 3
    (1, 4, 0, ["kill@10:1", "kill.send@1:2", "stop@50:1"]),
    (1, 4, 0, ["kill@10:1", "kill.fetch@2:3", "drop@50:0"]),
    (1, 3, 0, ["kill@10:1", "kill.send@2:0", "coordinator@50:0"]),
    (2, 2, 2, ["node@10:2", "kill@40:0", "stop@50:1"]),
    (2, 2, 1, ["kill@10:2", "node@25:3", "drop@45:1"]),
    (2, 2, 0, ["node@10:3", "kill.send@2:0", "raise@50:1"]),
)
STEP_KINDS = ("kill", "stop", "raise", "coordinator", "drop", "gloo", "disk", "node")
REQUIRED = (
    *(f"{kind} at a step" for kind in STEP_KINDS),
    *(f"kill during a {situation}" for situation in ("snapshot", "recovery", "shrink", "grow")),
)


def choose(chance: random.Random) -> Launch:
    """Return a random launch."""
    nodes, spares = chance.randint(1, 2), chance.randint(0, 2)
    processes = chance.randint(2, 4) if nodes == 1 else chance.randint(1, 2)
    step_faults = STEP_FAULTS if nodes == 1 else NODE_STEP_FAULTS
    faults = []
    for index in range(chance.randint(2, 8)):
        rank = chance.randrange(nodes * processes)
        if index < 2 or chance.random() < 0.6:
            faults.append(f"{chance.choice(step_faults)}@{chance.randrange(3, STEPS - 3)}:{rank}")
        else:
            kind, point = chance.choice(POINT_FAULTS), chance.choice(list(POINTS))
            faults.append(f"{kind}.{point}@{chance.randint(0 if point == 'send' else 1, 4)}:{rank}")
    return nodes, processes, spares, sorted(set(faults))


def situation_of(fault: str, sizes: list[int]) -> str:
    """Return a fault with what the processes did when it happened.

    Args:
        fault: the fault.
        sizes: the number of processes of each generation.
    """
    kind, _, place = fault.partition("@")
    name, _, point = kind.partition(".")
    if not point:
        return f"{name} at a step"
    generation = int(place.partition(":")[0])
    if generation == 0:
        return f"{name} during a {'snapshot' if point == 'send' else 'start'}"
    if generation >= len(sizes) or sizes[generation] == sizes[generation - 1]:
        return f"{name} during a recovery"
    return f"{name} during a {'shrink' if sizes[generation] < sizes[generation - 1] else 'grow'}"


def situations(outcome: Outcome, processes: int) -> list[str]:
    """Return the faults of a launch that have happened, each with what the processes did then."""
    continued = re.findall(r"(\d+) process(?:es continue| continues)", outcome.stderr)
    return [situation_of(fault, [processes, *map(int, continued)]) for fault in outcome.happened]


def judge(outcome: Outcome, processes: int) -> str:
    """Return how a launch has ended; a text that begins with WRONG if it should not end so."""
    expected = undisturbed(processes, STEPS)
    for step, losses in outcome.losses.items():
        (wanted,) = map(float.fromhex, expected[step])
        if not all(math.isclose(float.fromhex(loss), wanted, rel_tol=1e-4) for loss in losses):
            return f"WRONG: the losses of step {step} are {losses}, not {expected[step]}"
    if outcome.code:
        lost = next((reason for reason in LOST if reason in outcome.stderr), None)
        return f"ended: {lost}" if lost else f"WRONG: exit code {outcome.code}"
    if sorted(outcome.losses) != list(range(STEPS)):
        return "WRONG: steps are missing"
    if {count for count, _ in outcome.starts} != {processes}:
        return "recovered, with fewer processes for some time"
    if outcome.losses != expected:
        return "WRONG: the losses are not equal bit for bit"
    if outcome.compiled != [0] * processes and any(start for _, start in outcome.starts):
        return "WRONG: programs were compiled again"
    return "recovered, bit for bit"


class Campaign:
    """The launches of a campaign, in threads, and what has happened in them."""

    def __init__(self, options: argparse.Namespace):
        self.ends, self.happened = Counter[str](), Counter[str]()
        self._options = options
        self._lock, self._launches = Lock(), self._choose_launches()
        self._limit = time.monotonic() + 60 * options.minutes

    def _choose_launches(self) -> Iterator[Launch]:
        yield from SCRIPTED
        chance = random.Random(self._options.seed)
        while True:
            yield choose(chance)

    def run(self) -> None:
        """Launch programs until enough faults have happened, or the time is over."""
        for processes in (2, 3, 4):
            undisturbed(processes, STEPS)
        self._options.log.parent.mkdir(parents=True, exist_ok=True)
        with self._options.log.open("w") as log, ThreadPoolExecutor(self._options.jobs) as pool:
            for work in [pool.submit(self._work, log) for _ in range(self._options.jobs)]:
                work.result()

    def _work(self, log: TextIO) -> None:
        while True:
            with self._lock:
                if self.happened.total() >= self._options.faults or time.monotonic() > self._limit:
                    return
                launch = next(self._launches)
            record = self._launch(*launch)
            with self._lock:
                print(json.dumps(record), file=log, flush=True)

    def _launch(self, nodes: int, processes: int, spares: int, faults: list[str]) -> dict[str, object]:
        """Run a program to its end, and return what has happened."""
        start = time.monotonic()
        record: dict[str, object] = {"nodes": nodes, "processes": processes, "spares": spares, "faults": faults}
        try:
            outcome = run(
                *faults,
                processes=processes,
                spares=spares,
                fewest=1,
                steps=STEPS,
                pause=PAUSE,
                nodes=nodes,
                returning=range(1, nodes),
                time_limit=TIME_LIMIT,
            )
        except subprocess.TimeoutExpired as error:
            record |= {"end": f"WRONG: the launch has not ended in {TIME_LIMIT:.0f} s", "stdout": str(error.stdout)}
        except CheckpointError as error:
            record |= {"end": f"WRONG: the newest checkpoint on disk is not intact: {error}"}
        else:
            record |= {"end": judge(outcome, nodes * processes), "happened": situations(outcome, nodes * processes)}
            record |= {"starts": outcome.starts, "verified": outcome.verified}
            if str(record["end"]).startswith("WRONG"):
                record |= {"stdout": outcome.stdout, "stderr": outcome.stderr}
            with self._lock:
                self.happened.update(situations(outcome, nodes * processes))
        end = str(record["end"])
        with self._lock:
            self.ends[end.partition(": ")[0] if end.startswith("WRONG") else end] += 1
        return record | {"seconds": round(time.monotonic() - start, 1)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Launch programs with faults.")
    parser.add_argument("--faults", type=int, default=100, help="the number of faults that happen")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no launch after so many minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="the number of launches at the same time")
    parser.add_argument("--log", type=Path, default=ROOT / "build/recovery.log", help="the file of all launches")
    campaign = Campaign(parser.parse_args(arguments))
    campaign.run()
    print(f"{campaign.happened.total()} faults in {campaign.ends.total()} launches:")
    for text, count in (*campaign.ends.most_common(), *campaign.happened.most_common()):
        print(f"  {count:4} {text}")
    missing = [fault for fault in REQUIRED if fault not in campaign.happened]
    print(f"did not happen: {', '.join(missing) or 'none'}")
    return 1 if campaign.ends["WRONG"] or missing else 0


if __name__ == "__main__":
    sys.exit(main())
