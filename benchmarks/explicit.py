"""Explicit axes: what types cost. A training step with shardings in types, compared with Auto axes and with JAX's.

The step is that of an unrolled transformer with Adam, data × tensor parallel on a 4×2 mesh. `out_sharding` decides the
sums over the tensor axis and the lookup of embeddings; all other types follow.
"""

from collections.abc import Callable
from functools import partial
from time import process_time
from typing import Any

from benchmarks import ours, peer
from benchmarks.calls import TREE, VALUE
from benchmarks.counts import counts
from benchmarks.measure import Effort, interleaved
from benchmarks.programs import Side
from benchmarks.row import Case, Row
from benchmarks.transformer import KINDS, Model, arguments, training_step
from benchmarks.workload import no_pin

LAYERS = 12
TRACE_BAR = 1.15  # explicit relative to Auto
CALL_BAR = 1.15


def cases(quick: bool) -> list[Case]:
    model = Model(1 if quick else LAYERS)
    tracing = Effort(rounds=1 if quick else 9, seconds=0.0)
    calling = Effort(rounds=2, seconds=0.01) if quick else Effort(rounds=15, seconds=0.1)
    name = f"transformer, layers: {model.layers}"
    return [
        Case(f"{name}, trace", partial(trace_rows, name, model, tracing)),
        Case(f"{name}, counts", partial(count_rows, name, model)),
        Case("call", partial(call_rows, calling)),
    ]


def trace_rows(name: str, model: Model, effort: Effort) -> list[Row]:
    """Compare the CPU time to trace explicit types with JAX's, and with ours for Auto axes."""
    explicit = tracing(ours, model, explicit=True)
    beside_peer = interleaved(explicit, tracing(peer, model, explicit=True), effort, clock=process_time)
    beside_auto = interleaved(explicit, tracing(ours, model, explicit=False), effort, clock=process_time)
    return [
        Row.timed(f"{name}: trace, explicit", beside_peer, 1.0),
        Row.timed(f"{name}: trace, explicit / Auto", beside_auto, TRACE_BAR),
    ]


def count_rows(name: str, model: Model) -> list[Row]:
    """Compare what the compiled step sends and computes with JAX's."""
    sides = []
    for side in (ours, peer):
        mesh, step, args = setup(side, model, explicit=True)
        with side.library.set_mesh(mesh):
            sides.append(counts(side.compiled(step, args)))
    here, there = sides
    return [
        Row(f"{name}: wire bytes", "bytes", here.wire.sent, there.wire.sent, 1.0),
        Row(f"{name}: flops", "flops", here.flops, there.flops, 1.0),
    ]


def call_rows(effort: Effort) -> list[Row]:
    """Compare the host time of one call of a tree of arrays, until its results are ready."""
    name = f"jit call, pytree of {TREE}, 8 devices"
    beside_peer = interleaved(calling(ours, explicit=True), calling(peer, explicit=True), effort)
    beside_auto = interleaved(calling(ours, explicit=True), calling(ours, explicit=False), effort)
    return [
        Row.timed(f"{name}, explicit", beside_peer, CALL_BAR),
        Row.timed(f"{name}, explicit / Auto", beside_auto, CALL_BAR),
    ]


def tracing(side: Side, model: Model, explicit: bool) -> Callable[[], Any]:
    """Return a call that traces the step as a new function, so that caches of functions miss."""
    mesh, step, args = setup(side, model, explicit)
    library = side.library

    def trace() -> Any:
        def program(*args: Any) -> Any:
            return step(*args)

        with library.set_mesh(mesh):
            return library.jit(program).trace(*args)

    return trace


def calling(side: Side, explicit: bool) -> Callable[[], Any]:
    """Return a call of a compiled function of many small arrays."""
    mesh = side.mesh((8,), ("x",), explicit=explicit)
    tree = {f"x{index:03}": side.put(VALUE, mesh, ("x",)) for index in range(TREE)}
    call, wait = side.library.jit(lambda tree: {key: x + 1 for key, x in tree.items()}), side.wait
    return lambda: wait(call(tree))


def setup(side: Side, model: Model, explicit: bool) -> tuple[Any, Callable[..., Any], tuple[Any, ...]]:
    """Return the mesh, the step and its arguments."""
    parallel = KINDS["data × tensor"]
    mesh = side.mesh(*parallel.mesh, explicit=explicit)
    step = training_step(side.library, model, parallel, no_pin, explicit)
    return mesh, step, arguments(model, parallel, lambda value, *spec: side.put(value, mesh, spec))
