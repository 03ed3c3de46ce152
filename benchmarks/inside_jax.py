"""Programs that stay on JAX: `inside_jax.jit` against `jax.jit`, on the same arrays.

"Ours" is JAX's executable of the program that Shardwise planned. An empty program shows what a call costs.

    python -m benchmarks.inside_jax                  # print the first table of docs/inside-jax.md
    python -m benchmarks.inside_jax --constraints    # print the second: with the plan's constraints
    python -m benchmarks.inside_jax --compile        # print compile times
"""

import argparse
import math
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np

from benchmarks import peer
from benchmarks.counts import counts
from benchmarks.measure import Effort, interleaved
from benchmarks.memory_patterns import WORKLOADS as MEMORY_WORKLOADS
from benchmarks.models_for_jax import WORKLOADS as MODELS
from benchmarks.pasted_constraints import paste_constraints
from benchmarks.patterns import WORKLOADS
from benchmarks.programs import LARGER_EVEN
from benchmarks.row import Case, Row
from benchmarks.transformer import KINDS, workload
from benchmarks.workload import Workload
from benchmarks.workloads import TRAINING, mlp
from shardwise import inside_jax
from shardwise.explain.hlo_wire import wire

if all(map(find_spec, ("equinox", "flax", "haiku", "optax"))):  # as in the environment of `make test-ecosystem`
    from benchmarks import jax_libraries
else:
    jax_libraries = None

LONG = 0.5  # the seconds from which on a compile time counts in the geometric mean
TOLERANCE = 0.05  # the relative difference of bytes from which on the table states the collectives that differ


def programs() -> list[Workload]:
    """Return the programs: those of the suite `workloads`, more models, and those of libraries that are installed."""
    models = [
        workload(f"LM {kind}{training}", model, parallel)
        for kind, parallel in KINDS.items()
        for training, model in TRAINING.items()
    ]
    libraries = jax_libraries.workloads() if jax_libraries is not None else []
    return [mlp("MLP Megatron", LARGER_EVEN), *models, *WORKLOADS, *MEMORY_WORKLOADS, *MODELS, *libraries]


def cases(quick: bool) -> list[Case]:
    efforts = None if quick else (Effort(3, 0.0), Effort(6, 0.1))
    selected = [work for work in programs() if not (quick and work.name.startswith("LM"))]
    empty = [] if quick else [Case("empty program", empty_rows)]
    return [*(Case(work.name, partial(rows, work, efforts)) for work in selected), *empty]


def compiled(jit: Callable[..., Any], function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Compile a Python function to a loaded executable of jaxlib, without caches of its traces."""
    return jit(peer.fresh(function)).lower(*args).compile().runtime_executable()


def rows(work: Workload, efforts: tuple[Effort, Effort] | None) -> list[Row]:
    """Return rows of counts, and of times if there are efforts for compiling and for running."""
    function, args = work.on(peer)
    sides = [inside_jax.jit, jax.jit]
    ours, theirs = (counts(compiled(jit, function, args)) for jit in sides)
    count_rows = [
        Row(f"{work.name}: wire bytes", "bytes", ours.wire.sent, theirs.wire.sent, 1.0),
        Row(f"{work.name}: temp memory", "bytes", ours.temp_bytes, theirs.temp_bytes, None),
        Row(f"{work.name}: flops", "flops", ours.flops, theirs.flops, None),
    ]
    if efforts is None:
        return count_rows
    compiling, running = efforts
    compiles = [partial(compiled, jit, function, args) for jit in sides]
    steps = [partial(_step, jit(function), args) for jit in sides]
    return [
        *count_rows,
        Row.timed(f"{work.name}: compile time", interleaved(*compiles, compiling), 1.3),
        Row.timed(f"{work.name}: step time", interleaved(*steps, running), 1.02),
    ]


def empty_rows() -> list[Row]:
    """Return the time of a call of a program that returns its argument plus one, on eight devices."""
    mesh = peer.mesh((8,), ("rows",))
    x = peer.put(np.ones(8, np.float32), mesh, ("rows",))
    calls = [partial(jit(lambda x: x + 1), x) for jit in (inside_jax.jit, jax.jit)]
    return [Row.timed("empty program: call time", interleaved(*calls, Effort(6, 0.2), None, peer.wait), None)]


def _step(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    peer.wait(function(*args))


def table_rows() -> Iterator[str]:
    """Yield the table of docs/inside-jax.md, and the geometric mean over programs that communicate."""
    yield "| program | `jax.jit` | `inside_jax.jit` | ratio |"
    yield "|---|---|---|---|"
    ratios = []
    for work in programs():
        function, args = work.on(peer)
        executables = [jit(function).lower(*args).compile() for jit in (inside_jax.jit, jax.jit)]
        ours, theirs = (wire(each.as_text()).sent for each in executables)
        for mine, other in zip(*(jax.tree.leaves(each(*args)) for each in executables), strict=True):
            np.testing.assert_allclose(mine, other, rtol=2e-2, atol=2e-3, err_msg=work.name)
        if ours and theirs:
            ratios.append(ours / theirs)
        ratio = f"{ours / theirs:.2f}" if theirs else ""
        yield f"| {work.name} | {theirs:,.0f} | {ours:,.0f} | {ratio} |"
    yield f"| geometric mean of {len(ratios)} | | | {_mean(ratios):.2f} |"


def compile_rows() -> Iterator[str]:
    """Yield a table of the times from a Python function to an executable, and the geometric mean of the long ones."""
    yield "| program | `jax.jit` | `inside_jax.jit` | ratio |"
    yield "|---|---|---|---|"
    ratios = []
    for work in programs():
        function, args = work.on(peer)
        compiles = [partial(compiled, jit, function, args) for jit in (inside_jax.jit, jax.jit)]
        timing = interleaved(*compiles, Effort(3, 0.0))
        ratio = timing.ours / timing.peer
        if max(timing.ours, timing.peer) >= LONG:
            ratios.append(ratio)
        yield f"| {work.name} | {timing.peer:.2f} s | {timing.ours:.2f} s | {ratio:.2f} |"
    yield f"| geometric mean of {len(ratios)} from {LONG} s on | | | {_mean(ratios):.2f} |"


def _mean(ratios: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def constraint_rows() -> Iterator[str]:
    """Yield the table of the bytes that `jax.jit` sends with the constraints of the plan in the source."""
    yield "| program | planned | lines | `jax.jit` with the lines | ratio | difference by collective |"
    yield "|---|---|---|---|---|---|"
    notes = []
    for work in programs():
        pasted = paste_constraints(work)
        planned, sent = pasted.plan.wire_bytes, pasted.wire.sent
        ratio = f"{sent / planned:.2f}" if planned else ""
        difference = pasted.difference() if abs(sent - planned) > TOLERANCE * planned else ""
        yield f"| {work.name} | {planned:,.0f} | {len(pasted.applied)} | {sent:,.0f} | {ratio} | {difference} |"
        notes += [f"{work.name}: JAX rejects `{each}`: {error}" for each, error in pasted.rejected]
        notes += [f"{work.name}: `{each}` is in a library, and was not pasted" for each in pasted.outside]
    if notes:
        yield ""
        yield from notes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inside_jax")
    tables = parser.add_mutually_exclusive_group()
    tables.set_defaults(rows=table_rows)
    for option, rows_of, text in (
        ("--constraints", constraint_rows, "print the table of pasted constraints"),
        ("--compile", compile_rows, "print the table of compile times"),
    ):
        tables.add_argument(option, dest="rows", action="store_const", const=rows_of, help=text)
    for line in parser.parse_args().rows():
        print(line, flush=True)
