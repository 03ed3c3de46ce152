"""From a Python function to something that runs. Every sample compiles a function that no cache has seen."""

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import ours, peer
from benchmarks.measure import Effort, interleaved
from benchmarks.programs import DEMO, TWELVE_LAYERS, Sizes, on_mesh, on_one_device
from benchmarks.row import Case, Row


def cases(quick: bool) -> list[Case]:
    effort = Effort(rounds=1 if quick else 7, seconds=0.0)
    programs = {"demo step": DEMO} if quick else {"demo step": DEMO, "12 layers": TWELVE_LAYERS}
    places = {"1 device": on_one_device, "8 devices": on_mesh}
    return [
        Case(f"{program}, {place}", partial(rows, f"{program}, {place}", placed, sizes, effort))
        for program, sizes in programs.items()
        for place, placed in places.items()
    ]


def rows(name: str, placed: Callable[..., Any], sizes: Sizes, effort: Effort) -> list[Row]:
    mine, theirs = placed(ours, sizes), placed(peer, sizes)
    lower = interleaved(lambda: ours.lowered(*mine), lambda: peer.lowered(*theirs), effort)
    whole = interleaved(lambda: ours.compiled(*mine), lambda: peer.compiled(*theirs), effort)
    return [Row.timed(f"{name}: trace + lower", lower), Row.timed(f"{name}: whole compile", whole, 1.0)]
