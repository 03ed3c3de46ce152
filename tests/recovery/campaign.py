"""Launches with random faults, by seeds: python -m tests.recovery.campaign [--faults 100] [--seed 0] [--log FILE]

Each launch has two to four processes, up to two spares, and two to eight faults of all kinds: at the beginning of a
step, while a snapshot is sent, while processes join a generation, or while they restore. A launch is right if it ends
with the losses of a run without faults: bit for bit if the number of processes did not change, within rounding
otherwise. It is right too if it ends with an error that says what was lost. The exit code is 0 if all launches are
right.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.recovery.launches import ROOT, Outcome, run, undisturbed
from tests.recovery.training import POINTS

STEPS, PAUSE = 60, 0.2
STEP_FAULTS = ("kill", "kill", "stop", "raise", "coordinator", "drop", "gloo", "disk")
POINT_FAULTS = ("kill", "kill", "stop", "drop")
LOST = (
    "CheckpointNotFound: no snapshot is complete",
    "no process is left that has a snapshot",
    "no other process is left",
)


def choose(chance: random.Random) -> tuple[int, int, list[str]]:
    """Return the number of processes, the number of spares, and the faults of a launch."""
    processes, spares = chance.randint(2, 4), chance.randint(0, 2)
    faults = []
    for index in range(chance.randint(2, 8)):
        rank = chance.randrange(processes)
        if index < 2 or chance.random() < 0.6:
            faults.append(f"{chance.choice(STEP_FAULTS)}@{chance.randrange(3, STEPS - 3)}:{rank}")
        else:
            kind, point = chance.choice(POINT_FAULTS), chance.choice(list(POINTS))
            faults.append(f"{kind}.{point}@{0 if point == 'send' else chance.randint(1, 4)}:{rank}")
    return processes, spares, sorted(set(faults))


def judge(outcome: Outcome, processes: int) -> str:
    """Return how a launch has ended; a text that begins with WRONG if it should not end so."""
    expected = undisturbed(processes, STEPS)
    for step, losses in outcome.losses.items():
        (wanted,) = map(float.fromhex, expected[step])
        if [float.fromhex(loss) for loss in losses] != pytest.approx([wanted] * len(losses), rel=1e-4):
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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Launch programs with random faults.")
    parser.add_argument("--faults", type=int, default=100, help="the number of faults that happen")
    parser.add_argument("--minutes", type=float, default=1e9, help="the most minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, default=ROOT / "build/recovery.log", help="the file of all launches")
    options = parser.parse_args(arguments)
    chance = random.Random(options.seed)
    options.log.parent.mkdir(parents=True, exist_ok=True)
    ends, happened = Counter[str](), 0
    limit = time.monotonic() + 60 * options.minutes
    with options.log.open("w") as log:
        while happened < options.faults and time.monotonic() < limit:
            processes, spares, faults = choose(chance)
            start = time.monotonic()
            outcome = run(*faults, processes=processes, spares=spares, fewest=1, steps=STEPS, pause=PAUSE)
            end = judge(outcome, processes)
            ends[end.partition(": ")[0] if end.startswith("WRONG") else end] += 1
            happened += len(outcome.happened)
            record = {
                "processes": processes,
                "spares": spares,
                "faults": faults,
                "happened": outcome.happened,
                "end": end,
            }
            record |= {"seconds": round(time.monotonic() - start, 1), "starts": outcome.starts}
            if end.startswith("WRONG"):
                record |= {"stdout": outcome.stdout, "stderr": outcome.stderr}
            print(json.dumps(record), file=log, flush=True)
    print(f"{happened} faults in {ends.total()} launches: {dict(ends)}")
    return 1 if ends["WRONG"] else 0


if __name__ == "__main__":
    sys.exit(main())
