"""Cluster: the processes of one program. The PJRT client of each process has the devices of all processes.

`join` connects to the coordinator first, which raises exceptions if the processes are not compatible. Then XLA's
clients connect, with Gloo between CPUs and with NCCL between GPUs. XLA aborts a process that waits too long for a lost
one, or that loses the coordination service. Therefore XLA's timeouts are set so that they do not expire first, every
call that waits for other processes is supervised, and the service is reached through a relay.
"""

import atexit
import logging
import math
import os
import platform
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, final

from shardwise.base._jaxlib import (
    Client,
    RuntimeFailure,
    cluster_collectives,
    cluster_cpu_client,
    cluster_store,
    jaxlib_version,
)
from shardwise.base.config import config
from shardwise.errors import PeerFailure, PlatformError, ProgramMismatch
from shardwise.processes.coordinator_process import CoordinatorProcess
from shardwise.processes.launch_record import RECORD_SUFFIX, LaunchRecord
from shardwise.processes.member import Member, report_uncaught_exceptions
from shardwise.processes.number_checks import MAX_PROCESSES, check_integer
from shardwise.processes.protocol import resolve, split_address
from shardwise.processes.relay import Relay
from shardwise.processes.supervised_call import call_supervised, drain_calls
from shardwise.processes.variables import RESTART_COUNT
from shardwise.runtime.client import clients
from shardwise.runtime.gloo_connections import GlooConnections, listening_addresses
from shardwise.runtime.plugins.create_client import create_client, node_options
from shardwise.runtime.plugins.plugin import Plugin
from shardwise.runtime.plugins.registry import plugins
from shardwise.runtime.process_set_registry import process_sets
from shardwise.runtime.shared_executables import SharedExecutables
from shardwise.version import __version__

_COLLECTIVE_TIMEOUT_FLAG = "--xla_cpu_collective_timeout_seconds"
# XLA's flags that may differ between processes, because they change neither programs nor results.
_LOCAL_FLAGS = ("--xla_dump", "--xla_force_host_platform_device_count", _COLLECTIVE_TIMEOUT_FLAG)
_END_TIME = 1.0  # seconds for XLA's runs to end after a failure
# Seconds for XLA's runs to end after their connections are closed, and between two attempts to close them.
_ABORT_TIME, _ABORT_INTERVAL = 30.0, 0.02
_CONNECTION_TIME = 2.0  # seconds to reach a coordinator that should listen already
_INITIALIZE = "distributed.initialize"
_COORDINATOR_END_TIME = 5.0  # seconds for the coordinator's process to end after the last member

_log = logging.getLogger("shardwise")

T = TypeVar("T")


@final
@dataclass(frozen=True)
class Timeouts:
    """The timeouts of a cluster, in seconds.

    Attributes:
        initialization: the time until all processes must be present.
        heartbeat: the silence after which a process counts as lost.
        shutdown: the time that a process waits for the others at its end.
        peer: the time that a program waits for another process in a collective.
    """

    initialization: float = 300
    heartbeat: float = 100
    shutdown: float = 300
    peer: float = 300


@final
class _Cluster:
    """The connections of this process: to the coordinator, and to XLA's coordination service."""

    def __init__(self) -> None:
        self.member: Member | None = None
        self.timeouts = Timeouts()
        self.joined_at_first_use = False
        self.group_counts: Counter[tuple[str, str]] = Counter()  # (name, processes) → how many groups there have been
        self._store: Any = None
        self._relay: Relay | None = None
        self._coordinator: CoordinatorProcess | None = None
        self._service_lock = threading.Lock()
        self._inherited: list[object] = []  # XLA's clients in a forked child, which lacks the threads to end them
        self._has_hooks = False  # at the exit of this process, at forks and for uncaught exceptions

    @property
    def store(self) -> Any:
        """The client of XLA's coordination service; None without a cluster.

        Raises:
            PeerFailure: if the coordinator is lost, because calls of the store would wait for it.
        """
        if self.member is not None and (error := self.member.error("", ())) is not None:
            raise error
        return self._store

    def join(
        self,
        address: str,
        processes: int,
        rank: int,
        *,
        timeouts: Timeouts,
        bind_address: str | None = None,
        token: str = "",
        hosts_coordinator: bool = True,
        local_device_ids: Sequence[int] | None = None,
        partition_index: int | None = None,
        generation: int | None = None,
        newcomers: Collection[int] = (),
    ) -> None:
        """Connect to the other processes and create the clients, before any use of a device.

        A process does it once, or again after `leave_failed`.

        If a process fails before all clients are created, all others raise PeerFailure.

        Args:
            address: the `host:port` of the coordinator.
            processes: the number of processes.
            rank: the index of this process.
            timeouts: the timeouts.
            bind_address: the `host:port` on which the coordinator listens, if it is not `address`.
            token: the secret that the coordinator expects.
            hosts_coordinator: whether process 0 starts the coordinator; False if a launcher hosts it.
            local_device_ids: the GPUs of this process; None for all GPUs of its machine.
            partition_index: the index of the group of GPUs with a fast network that this process belongs to.
            generation: the number of the generation, if the launcher replaces processes that fail; None otherwise.
            newcomers: the ranks of processes that need the executables of the others.
        """
        if self.joined_at_first_use:
            raise RuntimeError(
                "distributed.initialize must come before the first use of a device, at which this process has joined "
                "the others of `shardwise launch`: call it at the start of the program, or leave it out"
            )
        if self.member is not None:
            raise RuntimeError("distributed.initialize was called before: call it once, at the start of the program")
        if clients.exist:
            raise RuntimeError(
                "distributed.initialize must come before the first use of a device: call it at the start of the program"
            )
        host, port = split_address(address)
        check_integer("num_processes", processes, 1, MAX_PROCESSES)
        if not 0 <= rank < processes:
            raise ValueError(f"process_id must be from 0 to {processes - 1} (num_processes={processes}), not {rank}")
        resolve(host, port)
        self.timeouts = timeouts
        _set_collective_timeout(timeouts.peer)
        if rank == 0 and hosts_coordinator:
            bind = split_address(bind_address, "coordinator_bind_address") if bind_address else (host, port)
            self._coordinator = CoordinatorProcess(*bind, processes, token, timeouts.initialization, timeouts.heartbeat)
            port = self._coordinator.port
        try:
            # The launcher's coordinator listens before a process knows its place in a generation.
            connection = timeouts.initialization if generation is None else _CONNECTION_TIME
            member = Member(host, port, rank, processes, token, _requirements(), timeouts.initialization, connection)
        except BaseException:
            self._stop_coordinator()
            raise
        self.member = member
        has_hooks, self._has_hooks = self._has_hooks, True
        if hasattr(os, "register_at_fork") and not has_hooks:  # Windows has no fork
            os.register_at_fork(after_in_child=self._forget_in_child)  # another thread may fork while this one waits
        member.record = _create_record(member, generation)
        process_sets.connect(member, timeouts.peer)
        try:
            self._connect(member, host, local_device_ids, partition_index, newcomers)
        except BaseException as error:
            member.report_exception(error)
            self._abandon()
            raise
        if not has_hooks:
            report_uncaught_exceptions(lambda: self.member)
            atexit.register(self._leave_at_exit)

    def _connect(
        self,
        member: Member,
        host: str,
        local_device_ids: Sequence[int] | None,
        partition_index: int | None,
        newcomers: Collection[int],
    ) -> None:
        """Connect to XLA's coordination service, and create the clients. Both wait for all processes."""
        ranks = range(member.num_processes)
        self._relay = Relay(host, member.engine_port, partial(self._lose_service, member))
        store = cluster_store(self._relay.address, member.rank, int(self.timeouts.heartbeat))
        self.wait_for_processes(store.connect, ranks, _INITIALIZE)
        self._store = store
        if process_sets.retained is not None:
            process_sets.retained.connect(member, store, newcomers)
        self._create_clients(member, local_device_ids, partition_index)
        if process_sets.gloo is not None:
            process_sets.gloo.read_addresses(store)
        process_sets.executables = SharedExecutables(member, lambda: self.store)
        member.report_arrival(_INITIALIZE)

    def wait_for_processes(
        self, call: Callable[[], T], ranks: Collection[int], point: str, survives_failures: bool = False
    ) -> T:
        """Make a call that waits in C++ for other processes.

        Args:
            call: makes the call, in another thread.
            ranks: the processes that it waits for.
            point: the function that makes the call, for errors. All processes call it equally often.
            survives_failures: whether the call still ends if one of the processes fails.

        Raises:
            PeerFailure: if one of the processes fails, or does not arrive within the peer timeout.
        """
        assert self.member is not None
        return call_supervised(
            call,
            self.member,
            ranks,
            self.timeouts.peer,
            point=point,
            survives_failures=survives_failures,
            failure_time=self.timeouts.heartbeat + self.timeouts.peer,
        )

    def _lose_service(self, member: Member) -> None:
        """Record that the coordinator is lost, and disconnect XLA's client before its heartbeat aborts this process."""
        member.lose_coordinator("the connection to XLA's coordination service closed: the coordinator ended")
        with suppress(RuntimeFailure):
            self._disconnect_service()

    def _disconnect_service(self) -> None:
        """Disconnect from XLA's coordination service, once. Concurrent callers wait until it is done."""
        with self._service_lock:
            store, relay, self._store, self._relay = self._store, self._relay, None, None
            try:
                if store is not None:
                    store.shutdown()
            finally:
                if relay is not None:
                    relay.close()  # ends the calls that still wait for the service

    def _create_clients(
        self, member: Member, local_device_ids: Sequence[int] | None, partition_index: int | None
    ) -> None:
        """Create the CPU client, and that of the default platform. All processes create the same clients."""
        rank, processes = member.rank, member.num_processes

        def create(make_client: Callable[..., Client], *arguments: object) -> Client:
            make = partial(make_client, *arguments)
            return self.wait_for_processes(make, range(processes), _INITIALIZE)

        collectives, devices = self._create_collectives(member), config.num_cpu_devices
        clients.set("cpu", create(cluster_cpu_client, self._store, rank, processes, devices, collectives))
        options: dict[str, Any] = {"node_id": rank, "num_nodes": processes}
        if local_device_ids is not None:
            options["visible_devices"] = list(local_device_ids)
        if partition_index is not None:
            options["partition_index"] = partition_index
        requested = clients.requested()
        for plugin in _cluster_plugins(requested):
            try:
                clients.set(plugin.name, create(create_client, plugin, node_options(plugin, options), self._store))
                return
            except PlatformError as error:
                if requested:
                    raise
                plugins.report(error)

    def _create_collectives(self, member: Member) -> Any:
        """Create the collectives between the CPU devices of all processes, and find the address where they listen."""
        before = listening_addresses()
        collectives = cluster_collectives(self._store, member.local_host)
        opened = listening_addresses() - before
        process_sets.gloo = GlooConnections(member, self._store, opened.pop() if len(opened) == 1 else None)
        return collectives

    def leave(self) -> None:
        """Wait until all processes leave, and disconnect. If a process has failed, disconnect at once."""
        member = self.member
        if member is None:
            raise RuntimeError("distributed.shutdown needs distributed.initialize first")
        timeout = self.timeouts.shutdown
        error: PeerFailure | ProgramMismatch | None = None
        known = frozenset(member.failures)
        try:
            if member.record is not None and not member.has_uncaught_exception:
                member.record.end("left")
            if not member.leave(timeout):
                ranks, reason = ",".join(map(str, range(member.num_processes))), f"waited {timeout:.0f} s for the end"
                error = member.ask_for_failure(ranks, f"{reason} of the program", awaited="end")
            elif process_sets.may_wait():  # for a process that has ended, which the program has not detected
                error = member.error("", [rank for rank in member.failures if rank not in known])
        finally:
            self._disconnect()
        if error is not None:
            raise error

    def break_off(self, reason: str) -> None:
        """Let all calls that wait for other processes raise PeerFailure, before `leave_failed`."""
        if self.member is not None:
            self.member.lose_coordinator(reason)

    def leave_failed(self) -> None:
        """Disconnect after a failure without waiting for the others, and forget all devices, so as to `join` again.

        All runs that wait for other processes end. Arrays keep their buffers, but no program can use them any more.

        Raises:
            RuntimeError: if a run does not end.
        """
        gloo = process_sets.gloo
        ends = time.monotonic() + _ABORT_TIME
        if gloo is not None:
            gloo.close_connections()
        while not process_sets.drain(_ABORT_INTERVAL):
            if gloo is not None:
                gloo.close_connections()
            if time.monotonic() > ends:
                raise RuntimeError(
                    f"a run of XLA has not ended {_ABORT_TIME:.0f} s after the failure of its generation"
                )
        with suppress(RuntimeFailure):
            self._disconnect()
        drain_calls(_END_TIME)
        process_sets.disconnect()
        if process_sets.retained is not None:
            process_sets.retained.disconnect()
        clients.forget()
        self.group_counts.clear()
        self.joined_at_first_use = False

    def _leave_at_exit(self) -> None:
        """Leave at the exit of a program that did not call `shutdown`."""
        member = self.member
        # A program that calls `shutdown` may catch its error.
        is_wrong = process_sets.member is not None and bool(process_sets.member.mismatches)
        if member is not None:
            try:
                self.leave()
            except (PeerFailure, RuntimeFailure) as error:
                _log.warning("%s", error)
                is_wrong = is_wrong or isinstance(error, ProgramMismatch) or process_sets.may_wait()
        drain_calls(_END_TIME)
        # If a process is lost, XLA's runs end at XLA's timeout: one run, and another one that waits for it.
        ends_by_exception = member is not None and member.has_uncaught_exception
        has_ended = process_sets.drain(_END_TIME if ends_by_exception else 2 * self.timeouts.peer + _END_TIME)
        if not has_ended or is_wrong:  # Python would exit with 0
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    def _disconnect(self) -> None:
        """Disconnect from XLA's service first, because XLA aborts a process that loses it."""
        member, self.member = self.member, None
        if member is None or not member.mismatches:  # otherwise values are wrong, and reads still raise an error
            process_sets.member = None
        is_lost = member is not None and member.error("", ()) is not None
        if process_sets.executables is not None:
            process_sets.executables.close()
            process_sets.executables = None
        with suppress(RuntimeFailure) if is_lost else nullcontext():
            self._disconnect_service()
        if member is not None:
            member.close()
        if self._coordinator is not None:
            if member is not None and not member.failures:  # otherwise the coordinator runs on for other processes
                self._coordinator.wait(_COORDINATOR_END_TIME)
            self._coordinator = None

    def _abandon(self) -> None:
        """Discard an incomplete cluster, in which threads may wait in XLA."""
        member, self.member, process_sets.member = self.member, None, None
        self._coordinator = None
        if self._store is None:  # XLA would abort this process if its client lost the service while it connects
            self._inherited.append(self._relay)
            self._relay = None
        else:
            with suppress(RuntimeFailure):
                self._disconnect_service()
        atexit.register(drain_calls, _END_TIME)
        if member is not None:
            member.close()

    def _forget_in_child(self) -> None:
        """Detach a forked child from the cluster. The child must neither send messages nor keep sockets open."""
        member, relay, coordinator = self.member, self._relay, self._coordinator
        self._inherited += [self._store, relay, coordinator]
        self.member = self._store = self._relay = self._coordinator = None
        process_sets.disconnect()
        if member is not None:
            member.abandon()
        if relay is not None:
            relay.abandon()
        if coordinator is not None:
            coordinator.abandon()

    def _stop_coordinator(self) -> None:
        if self._coordinator is not None:
            self._coordinator.kill()
            self._coordinator = None


def _create_record(member: Member, generation: int | None) -> LaunchRecord | None:
    """Create the file in which this process records its launches; None if there is none, or it cannot be written."""
    folder = config.launch_record_dir
    if not folder:
        return None
    restart = int(os.environ.get(RESTART_COUNT, "0")) if generation is None else generation
    restarted = f".restart{restart}" if restart else ""
    path = Path(folder).expanduser() / f"rank{member.rank}{restarted}{RECORD_SUFFIX}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return LaunchRecord(path, member.rank, member.num_processes, lambda: member.step)
    except OSError as error:
        _log.warning("launches are not recorded: %s", error)
        return None


def _cluster_plugins(requested: str) -> list[Plugin]:
    """Return the plugins to try for the default platform: that of the requested platform, or all by priority."""
    if not requested:
        return list(plugins.defaults())
    plugin = None if requested == "cpu" else plugins.get(requested)
    return [] if plugin is None else [plugin]


def _set_collective_timeout(seconds: float) -> None:
    """Limit the time that XLA's CPU collectives wait, which is half an hour by default. XLA reads its flags once.

    Where Python waits, it detects the timeout itself and has more information, so XLA's timeout is slightly longer.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if _COLLECTIVE_TIMEOUT_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_COLLECTIVE_TIMEOUT_FLAG}={math.ceil(seconds) + 2}".strip()


def _requirements() -> dict[str, str]:
    """Return versions, flags and settings that must be equal in all processes."""
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(_LOCAL_FLAGS)]
    return {
        "the version of Python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "the version of shardwise": __version__,
        "the version of jaxlib": jaxlib_version(),
        "the processor": platform.machine(),
        "XLA_FLAGS": " ".join(sorted(flags)),
        "the setting platforms": config.platforms,
        "the PJRT plugins": ", ".join(plugin.name for plugin in _cluster_plugins(clients.requested())),
        "the setting enable_x64": str(config.enable_x64),
    }


cluster = _Cluster()
