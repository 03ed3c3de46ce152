"""NodeAttempt: the part of one node in a job whose failed processes are replaced, in all launchers but that of node 0.

It starts, kills and signals the processes of its node as the launcher of node 0 says, and reports their ends
(`elastic_attempt.py`). If it loses that launcher, it kills its processes, because others may have taken their places,
and connects again. It then takes part like a new node.
"""

import signal
import time
from collections.abc import Callable
from typing import final

from shardwise.errors import RendezvousError
from shardwise.launch.attempt import POLL_INTERVAL
from shardwise.launch.fleet import node_hello
from shardwise.launch.launch_attempt import PATIENCE, AttemptSettings, LaunchAttempt, LaunchFailure
from shardwise.processes.node_link import Command, NodeBusy, NodeLink
from shardwise.processes.protocol import (
    TEXT_LIMIT,
    JobEnded,
    KillProcess,
    ProcessEnded,
    SignalProcesses,
    StartProcess,
)

_RETRY_INTERVAL = 0.5  # seconds between two attempts to connect
# Seconds to connect again after the connection was lost, and for node 0 to notice that an earlier launcher of this node
# has lost it.
_RETURN_TIME = 60.0


@final
class NodeAttempt(LaunchAttempt):
    """The processes of one node, for the launcher of node 0.

    Args:
        settings: what the attempt gets from the launcher.
        report: prints a line of the launcher.
    """

    def __init__(self, settings: AttemptSettings, report: Callable[[str], None]):
        options = settings.options
        super().__init__(settings, options.nodes * (options.processes + (options.spares or 0)))
        self._report = report
        self._link: NodeLink | None = None

    def _start(self) -> None:
        """Do nothing: the processes are started when the launcher of node 0 says so."""

    def _stop_servers(self) -> None:
        if self._link is not None:
            self._link.close()

    def _wait(self) -> int:
        """Serve the launcher of node 0 until the job has ended. Return its exit code."""
        seconds = self._options.initialization_timeout
        while True:
            self._link = self._connect(seconds)
            code = self._serve(self._link) if self._link is not None else None
            if code is not None:
                return code
            if self._signals:
                return 128 + self._signals[0]
            if self.failure is not None:
                return self.failure.code
            assert self._link is not None
            self._report(f"the connection to node 0 is lost ({self._link.lost}): the processes of this node are killed")
            self._kill_all()
            seconds = _RETURN_TIME

    def _connect(self, seconds: float) -> NodeLink | None:
        """Connect to the launcher of node 0. Return None after a signal or a failure, which sets `failure`."""
        options, start = self._options, time.monotonic()
        hello, deadline = node_hello(options), start + seconds
        has_reported = False
        while not self._signals:
            try:
                return NodeLink(options.coordinator, hello)
            except RendezvousError as error:
                self.failure = LaunchFailure(-1, str(error), "", 1)
                return None
            except NodeBusy as error:
                deadline = min(deadline, time.monotonic() + _RETURN_TIME)
                reason, advice = str(error), ""
            except OSError as error:
                reason = f"the launcher of node 0 cannot be reached at {options.coordinator} ({error})"
                advice = (
                    ". Look whether it runs, whether --coordinator is its address, and whether a firewall lets "
                    "connections through. If it has ended, start the job again: it continues from its newest "
                    "checkpoint on disk"
                )
            waited = time.monotonic() - start
            if time.monotonic() > deadline:
                self.failure = LaunchFailure(-1, f"after {waited:.0f} s, {reason}{advice}", "", 1)
                return None
            if waited > PATIENCE and not has_reported:
                has_reported = True
                self._report(f"waiting up to {deadline - start:.0f} s for node 0: {reason}")
            time.sleep(_RETRY_INTERVAL)
        return None

    def _serve(self, link: NodeLink) -> int | None:
        """Obey commands until the job has ended, and return its exit code.

        It returns None if the connection is lost, or if all processes have ended after a signal to this launcher.
        """
        while not link.lost:
            self._output.copy(POLL_INTERVAL)
            self._workers.check_guardian()
            for exit in self._workers.poll():
                errors = "\n".join(self._output.error_lines(exit.rank))[-TEXT_LIMIT:]
                link.send(ProcessEnded(exit.rank, exit.pid, exit.code, exit.by_launcher, errors))
            link.send_heartbeat(",".join(map(str, self._workers.stopped)))
            self._handle_signals()
            if self._stop is not None:
                self._stop.send_due(self._workers)
                if not self._workers.running:
                    return None
            for command in link.receive():
                if isinstance(command, JobEnded):
                    if command.code:
                        reason = command.reason or f"node 0 has ended with exit code {command.code}"
                        self.failure = LaunchFailure(-1, reason, "", command.code)
                    return command.code
                self._obey(link, command)
        return None

    def _obey(self, link: NodeLink, command: Command) -> None:
        if isinstance(command, StartProcess) and self._stop is None:
            self._start_worker(command.process, link.welcome.roster, link.welcome.token)
        elif isinstance(command, KillProcess):
            self._workers.kill(command.process)
        elif isinstance(command, SignalProcesses) and command.number in signal.valid_signals():
            number = signal.Signals(command.number)
            if number == signal.SIGINT:
                self._output.mute_errors()  # otherwise every process would print the traceback of its interrupt
            self._workers.signal(number)

    def _kill_all(self) -> None:
        """Kill all processes, and wait until they have ended."""
        self._workers.signal(signal.SIGKILL)
        while self._workers.running:
            self._output.copy(POLL_INTERVAL)
            self._workers.poll()
        self._workers.kill_descendants()
