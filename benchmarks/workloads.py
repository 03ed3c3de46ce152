"""Training steps and patterns on eight devices, compared with JAX and with JAX plus constraints by experts."""

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import ours, peer
from benchmarks.counts import counts
from benchmarks.measure import Effort, interleaved
from benchmarks.memory_patterns import WORKLOADS as MEMORY_WORKLOADS
from benchmarks.patterns import WORKLOADS
from benchmarks.programs import LARGER_EVEN, MESH, ROWS, Sizes, training_step
from benchmarks.row import Case, Row
from benchmarks.transformer import KINDS, Model, workload
from benchmarks.workload import Pin, Put, Workload

LANGUAGE_MODEL = Model(layers=4, batch=32, length=128, width=256, heads=8, hidden=1024, words=1024)
TRAINING = {
    "": LANGUAGE_MODEL.with_training("sgd"),
    ", Adam": LANGUAGE_MODEL.with_training("adam"),
    ", scan": LANGUAGE_MODEL.with_training("sgd", scanned=True),
    ", Adam, scan": LANGUAGE_MODEL.with_training("adam", scanned=True),
}
UNTIMED = (", Adam", ", scan")  # the other two cover both


def cases(quick: bool) -> list[Case]:
    efforts = (Effort(1, 0.0), Effort(1, 0.0)) if quick else (Effort(3, 0.0), Effort(6, 0.1))
    models = [
        (workload(f"LM {kind}{training}", model, parallel), not quick and training not in UNTIMED)
        for kind, parallel in KINDS.items()
        for training, model in TRAINING.items()
        if not (quick and training)
    ]
    selected = [
        (mlp("MLP Megatron", LARGER_EVEN), True),
        *models,
        *((each, True) for each in WORKLOADS),
        *((each, False) for each in MEMORY_WORKLOADS),
    ]
    return [Case(each.name, partial(rows, each, efforts if timed else None)) for each, timed in selected]


def mlp(name: str, sizes: Sizes) -> Workload:
    def arguments(put: Put) -> tuple[Any, ...]:
        layers, x, y = sizes.arguments()
        sharded_layers = [
            {key: put(value, *layout[key]) for key, value in layer.items()}
            for layer, layout in zip(layers, sizes.layouts(), strict=True)
        ]
        return sharded_layers, put(x, *ROWS), put(y, *ROWS)

    def program(library: Any, pin: Pin) -> Any:
        return training_step(library, lambda rows: pin(rows, *ROWS))

    return Workload(name, MESH, program, arguments)


def rows(work: Workload, efforts: tuple[Effort, Effort] | None) -> list[Row]:
    """Return rows of counts, and of times if there are efforts for compiling and for running."""
    variants = [(ours, False), (peer, False), *([(peer, True)] if work.pins == "experts" else [])]
    sides = [(side, *work.on(side, expert)) for side, expert in variants]
    counts_of_sides = [counts(side.compiled(function, args)) for side, function, args in sides]

    def row(name: str, unit: Any, values: list[float], bar: float | None, expert_bar: float | None = None) -> Row:
        expert = values[2] if len(values) > 2 else None
        return Row(f"{work.name}: {name}", unit, values[0], values[1], bar, None, expert, expert_bar)

    count_rows = [
        row("wire bytes", "bytes", [each.wire.sent for each in counts_of_sides], 1.0, 1.0),
        row("collectives", "collectives", [each.wire.count for each in counts_of_sides], None),
        row("temp memory", "bytes", [each.temp_bytes for each in counts_of_sides], 1.0),
        row("flops", "flops", [each.flops for each in counts_of_sides], 1.0 if counts_of_sides[1].flops else None),
    ]
    if efforts is None:
        return count_rows
    compiling, running = efforts
    compiles = [partial(side.compiled, function, args) for side, function, args in sides]
    calls = [partial(side.library.jit(function), *args) for side, function, args in sides]
    steps = [partial(_step, side.wait, call) for (side, _, _), call in zip(sides, calls, strict=True)]
    return [
        *count_rows,
        _timed(f"{work.name}: compile time", compiles, compiling, 1.0),
        _timed(f"{work.name}: step time", steps, running, 1.0),
        _timed(f"{work.name}: call time", calls, running, 1.15, _wait),
    ]


def _timed(
    name: str, sides: list[Callable[[], Any]], effort: Effort, bar: float, after: Callable[[Any], Any] | None = None
) -> Row:
    our_call, peer_call, *experts = sides
    return Row.timed(name, interleaved(our_call, peer_call, effort, experts[0] if experts else None, after), bar)


def _step(wait: Callable[[Any], Any], call: Callable[[], Any]) -> None:
    wait(call())


def _wait(tree: Any) -> None:
    """Wait for the arrays of either library."""
    for array in ours.library.tree.leaves(tree):
        array.block_until_ready()
