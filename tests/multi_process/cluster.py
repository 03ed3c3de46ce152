"""Start the processes of a cluster on this machine, for tests: each has some virtual CPU devices.

`run_processes` runs a script in every process. `run_cases` runs the cases of a module: functions `case_…` that every
process calls in the same order, and that check their results themselves. As a program, this module is one process of
`run_cases`: python -m tests.multi_process.cluster MODULE RANK PROCESSES PORT DEVICES [CASE …].
"""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TIME_LIMIT = 600  # seconds for all cases of a module, which a test that passes never needs, also on a busy machine
PREFIX = "RESULT "


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_processes(
    arguments: Callable[[int, int], Sequence[str]],
    processes: int,
    may_fail: bool = False,
    killed: Collection[int] = (),
) -> list[str]:
    """Run Python with `arguments(rank, port)` in every process, and return what each writes to stdout.

    All processes end before this returns, whatever happens. Unless they may fail, a process that fails is an error with
    its output. The processes `killed` must end by SIGKILL.
    """
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, *arguments(rank, port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )
        for rank in range(processes)
    ]
    try:
        outputs = [rank.communicate(timeout=TIME_LIMIT) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for index, (rank, (out, err)) in enumerate(zip(ranks, outputs, strict=True)):
        expected = -signal.SIGKILL if index in killed else 0
        assert may_fail or rank.returncode == expected, f"process {index}: {rank.returncode}\n{out}\n{err}"
    return [out if rank.returncode == 0 else out + err for rank, (out, err) in zip(ranks, outputs, strict=True)]


def cases(module: str) -> list[str]:
    """Return the names of the cases of a module, in order."""
    names = vars(importlib.import_module(module))
    return [name.removeprefix("case_") for name in names if name.startswith("case_")]


@cache
def run_cases(module: str, processes: int, devices: int, names: tuple[str, ...] = ()) -> dict[str, list[Any]]:
    """Run cases of a module in a cluster, all by default; return what each case returns in each process.

    A case that raises an exception returns its traceback, as a string that starts with "Traceback". It ends its
    process, because the others may wait for it; so later cases do not run.
    """
    selected = names or tuple(cases(module))

    def arguments(rank: int, port: int) -> list[str]:
        return ["-m", "tests.multi_process.cluster", module, *map(str, (rank, processes, port, devices)), *names]

    outputs = run_processes(arguments, processes, may_fail=True)
    results = [
        dict(json.loads(line.removeprefix(PREFIX)) for line in out.splitlines() if line.startswith(PREFIX))
        for out in outputs
    ]
    return {
        name: [result.get(name, f"Traceback: no result\n{out}") for result, out in zip(results, outputs, strict=True)]
        for name in selected
    }


def check_case(results: list[Any]) -> list[Any]:
    """Return what a case returned in each process, after checking that it failed in none."""
    for rank, result in enumerate(results):
        failed = isinstance(result, str) and result.startswith("Traceback")
        assert not failed, f"process {rank}: {result}"
    return results


def main() -> None:
    module, *numbers = sys.argv[1:6]
    rank, processes, port, devices = map(int, numbers)
    sw = importlib.import_module("shardwise")
    sw.config.update("num_cpu_devices", devices)
    sw.distributed.initialize(f"127.0.0.1:{port}", processes, rank)
    loaded = importlib.import_module(module)
    for name in sys.argv[6:] or cases(module):
        try:
            result = getattr(loaded, f"case_{name}")()
        except BaseException:
            print(f"\n{PREFIX}{json.dumps([name, traceback.format_exc()])}", flush=True)
            os._exit(1)
        print(f"\n{PREFIX}{json.dumps([name, result])}", flush=True)
    sw.distributed.shutdown()


if __name__ == "__main__":
    main()
