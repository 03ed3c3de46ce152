"""Groups of real processes that run `fault_worker.py`, for tests."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WAIT = 300  # seconds; no test waits so long if it passes, also on a busy machine


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Worker:
    """One process, its events and its errors."""

    def __init__(self, arguments, environment):
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )
        self.events = []
        self.errors = ""
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_events, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read_events(self):
        # Gloo writes its own lines to the same pipe in several parts, so that an event may start within a line.
        for line in self.process.stdout:
            start = line.find('{"event": ')
            if start >= 0:
                self.events.append(json.JSONDecoder().raw_decode(line, start)[0])

    def _read_errors(self):
        self.errors = self.process.stderr.read()

    def event(self, name):
        """Wait for an event, and return it."""
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            for event in list(self.events):
                if event.get("event") == name:
                    return event
            if ended and not any(reader.is_alive() for reader in self._readers):
                break
            time.sleep(0.02)
        raise AssertionError(f"no event {name!r}, only {self.events}\n{self.errors}")

    def wait(self):
        """Wait for the end of the process, and return its exit status."""
        status = self.process.wait(WAIT)
        for reader in self._readers:
            reader.join(WAIT)
        return status

    def signal(self, number):
        self.process.send_signal(number)

    def close(self):
        """End the process, and read the rest of its output."""
        with suppress(ProcessLookupError):
            self.signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(WAIT)
        self.process.stdout.close()
        self.process.stderr.close()


class Group:
    """The processes of one program, with the coordinator in a child process of the first."""

    def __init__(self, fault, processes, devices, timeout, environment):
        self.port = free_port()
        worker = "tests/process_faults/fault_worker.py"
        self.workers = [
            Worker([worker, fault, *map(str, (rank, processes, self.port, devices, timeout))], environment)
            for rank in range(processes)
        ]

    def wait_for_coordinator_end(self):
        """Wait until nobody listens on the coordinator's port."""
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
            except OSError:
                return
            time.sleep(0.1)
        raise AssertionError("the coordinator's process still runs")


@contextmanager
def group(fault, processes=2, devices=2, timeout=WAIT, **environment):
    """Run the workers, and end them. `timeout` is how long they wait for a process that does not answer."""
    started = Group(fault, processes, devices, timeout, environment)
    try:
        yield started
    finally:
        for worker in started.workers:
            worker.close()
