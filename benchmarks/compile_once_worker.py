"""One process of `compile_once.py`: python benchmarks/compile_once_worker.py RANK PROCESSES PORT LAYERS LENGTH...

It joins the others, runs one step for each length of sequences, of a model whose scan over layers is unrolled, and
prints one JSON object: the seconds from the end of the imports until the steps have ended ("seconds"), and those in
which their executables are compiled, or requested and loaded ("executables"); the compiled modules; how often each of
the steps was compiled; and the last loss.
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
    rank, processes, port, layers, *lengths = map(int, sys.argv[1:])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Gloo prints to stdout
    compiled: list[str] = []  # the texts
    loads: list[tuple[int, float, str]] = []  # the length of the text, the seconds, and the text
    module: Any = executable_module
    compile_text, load_or_compile = module.compile_text, module._compiled

    def count_compilation(text: str, *arguments: Any) -> Any:
        compiled.append(text)
        return compile_text(text, *arguments)

    def time_load(text: str, *arguments: Any) -> Any:
        start = perf_counter()
        binary = load_or_compile(text, *arguments)
        loads.append((len(text), perf_counter() - start, text))
        return binary

    module.compile_text, module._compiled = count_compilation, time_load
    start = perf_counter()
    sw.config.update("num_cpu_devices", DEVICES // processes)
    if processes > 1:
        sw.distributed.initialize(f"127.0.0.1:{port}", processes, rank)
    steps = []  # the largest module of each step
    for length in lengths:
        model = transformer.Model(layers, length=length, scanned=True, unroll=layers)
        step, arguments = transformer.workload("", model, FSDP).on(ours)
        known = len(loads)
        loss = float(sw.jit(step)(*arguments)[-1])
        steps.append(max(loads[known:]))
    result = {
        "seconds": perf_counter() - start,
        "executables": sum(seconds for _, seconds, _ in steps),
        "compiled": len(compiled),
        "compiled steps": [compiled.count(text) for *_, text in steps],
        "loss": loss,
    }
    print(json.dumps(result), file=answers)
    if processes > 1:
        sw.distributed.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
