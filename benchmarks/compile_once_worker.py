"""One process of `compile_once.py`: python benchmarks/compile_once_worker.py RANK PROCESSES PORT LAYERS.

It joins the others, runs the first step of a model whose scan over layers is unrolled, and prints one JSON object: the
seconds from the end of the imports until the step has ended ("seconds"), those before its executable is compiled or
requested ("before"), and those until it is loaded ("executable"); the compiled modules; how many of them are the step;
and the loss.
"""

import json
import os
import sys
from time import perf_counter
from typing import Any

import shardwise as sw
from benchmarks import ours, transformer
from shardwise.runtime import executable as executable_module

DEVICES = 4
FSDP = transformer.Parallel(((DEVICES,), (transformer.DATA,)), batch=transformer.DATA, weights=transformer.DATA)


def main() -> None:
    rank, processes, port, layers = map(int, sys.argv[1:])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Gloo prints to stdout
    compiled: list[int] = []  # the lengths of the texts
    loads: list[tuple[float, float, int]] = []  # the beginning, the end and the length of the text
    module: Any = executable_module
    compile_text, load_or_compile = module.compile_text, module._compiled

    def count_compilation(text: str, *arguments: Any) -> Any:
        compiled.append(len(text))
        return compile_text(text, *arguments)

    def time_load(text: str, *arguments: Any) -> Any:
        start = perf_counter()
        binary = load_or_compile(text, *arguments)
        loads.append((start, perf_counter(), len(text)))
        return binary

    module.compile_text, module._compiled = count_compilation, time_load
    start = perf_counter()
    sw.config.update("num_cpu_devices", DEVICES // processes)
    if processes > 1:
        sw.distributed.initialize(f"127.0.0.1:{port}", processes, rank)
    step, arguments = transformer.workload("", transformer.Model(layers, scanned=True, unroll=layers), FSDP).on(ours)
    loss = float(sw.jit(step)(*arguments)[-1])
    end = perf_counter()
    load_start, load_end, length = max(loads, key=lambda load: load[2])
    result = {
        "seconds": end - start,
        "before": load_start - start,
        "executable": load_end - load_start,
        "compiled": len(compiled),
        "compiled steps": compiled.count(length),
        "loss": loss,
    }
    print(json.dumps(result), file=answers)
    if processes > 1:
        sw.distributed.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
