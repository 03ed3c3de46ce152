"""Options of `shardwise launch`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from shardwise.base.config import MAX_CPU_DEVICES, config
from shardwise.processes import environment
from shardwise.processes.number_checks import (
    MAX_PROCESSES,
    MAX_PROCESSES_PER_NODE,
    check_integer,
    check_seconds,
)
from shardwise.processes.protocol import split_address

MAX_RESTARTS = 10**6
# Seconds until all processes must have called `distributed.initialize`, or wait for a place: the default, and the
# minimum. Imports come first.
INITIALIZATION_TIMEOUT, MIN_INITIALIZATION_TIMEOUT = 300.0, 60.0


@final
@dataclass(frozen=True)
class LaunchOptions:
    """The options of a launch. A number that is out of range is a ValueError that names the option.

    Attributes:
        command: the command line of each process.
        processes: the number of processes that this launcher starts.
        devices_per_process: the number of virtual CPU devices or GPUs of each process, or None for the defaults.
        nodes: the number of launchers, each of which starts `processes` processes.
        node_rank: the index of this launcher. Launcher 0 hosts the coordinator.
        coordinator: the `host:port` of the coordinator, or "" for a free port of the loopback address.
        spares: the number of spare processes of this launcher, which take the places of processes that fail, on any
            node; None if no process is replaced.
        spare_nodes: the number of nodes all of whose processes are spares at the start.
        min_processes: the fewest processes, on all nodes, that continue while others are replaced.
        replace_stragglers: whether a spare replaces a process that delays the others.
        max_restarts: how many times all processes are restarted after a failure.
        log_folder: the folder of the log files, or None for a temporary folder that is kept after a failure.
        timeout: the seconds that a process waits for others in a collective and, if it is more than a minute, also the
            seconds until all processes must have called `distributed.initialize`; None for the defaults.
        grace_period: the seconds that the processes have to end after SIGTERM.
    """

    command: Sequence[str]
    processes: int
    devices_per_process: int | None = None
    nodes: int = 1
    node_rank: int = 0
    coordinator: str = ""
    spares: int | None = None
    spare_nodes: int = 0
    min_processes: int = 1
    replace_stragglers: bool = False
    max_restarts: int = 0
    log_folder: Path | None = None
    timeout: float | None = None
    grace_period: float = 30.0

    def __post_init__(self) -> None:
        check_integer("-n", self.processes, 1, MAX_PROCESSES_PER_NODE)
        check_integer("--nodes", self.nodes, 1, MAX_PROCESSES // self.processes)
        if self.devices_per_process is not None:
            check_integer("--devices-per-process", self.devices_per_process, 1, MAX_CPU_DEVICES)
        check_integer(f"--node-rank (with --nodes {self.nodes})", self.node_rank, 0, self.nodes - 1)
        check_integer("--max-restarts", self.max_restarts, 0, MAX_RESTARTS)
        if self.spares is not None:
            check_integer("--spares", self.spares, 0, MAX_PROCESSES_PER_NODE - self.processes)
            if self.nodes > 1 and not os.environ.get(environment.TOKEN):
                raise ValueError(
                    f"--spares with several nodes needs {environment.TOKEN}: set it to a secret, the same on all "
                    "nodes, so that only the launchers of this job are accepted"
                )
            check_integer(f"--spare-nodes (with --nodes {self.nodes})", self.spare_nodes, 0, self.nodes - 1)
            if self.members == 1:
                raise ValueError(
                    "--spares needs -n 2 or more, or two nodes that are no spare nodes, because the state of a single "
                    "process is lost with it: use --max-restarts, and restore a checkpoint on disk"
                )
        elif self.min_processes != 1:
            raise ValueError("--min-processes needs --spares: otherwise no process continues after a failure")
        elif self.spare_nodes:
            raise ValueError("--spare-nodes needs --spares: --spares 0 if the spare nodes have all spare processes")
        if self.replace_stragglers and not self.spares and not self.spare_nodes:
            raise ValueError("--replace-stragglers needs --spares 1 or more: a spare takes the place of a slow process")
        if self.replace_stragglers and config.straggler_seconds <= 0:
            raise ValueError("--replace-stragglers needs the setting straggler_seconds (SHARDWISE_STRAGGLER_SECONDS)")
        count = f"-n {self.processes}"
        count += f" --nodes {self.nodes}" if self.nodes > 1 else ""
        count += f" --spare-nodes {self.spare_nodes}" if self.spare_nodes else ""
        check_integer(f"--min-processes (with {count})", self.min_processes, 1, self.members)
        if self.timeout is not None:
            check_seconds("--timeout", self.timeout)
        check_seconds("--grace-period", self.grace_period, minimum=0)
        port = split_address(self.coordinator, "--coordinator")[1] if self.coordinator else 0
        if self.nodes > 1 and not port:
            raise ValueError(
                "--nodes needs --coordinator host:port: an address of node 0 that all nodes can reach, and a port that "
                "is not 0"
            )
        if self.nodes > 1 and self.max_restarts:
            raise ValueError("--max-restarts needs one node: on several nodes, let the scheduler start the job again")

    def device_ids(self, index: int) -> str:
        """Return the GPUs of the process with an index on its node, separated by commas."""
        count = self.devices_per_process or 1
        return ",".join(str(gpu) for gpu in range(index * count, (index + 1) * count))

    @property
    def members(self) -> int:
        """The number of processes that take part at the start, on all nodes."""
        return self.processes * (self.nodes - self.spare_nodes)

    @property
    def initialization_timeout(self) -> float:
        """The seconds until all processes must have called `distributed.initialize`, or wait for a place."""
        return max(self.timeout or INITIALIZATION_TIMEOUT, MIN_INITIALIZATION_TIMEOUT)

    @property
    def common(self) -> dict[str, str]:
        """The options of a launch with spares that must be equal on all nodes, except for --nodes."""
        values = {
            "-n": self.processes,
            "--spares": self.spares,
            "--spare-nodes": self.spare_nodes,
            "--min-processes": self.min_processes,
            "--replace-stragglers": self.replace_stragglers,
            "--devices-per-process": self.devices_per_process,
            "--timeout": self.timeout,
        }
        return {name: "not set" if value is None else str(value) for name, value in values.items()}

    @property
    def ranks(self) -> range:
        """The process ids of the processes that this launcher starts."""
        return range(self.node_rank * self.processes, (self.node_rank + 1) * self.processes)
