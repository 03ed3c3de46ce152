"""Coordinator process: the child process in which process 0 hosts the coordinator if there is no launcher.

It outlives process 0, so that the others get an exception when process 0 dies: XLA aborts every process that loses the
coordination service. It ends when all members have left.
"""

import argparse
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from dataclasses import asdict
from typing import final

from shardwise.processes.coordinator import Coordinator, listen
from shardwise.processes.stragglers import Straggler

_log = logging.getLogger("shardwise")
_TOKEN_VARIABLE = "SHARDWISE_COORDINATOR_TOKEN"
_MOST_STRAGGLERS = 16  # the most that wait to be read


@final
class CoordinatorProcess:
    """A child process that hosts a coordinator.

    Args:
        host: the address to listen on.
        port: the port to listen on.
        num_processes: the number of processes of the program.
        token: the token that members must send.
        initialization_timeout: the seconds until all processes must be present.
        heartbeat_timeout: the seconds of silence after which a member counts as lost.

    Attributes:
        stragglers: processes that delay the others, in the order in which the coordinator has found them.

    Raises:
        ValueError: if the host cannot be resolved.
        OSError: if the port is in use.
    """

    def __init__(
        self,
        host: str,
        port: int,
        num_processes: int | None,
        token: str,
        initialization_timeout: float,
        heartbeat_timeout: float,
    ):
        self.token = token
        with listen(host, port) as listener:
            self.port = listener.getsockname()[1]
            numbers = (listener.fileno(), initialization_timeout, heartbeat_timeout)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, *map(str, numbers)],
                stdin=subprocess.PIPE,  # EOF signals the child that this process has ended
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                env={**os.environ, _TOKEN_VARIABLE: token, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self.stragglers: deque[Straggler] = deque(maxlen=_MOST_STRAGGLERS)
        threading.Thread(target=self._log_output, name="shardwise coordinator log", daemon=True).start()
        threading.Thread(target=self._read_stragglers, name="shardwise stragglers", daemon=True).start()
        if num_processes is not None:
            self.begin(num_processes)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def begin(self, num_processes: int) -> None:
        """Let the process serve this number of members, once."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which the members notice
            self._process.stdin.write(f"{num_processes}\n".encode())
            self._process.stdin.flush()

    def _log_output(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                _log.warning("%s", line.decode(errors="replace").rstrip())

    def _read_stragglers(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.stragglers.append(Straggler(**json.loads(line)))

    def kill(self) -> None:
        """Kill the process if it still runs, and close its pipes."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def abandon(self) -> None:
        """Close the pipes in a forked child, so that the parent's end is EOF for the coordinator."""
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            if not pipe.closed:
                os.close(pipe.fileno())

    def wait(self, timeout: float) -> bool:
        """Wait for the end of the process. Return False after `timeout` seconds."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        return self._process.returncode is not None


def main() -> None:
    """Host the coordinator on the socket that process 0 opened."""
    parser = argparse.ArgumentParser()
    parser.add_argument("listener", type=int)
    parser.add_argument("initialization_timeout", type=float)
    parser.add_argument("heartbeat_timeout", type=float)
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # ignored, because members may still have work to do, such as saving
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(format="%(message)s")
    if not (num_processes := sys.stdin.readline()):  # the parent has ended
        return
    coordinator = Coordinator(
        int(num_processes),
        token=os.environ.pop(_TOKEN_VARIABLE, ""),
        initialization_timeout=arguments.initialization_timeout,
        heartbeat_timeout=arguments.heartbeat_timeout,
        listener=socket.socket(fileno=arguments.listener),
        on_straggler=lambda straggler: print(json.dumps(asdict(straggler)), flush=True),
    )
    coordinator.start()
    parent = threading.Thread(target=_stop_with_parent, args=(coordinator,), daemon=True)
    parent.start()
    coordinator.wait()
    os._exit(0)  # skip the service's shutdown, which would wait for killed members


def _stop_with_parent(coordinator: Coordinator) -> None:
    """Stop the coordinator if process 0 ends before the rendezvous. Afterwards it runs on for the other members."""
    sys.stdin.read()
    if not coordinator.is_ready:
        coordinator.stop()


if __name__ == "__main__":
    main()
