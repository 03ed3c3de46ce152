"""The same Flax code on Shardwise and on JAX: each library has a process of its own, and these take turns."""

from functools import partial

from benchmarks.measure import Timing, alternate
from benchmarks.row import Case, Row, Unit
from benchmarks.worker import Worker, workers

COMMANDS = (("-m", "shardwise", "run", "benchmarks/flax_worker.py"), ("benchmarks/flax_worker.py",))
# Counts with their units and bars.
COUNTS: dict[str, tuple[Unit, float | None]] = {
    "wire bytes": ("bytes", 1.0),
    "collectives": ("collectives", None),
    "temp memory": ("bytes", 1.0),
    "argument memory": ("bytes", 1.0),
    "flops": ("flops", 1.0),
}
CALLS = {
    "nnx.jit call, Linear(2, 2), 1 device": "call",
    "nnx.jit call, update of a tiny transformer, 1 device": "update",
}
KINDS = ("data parallel", "FSDP", "tensor parallel", "FSDP × tensor")


def cases(quick: bool) -> list[Case]:
    rounds, step_calls, calls = (1, 1, 1) if quick else (9, 3, 200)
    return [
        *[Case(f"NNX {kind}", partial(step_rows, kind, rounds, step_calls)) for kind in KINDS],
        *[Case(name, partial(call_rows, name, case, rounds, calls)) for name, case in CALLS.items()],
    ]


def step_rows(kind: str, rounds: int, calls: int) -> list[Row]:
    with workers(*COMMANDS) as (ours, peer):
        mine, theirs = ours.ask(case=kind), peer.ask(case=kind)
        time = _times(ours, peer, kind, rounds, calls)
    return [
        *[Row(f"NNX {kind}: {name}", unit, mine[name], theirs[name], bar) for name, (unit, bar) in COUNTS.items()],
        Row.timed(f"NNX {kind}: step time", time, 1.0),
    ]


def call_rows(name: str, case: str, rounds: int, calls: int) -> list[Row]:
    with workers(*COMMANDS) as (ours, peer):
        return [Row.timed(name, _times(ours, peer, case, rounds, calls), 1.0)]


def _times(ours: Worker, peer: Worker, case: str, rounds: int, calls: int) -> Timing:
    sides = [partial(worker.ask, case=case, calls=calls) for worker in (ours, peer)]
    for side in sides:  # compiles
        side()
    return alternate(sides, rounds)
