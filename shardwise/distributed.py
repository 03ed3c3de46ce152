"""Multi-process programs: every process calls `initialize` first and then runs the same program."""

from collections.abc import Sequence

from shardwise.lazy import set_public_names
from shardwise.runtime.cluster import Timeouts, cluster

__all__ = ["initialize", "is_initialized", "report_step", "shutdown"]


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: int | Sequence[int] | None = None,
    cluster_detection_method: str | None = None,
    initialization_timeout: int = 300,
    heartbeat_timeout_seconds: int = 100,
    shutdown_timeout_seconds: int = 300,
    coordinator_bind_address: str | None = None,
    slice_index: int | None = None,
    partition_index: int | None = None,
    *,
    peer_timeout: float = 300,
) -> None:
    """Connect this process to the others.

    Afterwards `devices()` returns the devices of all processes, and `local_devices()` those of this one. The processes
    meet at a coordinator, which process 0 starts as a child process, or `shardwise launch`. It listens on the address
    that you pass and nowhere else: XLA's coordination service, which it hosts, has no authentication.

    Args:
        coordinator_address: the `host:port` of the coordinator.
        num_processes: the number of processes.
        process_id: the number of this process, from 0.
        local_device_ids: the GPUs that this process uses; by default all of its machine.
        cluster_detection_method: how omitted arguments are found.
        initialization_timeout: the seconds to wait for the other processes.
        heartbeat_timeout_seconds: the seconds of silence after which a process counts as lost.
        shutdown_timeout_seconds: the seconds to wait for the other processes at the end.
        coordinator_bind_address: the `host:port` that the coordinator listens on, if it is not `coordinator_address`.
        slice_index: another name for `partition_index`.
        partition_index: the index of the group of GPUs with a fast network that this process belongs to.
        peer_timeout: the seconds that a program waits for another process in a collective before it raises
            `PeerFailure`. A process that dies is noticed at once.

    Raises:
        ValueError: if an argument is not valid, or processes pass different numbers.
        RendezvousError: if the coordinator cannot be reached, a process is missing or came twice, or versions differ.
        RuntimeError: if a device was used before, or `initialize` was called before.
        OSError: if process 0 cannot listen on the port.
    """
    del cluster_detection_method
    if coordinator_address is None or num_processes is None or process_id is None:
        raise ValueError("distributed.initialize needs coordinator_address, num_processes and process_id")
    cluster.join(
        coordinator_address,
        num_processes,
        process_id,
        timeouts=Timeouts(initialization_timeout, heartbeat_timeout_seconds, shutdown_timeout_seconds, peer_timeout),
        bind_address=coordinator_bind_address,
        local_device_ids=[local_device_ids] if isinstance(local_device_ids, int) else local_device_ids,
        partition_index=slice_index if partition_index is None else partition_index,
    )


def shutdown() -> None:
    """Wait for the other processes and disconnect. A program that ends without it disconnects too.

    Raises:
        RuntimeError: if `initialize` was not called.
        PeerFailure: if not all processes come within `shutdown_timeout_seconds`.
    """
    cluster.leave()


def is_initialized() -> bool:
    """Return whether this process has called `initialize`.

    Returns:
        True between `initialize` and `shutdown`.

    Example:
        >>> jax.distributed.is_initialized()
        False
    """
    return cluster.member is not None


def report_step(step: int) -> None:
    """Tell the other processes which step of the program this process has reached.

    `PeerFailure` then says after which step a process failed. Without `initialize`, nothing happens.

    Args:
        step: the number of the step.

    Returns:
        None.

    Example:
        >>> jax.distributed.report_step(7)
    """
    if cluster.member is not None:
        cluster.member.report_step(step)


set_public_names(__name__, __all__)
