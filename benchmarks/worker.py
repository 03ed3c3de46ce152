"""Worker: a process of a benchmark that answers requests, one JSON object per line, until its input ends."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

from benchmarks.measure import ROOT


@final
class Worker:
    """A process that answers requests.

    Args:
        command: the arguments of Python.
    """

    def __init__(self, *command: str):
        environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", *command],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: Any) -> Any:
        """Return the answer to a request."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"the process of a benchmark failed; its error is above: {request}")
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate()


@contextmanager
def workers(*commands: Sequence[str]) -> Iterator[list[Worker]]:
    """Start a process for each command."""
    started = [Worker(*command) for command in commands]
    try:
        yield started
    finally:
        for worker in reversed(started):  # process 0 of a cluster last: JAX aborts processes that lose it
            worker.close()
