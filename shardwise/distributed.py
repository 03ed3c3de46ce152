"""Many processes as one program: every process calls `initialize` first, and then runs the same code."""

from shardwise.runtime.cluster import cluster


def initialize(
    coordinator_address: str, num_processes: int, process_id: int, *, initialization_timeout: int = 60
) -> None:
    """Join the cluster. Process 0 hosts the coordination service at `coordinator_address` (host:port).

    Afterwards `devices()` are those of all processes, and `local_devices()` those of this one. The port has no
    authentication: use an address that only the cluster can reach.
    """
    cluster.join(coordinator_address, num_processes, process_id, initialization_timeout)


def shutdown() -> None:
    """Wait for the other processes, and leave the cluster."""
    cluster.leave()


def is_initialized() -> bool:
    """Whether this process is in a cluster.

    >>> jax.distributed.is_initialized()
    False
    """
    return cluster.store is not None
