"""Cluster: the processes of one program, whose clients have the devices of all of them.

`join` meets the other processes at the coordinator first, which raises exceptions if they do not fit together; then
XLA's clients connect, between CPUs with Gloo and between GPUs with NCCL.
"""

import atexit
import logging
import math
import os
import platform
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from shardwise._jaxlib import (
    RuntimeFailure,
    cluster_cpu_client,
    cluster_store,
    cuda_client,
    cuda_library,
    jaxlib_version,
)
from shardwise.config import config
from shardwise.errors import PeerFailure, ProgramMismatch
from shardwise.processes.coordinator_process import CoordinatorProcess
from shardwise.processes.member import Member, report_uncaught_exceptions
from shardwise.processes.number_checks import MAX_PROCESSES, check_integer
from shardwise.processes.protocol import join_address, resolve, split_address
from shardwise.runtime.client import clients
from shardwise.runtime.process_sets import process_sets
from shardwise.version import __version__

_COLLECTIVE_TIMEOUT_FLAG = "--xla_cpu_collective_timeout_seconds"
# XLA's flags that processes may have different values of: they change neither programs nor results.
_LOCAL_FLAGS = ("--xla_dump", "--xla_force_host_platform_device_count", _COLLECTIVE_TIMEOUT_FLAG)
_END_TIME = 1.0  # seconds for XLA's runs to end after a failure
_COORDINATOR_END_TIME = 5.0  # seconds for the coordinator's process to end after the last member

_log = logging.getLogger("shardwise")


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
        self.store: Any = None
        self.timeouts = Timeouts()
        self.joined_at_first_use = False
        self._coordinator: CoordinatorProcess | None = None
        self._pid = 0  # the process that has joined; not a child that it forks

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
    ) -> None:
        """Meet the other processes, and create the clients. Every process calls this once, before it uses a device.

        Args:
            address: the `host:port` of the coordinator.
            processes: the number of processes.
            rank: the number of this process.
            timeouts: the timeouts.
            bind_address: the `host:port` that the coordinator listens on, if it is not `address`.
            token: the secret that the coordinator expects.
            hosts_coordinator: whether process 0 starts the coordinator; False if a launcher hosts it.
            local_device_ids: the GPUs of this process; None for all GPUs of its machine.
            partition_index: the index of the group of GPUs with a fast network that this process belongs to.
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
            member = Member(host, port, rank, processes, token, _requirements(), timeouts.initialization)
        except BaseException:
            self._stop_coordinator()
            raise
        self.member = member
        self._pid = os.getpid()
        process_sets.connect(member, timeouts.peer)
        report_uncaught_exceptions(member)
        atexit.register(self._leave_at_exit)
        _bypass_proxies(host)
        engine = join_address(host, member.engine_port)
        self.store = cluster_store(engine, rank, int(timeouts.initialization), int(timeouts.heartbeat))
        member.report_connected()
        self._create_clients(rank, processes, local_device_ids, partition_index)

    def _create_clients(
        self, rank: int, processes: int, local_device_ids: Sequence[int] | None, partition_index: int | None
    ) -> None:
        """Create the client of the CPUs, and that of the GPUs if there are any. All processes create the same."""
        assert self.member is not None
        platforms = [name.strip() for name in config.platforms.split(",") if name.strip()]
        host = self.member.local_host
        clients.set("cpu", cluster_cpu_client(self.store, rank, processes, config.num_cpu_devices, host))
        if (platforms and platforms[0] == "cpu") or cuda_library() is None:
            return
        options: dict[str, Any] = {"node_id": rank, "num_nodes": processes}
        if local_device_ids is not None:
            options["visible_devices"] = list(local_device_ids)
        if partition_index is not None:
            options["partition_index"] = partition_index
        try:
            clients.set("gpu", cuda_client(options, self.store))
        except RuntimeFailure as error:
            if platforms:
                raise
            warnings.warn(
                f"The CUDA plugin is installed, but no GPU is available; programs run on the CPU. {error}", stacklevel=5
            )

    def leave(self) -> None:
        """Wait until all processes leave, and disconnect. If a process has failed, disconnect at once."""
        member = self.member
        if member is None:
            raise RuntimeError("distributed.shutdown needs distributed.initialize first")
        try:
            everyone_left = member.leave(self.timeouts.shutdown)
        finally:
            self._disconnect()
        if not everyone_left:
            raise PeerFailure(
                -1, None, f"not all processes reached distributed.shutdown within {self.timeouts.shutdown:.0f} s"
            )

    def _leave_at_exit(self) -> None:
        """Leave at the end of a program that did not call `shutdown`."""
        if os.getpid() != self._pid:
            return
        member = self.member
        is_mismatch = False
        if member is not None:
            try:
                self.leave()
            except (PeerFailure, RuntimeFailure) as error:
                _log.warning("%s", error)
                is_mismatch = isinstance(error, ProgramMismatch)
        # XLA's runs end at its timeout if a process is lost: a run, and another one that waits for it.
        ends_by_exception = member is not None and member.has_uncaught_exception
        has_ended = process_sets.drain(_END_TIME if ends_by_exception else 2 * self.timeouts.peer + _END_TIME)
        if not has_ended or is_mismatch:  # Python would exit with 0
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    def _disconnect(self) -> None:
        """Disconnect from XLA's service first: XLA aborts a process that loses it."""
        member, store = self.member, self.store
        self.member = self.store = process_sets.member = None
        if store is not None:
            store.shutdown()
        if member is not None:
            member.close()
        if self._coordinator is not None:
            if member is not None and not member.failures:  # otherwise others may still run, and it stays for them
                self._coordinator.wait(_COORDINATOR_END_TIME)
            self._coordinator = None

    def _stop_coordinator(self) -> None:
        if self._coordinator is not None:
            self._coordinator.kill()
            self._coordinator = None


def _set_collective_timeout(seconds: float) -> None:
    """Limit the time that XLA's CPU collectives wait: half an hour by default. XLA reads its flags once.

    Where Python waits, it notices the timeout itself, and knows more; so XLA's timeout is a little longer.
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
        "the setting enable_x64": str(config.enable_x64),
    }


def _bypass_proxies(host: str) -> None:
    """Let gRPC, which XLA's service uses, connect to the coordinator's host directly if proxy variables are set."""
    name = "no_grpc_proxy"  # gRPC reads it before `no_proxy`
    hosts = os.environ.get(name) or os.environ.get("no_proxy") or ""
    os.environ[name] = ",".join(filter(None, (hosts, host)))


cluster = _Cluster()
