"""Times of kernels in Pallas on a GPU, of Shardwise beside JAX, in one run.

    python -m benchmarks.pallas_times [--small] [--rounds 2]

Both libraries compile the same kernels with the same blocks, warps and stages (`benchmarks/pallas_kernels.py`), each in
a process of its own, in turns. A function applies a kernel ten times, each time to the result before. `--small` runs
small arrays, to try the program: kernels are interpreted without a GPU.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

import benchmarks.pallas_kernels as kernels

CHAIN = 10  # kernels in a function
LIBRARIES = ("shardwise", "jax")


@final
class Case(NamedTuple):
    """A kernel and its operands, of which the first one is replaced by the result.

    Attributes:
        name: its name.
        function: the kernel.
        shapes: the shape of each operand.
        dtype: the dtype of the operands.
        work: the flops of a call in units of 1e12, or the bytes that it must read and write.
        unit: the unit of the work.
    """

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    work: float
    unit: str


def cases(lib: kernels.Library, small: bool) -> Iterator[Case]:
    interpret = small and lib.jax.default_backend() != "gpu"
    n, rows, width, length = (256, 16, 500, 256) if small else (4096, 16384, 8192, 4096)
    product = 2e-12 * n**3
    for dtype, blocks, warps, stages in (
        ("bfloat16", (128, 128, 64), 4, 3),
        ("bfloat16", (128, 256, 64), 8, 3),
        ("float32", (128, 128, 32), 8, 3),
    ):
        function = kernels.matmul(lib, blocks, warps, stages, interpret)
        name = f"matmul {n}, blocks of {'x'.join(map(str, blocks))}"
        yield Case(name, function, ((n, n), (n, n)), dtype, product, "TFLOP/s")
    for dtype in ("bfloat16", "float32"):
        size = 2e-12 * rows * width * (2 if dtype == "bfloat16" else 4)
        softmax = kernels.softmax(lib, 8, interpret)
        yield Case(f"softmax {rows}x{width}", softmax, ((rows, width),), dtype, size, "TB/s")
        norm = kernels.layer_norm(lib, 8, interpret)
        yield Case(f"layer norm {rows}x{width}", norm, ((rows, width), (width,), (width,)), dtype, size, "TB/s")
    for causal, size, blocks, warps in (
        (True, 64, (128, 64), 4),
        (True, 128, (128, 64), 8),
        (False, 128, (128, 64), 8),
    ):
        shape = (1, 2, length, size) if small else (4, 16, length, size)
        flops = 4e-12 * shape[0] * shape[1] * length**2 * size / (2 if causal else 1)
        function = kernels.attention(lib, causal, blocks, warps, 3, interpret)
        name = f"attention {'causal ' * causal}{'x'.join(map(str, shape))}"
        yield Case(name, function, (shape,) * 3, "bfloat16", flops, "TFLOP/s")


def work(library: str, small: bool, repeats: int, file: Path) -> None:
    """Measure all cases with one library. Write a line of JSON per case, and the results to a file."""
    lib = kernels.library(library)
    samples = {}
    for case in cases(lib, small):
        rng = np.random.default_rng(0)
        scales = [1.0, *(1 / np.sqrt(shape[0]) if case.name.startswith("matmul") else 1.0 for shape in case.shapes[1:])]
        arrays = [
            lib.jnp.asarray(scale * rng.standard_normal(shape, np.float32), case.dtype)
            for shape, scale in zip(case.shapes, scales, strict=True)
        ]

        def chained(x: Any, *rest: Any, function: Callable[..., Any] = case.function) -> Any:
            for _ in range(CHAIN):
                x = function(x, *rest)
            return x

        row: dict[str, Any] = {"name": case.name, "dtype": case.dtype, "work": case.work, "unit": case.unit}
        try:
            start = time.perf_counter()
            function = lib.jax.jit(chained).lower(*arrays).compile()
            row["compile"] = time.perf_counter() - start
            one = np.asarray(lib.jax.jit(case.function)(*arrays)).reshape(-1)[:65536].astype(np.float32)
            samples[f"{case.name} {case.dtype}"] = one
            times = []
            for _ in range(4):
                start = time.perf_counter()
                for _ in range(repeats):
                    result = function(*arrays)
                result.block_until_ready()
                times.append(1e3 * (time.perf_counter() - start) / (repeats * CHAIN))
            row["ms"] = min(times)
        except Exception as error:  # a kernel that does not compile is a row of the table
            row["error"] = f"{type(error).__name__}: {error}"[:1500]
        print(json.dumps(row), flush=True)
    np.savez(file, **samples)


def measure(library: str, options: argparse.Namespace, file: Path) -> dict[str, dict[str, Any]]:
    """Run a library in a process, and return its rows by the name of the case."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.pallas_times",
        "--worker",
        library,
        "--file",
        str(file),
    ]
    command += ["--repeats", str(options.repeats), *(["--small"] if options.small else [])]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=170)
    rows = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode:
        print(f"{library} failed: {run.stderr[-2000:]}", flush=True)
    return {f"{row['name']} {row['dtype']}": row for row in rows}


def compare(options: argparse.Namespace) -> int:
    """Measure both libraries in turns, print the table, and return the number of kernels whose results differ."""
    best: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in LIBRARIES}
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.npz" for name in LIBRARIES}
        for _ in range(options.rounds):
            for name in LIBRARIES:
                for key, row in measure(name, options, files[name]).items():
                    if key not in best[name] or row.get("ms", np.inf) < best[name][key].get("ms", np.inf):
                        best[name][key] = row
        samples = {name: dict(np.load(file)) for name, file in files.items() if file.exists()}
    print(f"{'':48} {'ours':>9} {'JAX':>9} {'ratio':>6} {'rate':>14} {'difference':>11}")
    for key, row in best["shardwise"].items():
        other = best["jax"].get(key, {"error": "did not run"})
        if "ms" not in row:
            wrong += 1
            print(f"{key:48} {row['error']}")
            continue
        rate = f"{1e3 * row['work'] / row['ms']:.3g} {row['unit']}"
        if "ms" not in other:
            print(f"{key:48} {row['ms']:6.3f} ms {'-':>9} {'-':>6} {rate:>14}  JAX: {other['error'][:300]}")
            continue
        ours, theirs = (samples[name][key] for name in LIBRARIES)
        difference = float(np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max()))
        wrong += difference > 2e-2
        ratio = row["ms"] / other["ms"]
        print(f"{key:48} {row['ms']:6.3f} ms {other['ms']:6.3f} ms {ratio:6.3f} {rate:>14} {difference:11.1e}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=2, help="how often each library runs; the least time counts")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--worker", choices=LIBRARIES)
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.small, options.repeats, options.file)
        return 0
    return 1 if compare(options) else 0


if __name__ == "__main__":
    sys.exit(main())
