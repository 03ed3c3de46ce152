"""Startup time: each sample is a new process with one of the two libraries."""

from functools import partial

from benchmarks.measure import in_processes
from benchmarks.row import Case, Row

IMPORT = """
from time import process_time
start = process_time()
import {library}
print(process_time() - start)
"""

FIRST_RESULT = """
from time import perf_counter
start = perf_counter()
import {library} as library
library.config.update("{prefix}num_cpu_devices", 8)
library.jit(lambda x: x + 1)(library.numpy.ones(8)).block_until_ready()
print(perf_counter() - start)
"""


def cases(quick: bool) -> list[Case]:
    table: list[tuple[str, str, float | None]] = [
        ("import, CPU time", IMPORT, 0.5),
        ("import to first result of a jit call", FIRST_RESULT, None),
    ]
    return [Case(name, partial(rows, name, script, 1 if quick else 9, bar)) for name, script, bar in table]


def rows(name: str, script: str, rounds: int, bar: float | None) -> list[Row]:
    mine, theirs = script.format(library="shardwise", prefix=""), script.format(library="jax", prefix="jax_")
    return [Row.timed(name, in_processes(mine, theirs, rounds), bar)]
