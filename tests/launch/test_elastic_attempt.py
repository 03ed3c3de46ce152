"""The launcher of a program whose processes are replaced. These tests play the processes; others run programs."""

import os
import signal
import socket
import threading
import time

import pytest

from shardwise.launch import elastic_attempt, stop
from shardwise.launch import options as launch_options
from shardwise.launch.fleet import node_hello
from shardwise.launch.launcher import Launcher
from shardwise.launch.options import LaunchOptions
from shardwise.processes.node_link import NodeLink
from shardwise.processes.protocol import PROTOCOL_VERSION, JobEnded, Waiting
from shardwise.processes.roster import RosterError, wait_for_place

pytestmark = pytest.mark.faults

LIMIT = 300  # seconds, which no test waits for if it passes
# A process that prints its roster to a file, and ends with the exit code that a test writes to another file.
COMMAND = """
number=$SHARDWISE_ROSTER_PROCESS
echo "$SHARDWISE_ROSTER $SHARDWISE_ROSTER_TOKEN" > new$number && mv new$number started$number
while [ ! -e code$number ]; do sleep 0.02; done
exit $(cat code$number)
"""


class Job:
    """A launcher in a thread, with processes that do as a test says.

    Attributes:
        code: its exit code, when it has ended.
    """

    def __init__(self, folder, **options):
        self._folder = folder
        self._files = [open(folder / name, "w+") for name in ("stdout", "stderr")]  # noqa: SIM115
        command = ["sh", "-c", f"cd {folder}; {COMMAND}"]
        self._launcher = Launcher(LaunchOptions(command, log_folder=folder / "logs", **options), *self._files)
        self.code = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        self.code = self._launcher.run()

    def wait_for(self, number):
        """Wait until a process waits for its place. Return the thread of its wait."""
        path, deadline = self._folder / f"started{number}", time.monotonic() + LIMIT
        while not path.exists():
            assert time.monotonic() < deadline and self._thread.is_alive()
            time.sleep(0.01)
        address, token = path.read_text().split()
        message = Waiting(token, PROTOCOL_VERSION, number, -1, None, "")

        def wait():
            try:
                wait_for_place(address, message)
            except RosterError:
                return  # the job has ended

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        return thread

    def interrupt(self):
        self._launcher._signals.append(signal.SIGINT)

    def end(self, number, code):
        """End a process with an exit code."""
        (self._folder / "code").write_text(str(code))
        (self._folder / "code").rename(self._folder / f"code{number}")

    def errors(self):
        """Wait for the end, and return what the launcher has printed to standard error."""
        self._thread.join(LIMIT)
        texts = []
        for file in self._files:
            with file:
                file.seek(0)
                texts.append(file.read())
        return texts[1]


def free_port():
    """Return a port of the loopback address that no program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_failure_after_the_end_of_recover_is_that_of_the_job(tmp_path, order):
    """Also if the process fails before the others have ended."""
    job = Job(tmp_path, processes=2, spares=0)
    for thread in [job.wait_for(number) for number in range(2)]:
        thread.join(LIMIT)  # until it has its place
    for number in order:
        job.end(number, 3 * number)
    errors = job.errors()
    assert job.code == 3
    assert "process 1 failed first: exit code 3" in errors


def test_a_process_that_does_not_wait_for_its_place_ends_the_program(tmp_path, monkeypatch):
    monkeypatch.setattr(launch_options, "INITIALIZATION_TIMEOUT", 0.3)
    monkeypatch.setattr(launch_options, "MIN_INITIALIZATION_TIMEOUT", 0.3)
    job = Job(tmp_path, processes=2, spares=0)
    job.wait_for(0)
    errors = job.errors()
    assert job.code == 1
    assert "the job failed: process 1 has not reached checkpoints.recover, or the first use of a device" in errors


def test_a_node_that_does_not_come_ends_the_program(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDWISE_COORDINATOR_TOKEN", "secret")
    monkeypatch.setattr(launch_options, "INITIALIZATION_TIMEOUT", 0.3)
    monkeypatch.setattr(launch_options, "MIN_INITIALIZATION_TIMEOUT", 0.3)
    monkeypatch.setattr(elastic_attempt, "PATIENCE", 0.1)
    job = Job(tmp_path, processes=1, spares=0, nodes=3, coordinator=f"127.0.0.1:{free_port()}")
    job.wait_for(0)
    errors = job.errors()
    assert job.code == 1
    assert "shardwise launch: waiting up to 0 s for the launchers of these nodes: 1, 2\n" in errors
    assert "the job failed: after 0 s, the launchers of these nodes are missing: 1, 2. Look whether they" in errors
    assert not os.path.exists(tmp_path / "started1")


def test_an_interrupt_does_not_wait_for_a_node_that_does_not_answer(tmp_path, monkeypatch):
    """A launcher that is stopped, as by SIGSTOP, is silent. When it continues, it learns that the job has ended."""
    monkeypatch.setenv("SHARDWISE_COORDINATOR_TOKEN", "secret")
    monkeypatch.setattr(stop, "KILL_TIME", 0.1)
    options = {"processes": 1, "spares": 0, "nodes": 2, "coordinator": f"127.0.0.1:{free_port()}"}
    job = Job(tmp_path, **options)
    job.wait_for(0)
    link = NodeLink(options["coordinator"], node_hello(LaunchOptions(["true"], node_rank=1, **options)))
    while not link.receive():  # StartProcess
        time.sleep(0.01)
    for _ in range(2):
        job.interrupt()
        time.sleep(0.2)  # for the launcher to handle each of them
    job.errors()
    assert job.code == 128 + signal.SIGINT
    commands = []
    while not link.lost:
        commands += link.receive()
    assert commands[-1] == JobEnded(128 + signal.SIGINT, "")
