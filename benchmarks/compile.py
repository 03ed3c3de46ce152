"""From a Python function to something that runs. Every sample compiles a function that no cache has seen."""

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import ours, peer, transformer
from benchmarks.measure import Effort, interleaved
from benchmarks.programs import EXAMPLE, TWELVE_LAYERS, Sizes, on_mesh, on_one_device
from benchmarks.row import Case, Row

LAYERS = (12, 48)


def cases(quick: bool) -> list[Case]:
    effort = Effort(rounds=1 if quick else 7, seconds=0.0)
    programs = {"example step": EXAMPLE} if quick else {"example step": EXAMPLE, "12 layers": TWELVE_LAYERS}
    places = {"1 device": on_one_device, "8 devices": on_mesh}
    mlps = [
        Case(f"{program}, {place}", partial(rows, f"{program}, {place}", placed, sizes, effort))
        for program, sizes in programs.items()
        for place, placed in places.items()
    ]
    few = Effort(rounds=1 if quick else 4, seconds=0.0)
    layers = (2,) if quick else LAYERS
    transformers = [
        Case(f"transformer, {place}", partial(transformer_rows, place, placed, bar, layers, few))
        for place, placed, bar in (
            ("1 device", transformer.on_one_device, 1.0),
            ("8 devices", transformer.on_mesh, None),
        )
    ]
    return [*mlps, *transformers]


def rows(name: str, placed: Callable[..., Any], sizes: Sizes, effort: Effort) -> list[Row]:
    mine, theirs = placed(ours, sizes), placed(peer, sizes)
    lower = interleaved(lambda: ours.lowered(*mine), lambda: peer.lowered(*theirs), effort)
    whole = interleaved(lambda: ours.compiled(*mine), lambda: peer.compiled(*theirs), effort)
    return [Row.timed(f"{name}: trace + lower", lower), Row.timed(f"{name}: whole compile", whole, 1.0)]


def transformer_rows(
    place: str, placed: Callable[..., Any], bar: float | None, layers: tuple[int, ...], effort: Effort
) -> list[Row]:
    """Tracing and lowering, layer after layer: for each number of layers, and how it grows from the first to the last.

    Linear growth is 1: the time for each layer, in the longest model and in the shortest.
    """
    found, times = [], []
    for count in layers:
        mine, theirs = (placed(side, transformer.Model(count)) for side in (ours, peer))
        timing = interleaved(partial(ours.lowered, *mine), partial(peer.lowered, *theirs), effort)
        times.append((count, timing))
        found.append(Row.timed(f"transformer of {count} layers, {place}: trace + lower", timing, bar))
    (few, first), (many, last) = times[0], times[-1]
    if many > few:
        name = f"transformer, {place}: trace + lower of a layer, of {many} to of {few}"
        found.append(Row(name, "growth", last.ours / many / (first.ours / few), last.peer / many / (first.peer / few)))
    return found
