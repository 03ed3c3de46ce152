"""Multi-process programs: every process calls `initialize` first and then runs the same program."""

import operator
from collections.abc import Sequence

from shardwise.base.lazy import publish
from shardwise.processes.environment import find_processes
from shardwise.processes.number_checks import MAX_PROCESSES, check_integer, check_seconds
from shardwise.runtime.cluster import cluster
from shardwise.runtime.launched_process import join_processes, take_first_place


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
    peer_timeout: float | None = None,
) -> None:
    """Connect this process to the others.

    Afterwards `devices()` returns the devices of all processes, and `local_devices()` those of this one. The processes
    meet at a coordinator, which process 0 starts as a child process, or `shardwise launch`. It listens on the address
    that you pass and nowhere else: XLA's coordination service, which it hosts, has no authentication.

    Under `shardwise launch`, a process that uses a device without this call joins the others at that first use.

    The first three arguments are found if they are omitted: from `shardwise launch`, from the variables
    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or under Slurm, Open MPI, PMI, Kubernetes indexed
    jobs and TPU pods.

    Args:
        coordinator_address: the `host:port` of the coordinator.
        num_processes: the number of processes.
        process_id: the number of this process, from 0.
        local_device_ids: the GPUs that this process uses; by default all of its machine, or one per process under
            a launcher or scheduler.
        cluster_detection_method: the source of omitted arguments: launcher, variables, slurm, ompi, pmi, k8s or tpu;
            by default the first that is present. With deactivate, arguments and plain variables only.
        initialization_timeout: the seconds to wait for the other processes.
        heartbeat_timeout_seconds: the seconds of silence after which a process counts as lost.
        shutdown_timeout_seconds: the seconds to wait for the other processes at the end, if `peer_timeout` is not less.
        coordinator_bind_address: the `host:port` that the coordinator listens on, if it is not `coordinator_address`.
        slice_index: another name for `partition_index`.
        partition_index: the index of the group of GPUs with a fast network that this process belongs to.
        peer_timeout: the seconds that a process waits for another one before it raises `PeerFailure`: in a collective,
            after the rendezvous, and at the end; by default the launcher's `--timeout`, or 300. A process that dies is
            noticed at once.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if an argument is missing or out of range, variables contradict each other, or processes pass
            different numbers.
        RendezvousError: if the coordinator cannot be reached, a process is missing or came twice, or versions differ.
        PeerFailure: if a process fails after all have met, before this returns.
        RuntimeError: if a device was used before, which joins under `shardwise launch`, or `initialize` was called.
        OSError: if process 0 cannot listen on the port.
    """
    for name, seconds in {
        "initialization_timeout": initialization_timeout,
        "heartbeat_timeout_seconds": heartbeat_timeout_seconds,
        "shutdown_timeout_seconds": shutdown_timeout_seconds,
    }.items():
        check_seconds(name, seconds, minimum=1)  # XLA's are integers
    if peer_timeout is not None:
        check_seconds("peer_timeout", peer_timeout)
    for name, index in {"slice_index": slice_index, "partition_index": partition_index}.items():
        if index is not None:
            check_integer(name, index, 0, MAX_PROCESSES - 1)
    take_first_place()
    processes = find_processes(
        coordinator_address=coordinator_address,
        num_processes=num_processes,
        process_id=process_id,
        local_device_ids=local_device_ids,
        coordinator_bind_address=coordinator_bind_address,
        cluster_detection_method=cluster_detection_method,
    )
    join_processes(
        processes,
        initialization_timeout=initialization_timeout,
        heartbeat_timeout=heartbeat_timeout_seconds,
        shutdown_timeout=shutdown_timeout_seconds,
        peer_timeout=peer_timeout,
        partition_index=slice_index if partition_index is None else partition_index,
    )


def shutdown() -> None:
    """Wait for the other processes and disconnect. A program that ends without it disconnects too.

    Raises:
        RuntimeError: if `initialize` was not called.
        PeerFailure: if a process does not come within `shutdown_timeout_seconds`.
    """
    cluster.leave()


def is_initialized() -> bool:
    """Return whether this process has joined others, by `initialize` or by `shardwise launch`.

    Returns:
        True between `initialize`, or the first use of a device under `shardwise launch`, and `shutdown`.

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

    Raises:
        TypeError: if `step` is not an integer.

    Example:
        >>> jax.distributed.report_step(7)
    """
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"report_step needs the number of the step, an integer, not {step!r}") from None
    if cluster.member is not None:
        cluster.member.report_step(number)


publish(__name__)
