"""Launched process: a process that `shardwise launch` started joins the others at its first use of a device.

Without this, a program that uses a device without `distributed.initialize` would run once per process, independently.
Processes that a launched process starts inherit the launcher's variables. They do not join, because their rank is
taken. A launched process is a child of the launcher and a session leader; its descendants are not both.
"""

import logging
import os
from typing import Any

from shardwise.processes.environment import PROCESS_ID, ProcessEnvironment, find_processes
from shardwise.processes.variables import LAUNCHER_PID
from shardwise.runtime.cluster import Timeouts, cluster
from shardwise.runtime.generations import generations
from shardwise.runtime.process_set_registry import process_sets
from shardwise.runtime.retained_executables import RetainedExecutables

_log = logging.getLogger("shardwise")
_last_options: dict[str, Any] = {}  # of the last `join_processes`


def join_at_first_use() -> None:
    """Join the launcher's processes if the launcher started this process. In a descendant of one, log a warning.

    Raises:
        RendezvousError: if the coordinator cannot be reached, or a process is missing.
        ValueError: if the launcher's variables were changed.
    """
    if is_launched():
        take_first_place()
        join_processes(find_processes())
        cluster.joined_at_first_use = True
        return
    _log.warning(
        "process %d was started by process %s of `shardwise launch`, and uses devices of its own. To use the devices "
        "of all processes here, call distributed.initialize() first, and use no device in process %s",
        os.getpid(),
        *[os.environ.get(PROCESS_ID, "?")] * 2,
    )


def is_launched() -> bool:
    """Return whether the launcher started this process itself."""
    is_child = os.environ.get(LAUNCHER_PID) == str(os.getppid())
    # If the launcher is process 1 of a container, orphans are its children too.
    return is_child and os.getsid(0) == os.getpid()


def take_first_place() -> None:
    """If the launcher replaces processes that fail, wait for the place of this process, which may be a spare."""
    if generations.are_possible and is_launched() and generations.number < 0:
        process_sets.retained = RetainedExecutables()
        generations.take_place()


def join_next_generation(step: int | None, reason: str) -> None:
    """Wait for a place in the next generation, and join its processes as those of the last one.

    Args:
        step: the last step that this process has reached.
        reason: why the last generation has ended.

    Raises:
        RendezvousError: if the launcher cannot be reached, or a process is missing.
        PeerFailure: if a process fails before all have joined.
    """
    generations.take_place(step, reason)
    join_processes(find_processes(), **_last_options)


def join_processes(
    processes: ProcessEnvironment,
    *,
    initialization_timeout: float = Timeouts.initialization,
    heartbeat_timeout: float = Timeouts.heartbeat,
    shutdown_timeout: float = Timeouts.shutdown,
    peer_timeout: float | None = None,
    partition_index: int | None = None,
) -> None:
    """Join the cluster that arguments and environment variables describe.

    Args:
        processes: the description.
        initialization_timeout: the time until all processes must be present.
        heartbeat_timeout: the silence after which a process counts as lost.
        shutdown_timeout: the time that this process waits for the others at its end, unless `peer_timeout` is shorter.
        peer_timeout: the time that a program waits for another process in a collective; by default the launcher's.
        partition_index: the index of this process's group of GPUs with a fast network.
    """
    _last_options.update(
        initialization_timeout=initialization_timeout,
        heartbeat_timeout=heartbeat_timeout,
        shutdown_timeout=shutdown_timeout,
        peer_timeout=peer_timeout,
        partition_index=partition_index,
    )
    chosen_timeout = peer_timeout or processes.peer_timeout
    if chosen_timeout is not None:  # a process also waits for the others at its end
        shutdown_timeout = min(shutdown_timeout, chosen_timeout)
    peer = chosen_timeout or Timeouts.peer
    cluster.join(
        processes.coordinator_address,
        processes.num_processes,
        processes.process_id,
        timeouts=Timeouts(initialization_timeout, heartbeat_timeout, shutdown_timeout, peer),
        bind_address=processes.coordinator_bind_address,
        token=processes.token,
        hosts_coordinator=not processes.has_launcher,
        local_device_ids=processes.local_device_ids,
        partition_index=partition_index,
        generation=generations.number if generations.number >= 0 else None,
        newcomers=generations.newcomers,
    )
