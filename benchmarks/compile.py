"""Compile time, from a Python function to an executable. Every sample compiles a new function, so caches miss."""

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
    setups = {"1 device": on_one_device, "8 devices": on_mesh}
    mlps = [
        Case(f"{program}, {devices}", partial(rows, f"{program}, {devices}", setup, sizes, effort))
        for program, sizes in programs.items()
        for devices, setup in setups.items()
    ]
    fewer_rounds = Effort(rounds=1 if quick else 4, seconds=0.0)
    layers = (2,) if quick else LAYERS
    transformers = [
        Case(f"transformer, {devices}", partial(transformer_rows, devices, setup, bar, layers, fewer_rounds))
        for devices, setup, bar in (
            ("1 device", transformer.on_one_device, 1.0),
            ("8 devices", transformer.on_mesh, None),
        )
    ]
    return [*mlps, *transformers]


def rows(name: str, setup: Callable[..., Any], sizes: Sizes, effort: Effort) -> list[Row]:
    our_args, peer_args = setup(ours, sizes), setup(peer, sizes)
    lower = interleaved(lambda: ours.lowered(*our_args), lambda: peer.lowered(*peer_args), effort)
    total = interleaved(lambda: ours.compiled(*our_args), lambda: peer.compiled(*peer_args), effort)
    return [Row.timed(f"{name}: trace + lower", lower), Row.timed(f"{name}: compile", total, 1.0)]


def transformer_rows(
    devices: str, setup: Callable[..., Any], bar: float | None, layers: tuple[int, ...], effort: Effort
) -> list[Row]:
    """Time tracing and lowering of unrolled models with different numbers of layers, and how the time grows.

    The growth is the time per layer in the longest model, relative to the shortest. Linear growth is 1.
    """
    rows_of_sizes, times = [], []
    for count in layers:
        our_args, peer_args = (setup(side, transformer.Model(count)) for side in (ours, peer))
        timing = interleaved(partial(ours.lowered, *our_args), partial(peer.lowered, *peer_args), effort)
        times.append((count, timing))
        rows_of_sizes.append(Row.timed(f"transformer of {count} layers, {devices}: trace + lower", timing, bar))
    (short, first), (long, last) = times[0], times[-1]
    if long > short:
        name = f"transformer, {devices}: trace + lower per layer, {long} layers / {short} layers"
        rows_of_sizes.append(
            Row(name, "growth", last.ours / long / (first.ours / short), last.peer / long / (first.peer / short))
        )
    return rows_of_sizes
