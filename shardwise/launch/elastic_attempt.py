"""ElasticAttempt: one start of a program whose failed processes are replaced, until its processes have ended.

All processes run the program, and wait for a place in the first generation. Those without a place are spares. A
generation ends when one of its processes or its coordinator ends, or when a process leaves it after a failure that it
has noticed. Then its coordinator is killed, so that all others notice it too, and they wait for a place in the next
generation. They keep their ranks, and spares get the others. If there are too few, the generation is smaller, and ends
at a step boundary when more processes are there.

On several nodes, this is the part of the launcher of node 0. The others start and end the processes of their nodes
(`node_attempt.py`).
"""

import secrets
import time
from collections.abc import Callable
from typing import final

from shardwise.launch.attempt import POLL_INTERVAL, describe_failure
from shardwise.launch.fleet import LOCAL, Fleet, node_hello
from shardwise.launch.launch_attempt import PATIENCE, AttemptSettings, LaunchAttempt, LaunchFailure
from shardwise.launch.placement import place_devices, place_ranks
from shardwise.launch.stop import AFTER_FAILURE, Stop
from shardwise.launch.workers import Exit
from shardwise.processes.coordinator_process import CoordinatorProcess
from shardwise.processes.node_server import NodeServer
from shardwise.processes.protocol import (
    Assignment,
    JobEnded,
    NodeWelcome,
    Waiting,
    join_address,
    split_address,
)
from shardwise.processes.roster import Roster

_HEARTBEAT_TIMEOUT = 100.0  # seconds of silence after which a coordinator counts a member as lost
# Seconds between the end of a process and the end of the coordinator, in which it tells the other processes the reason.
_NOTICE_TIME = 0.1
# Seconds that the other processes have to leave a generation; then they are killed.
_LEAVING_TIME = 60.0
_STOPPED_TIME = 1.0  # seconds after which a stopped process is killed, if others run
_READY_COORDINATORS = 2  # that wait: for the next generation, and for the one after a failure during that recovery
# Seconds from the start of a generation until failed processes and coordinators are started again: their imports slow
# down the others.
_START_DELAY = 2.0
_GROWTH_PATIENCE = 30.0  # seconds for which a process that could take part waits for others that are starting
_MOST_FUTILE = 5  # the most generations in succession that reach no further step
_MOST_FAILED_STARTS = 5  # the most processes in succession that end before they wait for a place


@final
class ElasticAttempt(LaunchAttempt):
    """One start of a program with spare processes.

    Args:
        settings: what the attempt gets from the launcher.
        report: prints a line of the launcher.
        first_generation: the number of the first generation.

    Attributes:
        next_generation: the number of the next generation.
    """

    def __init__(self, settings: AttemptSettings, report: Callable[[str], None], first_generation: int):
        options = settings.options
        assert options.spares is not None
        self._target = options.processes + options.spares  # the number of processes to run on each node
        super().__init__(settings, options.nodes * self._target)
        self._report = report
        self._host = split_address(options.coordinator)[0] if options.nodes > 1 else "127.0.0.1"
        self._roster = Roster(options.nodes * self._target, self._host)
        self._server = self._create_node_server() if options.nodes > 1 else None
        self._fleet = Fleet(self._workers, self._output, self._start_local, self._server, options, report)
        self._code = 1  # the exit code of the launchers
        self._failed_starts = 0  # processes in succession that ended before they waited for a place
        self._have_waited: set[int] = set()
        self.next_generation = first_generation
        self._members: dict[int, int] = {}  # number of each process of the generation → rank
        self._waiting_since: float | None = None  # since when a process waits that could take part
        self._indices: dict[int, int] = {}  # number of each process of the generation → its index on its node
        self._generation_start = 0.0
        self._complete_at = self._workers.start_time  # when the launchers of all nodes were last connected
        self._has_reported_missing = False
        self._broken_since: float | None = None  # since when the generation is known to have ended
        self._step: int | None = None  # the furthest step that a generation has reached
        self._futile = 0  # generations in succession that have reached no further step
        self._slow_ranks: set[int] = set()  # whose processes were killed because they delayed the others
        self._replacements: set[int] = set()  # processes that took their places
        self._coordinator: CoordinatorProcess | None = None  # of the generation
        self._ready_coordinators: list[CoordinatorProcess] = []

    @property
    def exits(self) -> list[Exit]:
        """The processes of all nodes that have ended, in order of their ends."""
        return self._fleet.exits

    def _create_node_server(self) -> NodeServer:
        welcome = NodeWelcome(self._roster.address, self._roster.token)
        return NodeServer(*split_address(self._options.coordinator), node_hello(self._options), welcome)

    def _start(self) -> None:
        for _ in range(_READY_COORDINATORS):
            self._ready_coordinators.append(self._start_coordinator())
        for _ in range(self._target):
            self._fleet.start(LOCAL)

    def _stop_servers(self) -> None:
        for coordinator in (self._coordinator, *self._ready_coordinators):
            if coordinator is not None:
                coordinator.kill()
        self._roster.stop()
        if self._server is not None:
            reason = "" if self.failure is None else self.failure.describe()
            for node in self._fleet.nodes:
                self._server.send(node, JobEnded(self._code, reason))
            self._server.stop()

    def _start_coordinator(self) -> CoordinatorProcess:
        timeout = self._options.initialization_timeout
        return CoordinatorProcess(self._host, 0, None, secrets.token_hex(16), timeout, _HEARTBEAT_TIMEOUT)

    def _start_local(self, number: int) -> None:
        self._start_worker(number, self._roster.address, self._roster.token)

    def _wait(self) -> int:
        """Replace failed processes until the members of a generation have ended. Return the exit code."""
        while self._fleet.running and not (self._stop is not None and self._stop.is_overdue):
            self._output.copy(POLL_INTERVAL)
            self._workers.check_guardian()
            for exit in self._fleet.poll():
                self._note_exit(exit)
            self._handle_signals()
            if self._stop is None and self.failure is not None:
                self._stop = Stop(AFTER_FAILURE)
            if self._stop is not None:
                self._stop.send_due(self._fleet)
            elif not self._has_finished:
                self._start_on_new_nodes()
                self._await_nodes()
                self._end_stuck()
                self._kill_stopped()
                self._replace_stragglers()
                self._continue_generations()
            else:
                self._finish()
        if self.failure is not None:
            self._code = self.failure.code
        else:
            failed = [exit for exit in self.exits if exit.code and (exit.rank in self._members or not self._members)]
            self._code = 128 + self._signals[0] if self._handled and (failed or self._fleet.running) else 0
        return self._code

    def _finish(self) -> None:
        """Kill the spares when the processes of the generation have ended; fail if one waits for another generation."""
        if not self._members.keys().isdisjoint(self._roster.waiting()):
            self._fail(next(exit for exit in self.exits if exit.code == 0 and exit.rank in self._members))
        elif self._members.keys().isdisjoint(self._fleet.running):
            for number in set(self._fleet.running) - self._fleet.killed:
                self._fleet.kill(number)

    @property
    def _has_finished(self) -> bool:
        """Whether a process of the generation has ended without an error: the program is complete."""
        return any(exit.code == 0 and exit.rank in self._members for exit in self.exits)

    def _note_exit(self, exit: Exit) -> None:
        """Decide whether the program can continue without a process that has ended."""
        if self._signals or self.failure is not None:
            return
        if self._has_finished:
            failed = next((each for each in self.exits if each.code and each.rank in self._members), None)
            if failed is not None:  # perhaps before the first one that has ended without an error
                self._fail(failed, "others have ended without an error")
            return
        if exit.rank not in self._have_waited and exit.lost_node is None:
            self._failed_starts += 1
        if not self._fleet.running:
            self._fail(exit, "no other process is left")
            return
        rank = f" (rank {self._members[exit.rank]})" if exit.rank in self._members else ""
        self._report(f"process {exit.rank}{rank} ended: {exit.describe()}")
        if exit.rank not in self._have_waited and self._failed_starts == _MOST_FAILED_STARTS:
            self._report(
                f"no more processes are started: {_MOST_FAILED_STARTS} in succession have not reached the others"
            )

    def _fail(self, exit: Exit, why: str = "") -> None:
        if self.failure is None:
            failure = describe_failure(exit, None, self._fleet.error_lines(exit.rank))
            reason = "; ".join(filter(None, (failure.reason, why)))
            self.failure = LaunchFailure(failure.rank, reason, failure.detail, failure.code)

    def _kill_stopped(self) -> None:
        """Kill the processes that a signal has stopped, unless all are: the job is suspended then."""
        stopped = self._fleet.stopped
        if len(stopped) == len(self._fleet.running):
            return
        for number, seconds in stopped.items():
            if seconds > _STOPPED_TIME and number not in self._fleet.killed:
                self._report(f"process {number} has been stopped for {seconds:.1f} s and is killed")
                self._fleet.kill(number)

    def _replace_stragglers(self) -> None:
        """Kill a process that delays the others, if a spare can take its place.

        If its replacement delays the others too, it is not replaced: the cause is the work of the rank.
        """
        if not self._options.replace_stragglers or self._broken_since is not None or self._coordinator is None:
            return
        stragglers = self._coordinator.stragglers
        while stragglers:
            rank = stragglers.popleft().rank
            number = next(number for number, own_rank in self._members.items() if own_rank == rank)
            text = f"process {number} (rank {rank}) delays the others"
            if number in self._replacements:
                self._report(f"{text}, as did the process that it replaced, and stays")
            elif self._roster.waiting().keys() <= self._members.keys():
                self._report(f"{text}, and stays, because no spare is ready")
            else:
                self._report(f"{text}, and is killed")
                self._slow_ranks.add(rank)
                self._fleet.kill(number)
                return

    def _continue_generations(self) -> None:
        """Start the next generation if there is none, or if the last one has ended and its processes have left it."""
        waiting = self._waiting()
        if not waiting.keys() <= self._have_waited:
            self._have_waited |= waiting.keys()
            self._failed_starts = 0
        now = time.monotonic()
        if self._members and self._broken_since is None and self._is_broken(waiting):
            self._broken_since = now
        self._roster.has_room = self._has_room(waiting, now)
        if not self._members or self._has_left(waiting, now):
            self._start_generation(waiting)
        if self._should_start(now):
            self._start_process()
        is_settled = self._broken_since is None and bool(self._members) and now - self._generation_start > _START_DELAY
        if is_settled and len(self._ready_coordinators) < _READY_COORDINATORS:
            self._ready_coordinators.append(self._start_coordinator())

    def _has_room(self, waiting: dict[int, Waiting], now: float) -> bool:
        """Return whether the generation should end because more processes can take part.

        A generation that grows waits for processes that are starting, such as those of a node, because each end of a
        generation takes time.
        """
        lacking = self._options.members - len(self._members)
        if self._broken_since is not None or not self._members or not lacking or not waiting:
            self._waiting_since = None
            return False
        self._waiting_since = self._waiting_since or now
        are_starting = not self._members.keys() | waiting.keys() >= set(self._fleet.running)
        return len(waiting) >= lacking or not are_starting or now - self._waiting_since > _GROWTH_PATIENCE

    def _waiting(self) -> dict[int, Waiting]:
        """Return the processes that wait for a place. One that was lost with its node gets none, and ends."""
        waiting = self._roster.waiting()
        running = set(self._fleet.running)
        for number in waiting.keys() - running:
            self._roster.refuse(number, "its node was lost")
        return {number: waiting[number] for number in waiting.keys() & running}

    def _start_on_new_nodes(self) -> None:
        """Start the processes of nodes whose launchers have come or returned."""
        for node in self._fleet.take_new_nodes():
            self._report(f"node {node} takes part")
            for _ in range(self._target):
                self._fleet.start(node)

    def _await_nodes(self) -> None:
        """End the program if the launcher of a node is missing for too long before the first generation."""
        now = time.monotonic()
        missing = sorted(set(range(self._options.nodes)) - set(self._fleet.nodes))
        if not missing or self._members:
            self._complete_at, self._has_reported_missing = now, False
            return
        waited, seconds = now - self._complete_at, self._options.initialization_timeout
        nodes = ", ".join(map(str, missing))
        if waited > PATIENCE and not self._has_reported_missing:
            self._has_reported_missing = True
            self._report(f"waiting up to {seconds:.0f} s for the launchers of these nodes: {nodes}")
        if waited > seconds:
            self._end(
                f"after {seconds:.0f} s, the launchers of these nodes are missing: {nodes}. Look whether they were "
                f"started and can reach {self._options.coordinator}"
            )

    def _end_stuck(self) -> None:
        """Kill processes that do not wait for a place in time. Before the first generation, end the program."""
        seconds = self._options.initialization_timeout
        stuck = sorted(self._fleet.running_for(seconds) - self._have_waited - self._fleet.killed)
        if not stuck:
            return
        why = f"has not reached checkpoints.recover, or the first use of a device, within {seconds:.0f} s"
        remedy = "pass a larger --timeout if it works longer before"
        if not self._members:
            self._end(f"process {stuck[0]} {why}: {remedy}")
            return
        for number in stuck:
            self._report(f"process {number} {why}, and is killed: {remedy}")
            self._fleet.kill(number)

    def _start_process(self) -> None:
        """Start a process on the node that lacks most."""
        counts = {node: self._fleet.count(node) for node in self._fleet.nodes}
        node = min(counts, key=counts.__getitem__)
        if counts[node] < self._target:
            self._fleet.start(node)

    def _is_broken(self, waiting: dict[int, Waiting]) -> bool:
        running = set(self._fleet.running)
        has_lost = not self._members.keys() <= running or not self._members.keys().isdisjoint(waiting)
        return has_lost or self._coordinator is None or self._coordinator.has_ended

    def _has_left(self, waiting: dict[int, Waiting], now: float) -> bool:
        """Return whether all processes of a broken generation that are alive have left it."""
        if self._broken_since is None:
            return False
        if self._coordinator is not None and now - self._broken_since > _NOTICE_TIME:
            self._coordinator.kill()
        late = [number for number in self._fleet.running if number in self._members and number not in waiting]
        if late and now - self._broken_since > _LEAVING_TIME:
            for number in set(late) - self._fleet.killed:
                self._report(f"process {number} does not leave a generation that has failed, and is killed")
                self._fleet.kill(number)
        return not late

    def _should_start(self, now: float) -> bool:
        """Return whether to start a process: not while the others recover, unless they cannot without it."""
        if self._failed_starts >= _MOST_FAILED_STARTS:
            return False
        if self._broken_since is not None or not self._members:
            return len(self._fleet.running) < self._fewest
        return now - self._generation_start > _START_DELAY

    @property
    def _fewest(self) -> int:
        """The fewest processes of the next generation."""
        return self._options.min_processes if self._members else self._options.members

    def _start_generation(self, waiting: dict[int, Waiting]) -> None:
        """Assign the processes that wait to ranks, if there are enough of them."""
        old = [number for number in sorted(self._members, key=self._members.__getitem__) if number in waiting]
        new = sorted(waiting.keys() - self._members.keys())
        have_state = [number for number in old if waiting[number].step is not None]
        if self._members and not (old if self._step is None else have_state):
            self._end("no process is left that has a snapshot")
            return
        size = min(self._options.members, len(waiting))
        if self._failed_starts >= _MOST_FAILED_STARTS and len(self._fleet.running) < self._fewest:
            self._end("too few processes are left")
        if size < self._fewest or not self._has_advanced(old, waiting):
            return
        is_first_missing = new[:size] != sorted(self._fleet.running)[:size]
        if not self._members and (is_first_missing or len(self._fleet.nodes) < self._options.nodes):
            return  # the first processes are not spares
        members = {number: self._members[number] for number in old}
        ranks = place_ranks(members, new, size, self._fleet.node_of, self._options.processes)
        self._indices = place_devices(ranks, self._indices, self._fleet.node_of)
        ready = [coordinator for coordinator in self._ready_coordinators if not coordinator.has_ended]
        self._coordinator, *self._ready_coordinators = ready or [self._start_coordinator()]
        self._coordinator.begin(size)
        if old:
            reason = waiting[old[0]].reason.partition("\n")[0]
            places = "".join(f"; process {number} has rank {ranks[number]}" for number in new if number in ranks)
            count = "1 process continues" if size == 1 else f"{size} processes continue"
            self._report(f"{reason}. {count}{places}")
        self._replacements |= {number for number in new if ranks.get(number) in self._slow_ranks}
        self._slow_ranks.clear()
        generation, self.next_generation = self.next_generation, self.next_generation + 1
        self._members, self._broken_since, self._generation_start = ranks, None, time.monotonic()
        # A process that has reached no step may not have the executables of the others.
        keepers = have_state or old
        newcomers = ",".join(str(rank) for number, rank in ranks.items() if number not in keepers) if old else ""
        for number, rank in ranks.items():
            place = Assignment(
                generation,
                rank,
                size,
                join_address(self._host, self._coordinator.port),
                self._coordinator.token,
                self._options.device_ids(self._indices[number]),
                newcomers,
            )
            self._roster.assign(number, place)

    def _has_advanced(self, old: list[int], waiting: dict[int, Waiting]) -> bool:
        """Return whether the last generations have reached a further step; otherwise, end the program.

        A program that always fails in the same step would not end.
        """
        step = max((each for number in old if (each := waiting[number].step) is not None), default=None)
        if step is not None and (self._step is None or step > self._step):
            self._step, self._futile = step, 0
        elif old:
            self._futile += 1
        if self._futile < _MOST_FUTILE:
            return True
        self._end(f"the last {_MOST_FUTILE} recoveries have reached no further step")
        return False

    def _end(self, why: str) -> None:
        """End the program because of the last process that failed."""
        failed = [exit for exit in self.exits if exit.code]
        if failed:
            self._fail(failed[-1], why)
        elif self.failure is None:
            self.failure = LaunchFailure(-1, why, "", 1)
