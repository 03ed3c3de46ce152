"""One process of a group that times calls: python benchmarks/process_worker.py LIBRARY RANK PROCESSES PORT DEVICES.

Reads requests, one JSON object per line, and answers with seconds per call.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np


def main() -> None:
    library, *numbers = sys.argv[1:]
    rank, processes, port, devices = map(int, numbers)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Gloo prints to stdout
    os.environ["JAX_NUM_CPU_DEVICES"] = str(devices)
    side = importlib.import_module(f"benchmarks.{library}")
    if library == "ours":
        side.library.config.update("num_cpu_devices", devices)
    if processes > 1:
        side.library.distributed.initialize(f"127.0.0.1:{port}", processes, rank)
    calls: dict[str, Callable[[], Any]] = {}
    for line in sys.stdin:
        request = json.loads(line)
        name = request["name"]
        if name not in calls:
            calls[name] = prepared(side, name)
        start = perf_counter()
        for _ in range(request["calls"]):
            calls[name]()
        print(json.dumps((perf_counter() - start) / request["calls"]), file=answers)
    os._exit(0)  # the other processes of the group end at their own end of input


def prepared(side: Any, name: str) -> Callable[[], Any]:
    """Return a call that waits for its result."""
    programs = importlib.import_module("benchmarks.programs")
    if name.startswith("training step"):
        sizes = programs.LARGER_EVEN if name.endswith("larger") else programs.EXAMPLE_EVEN
        step, args = programs.on_mesh(side, sizes)
        run_step = side.library.jit(step)
        return lambda: side.wait(run_step(*args))
    x = side.put(np.ones(8, np.float32), side.mesh((8,), ("x",)), ("x",))
    call = side.library.jit((lambda x: x.sum()) if name.endswith("sum") else (lambda x: x + 1))
    return lambda: side.wait_one(call(x))


if __name__ == "__main__":
    main()
