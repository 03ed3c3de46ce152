"""Read many mutated modules, and count the outcomes by class.

    python -m tests.stablehlo.mutate 10000 --seed 0

Each module must be a typed error, or compute what XLA computes for it. Workers are processes with a memory limit and a
watchdog. A crash or hang of MLIR must be a typed error with `isolated=True`. A case that crashes after MLIR's parser
has corrupted the heap of its worker runs again. A seed determines its case in one checkout: locations in bytecode have
its path.
"""

import argparse
import io
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

import shardwise as sw
from shardwise import errors
from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.stablehlo import load
from shardwise.stablehlo import parse as parser
from tests.stablehlo.mutations import mutate_bytes, mutate_text
from tests.stablehlo.programs import PROGRAMS
from tests.stablehlo.xla import run_module

# Small programs that compile in a fraction of a second.
NAMES = (
    *("elementwise", "rounding", "integers", "conversions", "complex", "shapes", "constants", "reductions", "softmax"),
    *("arg_extrema", "cumulative", "windows", "pool_gradient", "dots", "mixed_dot", "convolution", "indexing"),
    *(
        "dynamic_slices",
        "sorting",
        "scan",
        "reverse_scan",
        "nested_scan",
        "fori_loop",
        "cond",
        "fft",
        "reduce_precision",
    ),
    *("triangular_solve", "composite", "mlp_step"),
)
TYPED = tuple(getattr(errors, name) for name in errors.__all__)
PASSED = (
    "typed error",
    "equal results",
    "XLA rejects it too",
    "too large to run",
    "endless loop",
    "MLIR crashes or hangs, a typed error if isolated",
)
SECONDS = 60.0
ADDRESS_SPACE = 12 << 30
MAX_SIZE = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case: its seed, the name of the program, what happened, and the error."""

    seed: int
    name: str
    kind: str
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.kind in PASSED


def corpus() -> dict[str, tuple[str, bytes, bytes]]:
    """Return the module of each program: text, MLIR bytecode, and a portable artifact."""
    modules = {}
    for name in NAMES:
        function, arguments = PROGRAMS[name]
        lowered = jax.jit(function, keep_unused=True).lower(*arguments)
        bytecode = io.BytesIO()
        lowered.compiler_ir().operation.write_bytecode(bytecode)
        artifact = export.export(jax.jit(function, keep_unused=True))(*arguments).mlir_module_serialized
        modules[name] = lowered.as_text(), bytecode.getvalue(), bytes(artifact)
    return modules


def mutated(seed: int, modules: dict[str, tuple[str, bytes, bytes]]) -> tuple[str, str | bytes]:
    """Return the name of the program of a case, and its mutated module."""
    rng = random.Random(seed)
    name = rng.choice(NAMES)
    text, *binary = modules[name]
    if rng.random() < 0.75:
        return name, mutate_text(rng, text)
    return name, mutate_bytes(rng, rng.choice(binary))


def run_cases(seeds: range) -> Iterator[Outcome]:
    """Run cases one after the other. A worker that crashes or hangs is replaced."""
    modules, worker = corpus(), _Worker()
    try:
        for seed in seeds:
            name, module = mutated(seed, modules)
            worker = _Worker() if worker.ended else worker
            answer = worker.run(seed, module)
            if answer[0] == "crash" and _heap_was_corrupted(worker.rejected):
                worker = _Worker()
                answer = worker.run(seed, module)
            yield Outcome(seed, name, *answer)
    finally:
        worker.end()


def _classify_end(kind: str, phase: str, module: str | bytes) -> tuple[str, str]:
    """Return the outcome of a case whose worker crashed or hangs in a phase."""
    if phase == "parse":
        parser.ISOLATED_SECONDS = SECONDS
        try:
            load(module, isolated=True)
        except TYPED:
            return "MLIR crashes or hangs, a typed error if isolated", ""
    if kind == "hang" and phase == "run":
        return "endless loop", ""
    return ("XLA rejects it too", phase) if phase == "oracle" else (kind, phase)


def _heap_was_corrupted(rejected: dict[int, bytes]) -> bool:
    """Return whether MLIR's parser corrupts the heap on bytecode that a worker rejected, so that a later case crashes.

    Each is parsed again, the last one first, by a process in which glibc checks its heap.
    """
    checks = {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3"}
    command = [sys.executable, "-c", parser.ISOLATED_PROGRAM]
    for seed, module in reversed(rejected.items()):
        child = subprocess.run(command, input=module, capture_output=True, check=False, env={**os.environ, **checks})
        if child.returncode < 0:
            print(f"{seed}: MLIR's parser corrupts the heap of its process", file=sys.stderr, flush=True)
            return True
    return False


class _Worker:
    """A process that runs cases.

    Attributes:
        rejected: the bytecode of cases that ended with a typed error, by their seeds.
        ended: whether the process was ended.
    """

    def __init__(self) -> None:
        self.rejected: dict[int, bytes] = {}
        self.ended = False
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def run(self, seed: int, module: str | bytes) -> tuple[str, str]:
        """Return the outcome and the error of a case. If the process crashes or hangs, it is ended."""
        kind, detail = self._answer(seed, module)
        if kind in ("crash", "hang"):
            self.end()
            return _classify_end(kind, detail, module)
        if kind == "typed error" and isinstance(module, bytes):
            self.rejected[seed] = module
        return kind, detail

    def _answer(self, seed: int, module: str | bytes) -> tuple[str, str]:
        """Return the answer of the process to a case; "crash" or "hang", and the phase, if it has none."""
        phase = "start"
        try:
            self._connection.send((seed, module))
            while self._connection.poll(SECONDS):
                kind, detail = self._connection.recv()
                if kind != "phase":
                    return kind, detail
                phase = detail
        except (EOFError, OSError):
            return "crash", phase
        return "hang", phase

    def end(self) -> None:
        self.ended = True
        self._process.kill()
        self._process.join(30)


def _serve(connection: Any) -> None:
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    sw.config.update("jax_enable_x64", True)  # mutated arguments may have 64 bits
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while True:
        seed, module = connection.recv()
        try:
            answer = _run_case(seed, module, lambda phase: connection.send(("phase", phase)))
        except TYPED as error:
            answer = "typed error", f"{type(error).__name__}: {error}"
        except BaseException as error:
            answer = "untyped error", "".join(traceback.format_exception(error))
        connection.send(answer)


def _run_case(seed: int, module: str | bytes, enter: Any) -> tuple[str, str]:
    enter("parse")
    function = load(module)
    enter("trace")
    structs = [sw.ShapeDtypeStruct(type.shape, type.dtype) for type in function.in_types]
    if _largest(sw.jit(function).trace(*structs).program) > MAX_SIZE:
        return "too large to run", ""
    arguments = [_elements(np.random.default_rng(seed), type) for type in function.in_types]
    enter("run")
    results = function(*arguments)
    ours = [np.asarray(x) for x in (results if isinstance(results, tuple) else (results,))]
    enter("oracle")
    try:
        theirs = run_module(str(parser.parse(module).raw), arguments, function.out_types)
    except Exception as error:  # jaxlib's errors have no common class
        return "XLA rejects it too", str(error)
    differences = [_difference(*pair) for pair in zip(ours, theirs, strict=True)]
    different = [text for text in differences if text]
    return ("wrong results", "\n".join(different)) if different else ("equal results", "")


def _largest(program: Program) -> int:
    """Return the size of the largest array of a program."""
    values = [*program.inputs, *(value for equation in program.equations for value in equation.outputs)]
    inner = [_largest(inside) for equation in program.equations for inside in equation.op.programs]
    return max((*(value.type.size for value in values), *inner), default=0)


def _elements(rng: np.random.Generator, type: ArrayType) -> Any:
    if type.dtype == np.bool_:
        return rng.random(type.shape) < 0.5
    if is_float(type.dtype) or type.dtype.kind == "c":
        return rng.normal(size=type.shape).astype(np.float32).astype(type.dtype)
    low = 0 if type.dtype.kind == "u" else -4
    return rng.integers(low, 4, type.shape).astype(type.dtype)


def _difference(ours: Any, theirs: Any) -> str:
    """Return what differs; empty if the arrays are equal up to rounding."""
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return f"{ours.dtype}{ours.shape} instead of {theirs.dtype}{theirs.shape}"
    if ours.dtype.kind == "c" or is_float(ours.dtype):
        wide = np.complex128 if ours.dtype.kind == "c" else np.float64
        rounding = 1e-3 if ours.dtype.itemsize >= 4 else 0.1
        if np.allclose(ours.astype(wide), theirs.astype(wide), rounding, rounding, equal_nan=True):
            return ""
    elif np.array_equal(ours, theirs):
        return ""
    return f"{ours!r} instead of {theirs!r}"


def main(arguments: list[str] | None = None) -> int:
    command_line = argparse.ArgumentParser(prog="python -m tests.stablehlo.mutate", description=__doc__)
    command_line.add_argument("count", type=int, nargs="?", default=1000, help="the number of modules")
    command_line.add_argument("--seed", type=int, default=0, help="the first case")
    options = command_line.parse_args(arguments)
    outcomes = []
    for outcome in run_cases(range(options.seed, options.seed + options.count)):
        outcomes.append(outcome)
        if not outcome.passed:
            print(f"{outcome.seed} {outcome.name}: {outcome.kind}\n{outcome.detail[-3000:]}", flush=True)
    for kind, count in Counter(outcome.kind for outcome in outcomes).most_common():
        print(f"{kind}: {count}")
    failures = [outcome.seed for outcome in outcomes if not outcome.passed]
    print(f"{len(outcomes)} modules from seed {options.seed}: {len(failures)} failed {failures[:20] or ''}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
