"""Multi-process programs: every process calls `initialize` first and then runs the same program."""

from shardwise.lazy import set_public_names
from shardwise.runtime.cluster import cluster

__all__ = ["initialize", "is_initialized", "shutdown"]


def initialize(
    coordinator_address: str, num_processes: int, process_id: int, *, initialization_timeout: int = 60
) -> None:
    """Connect this process to the others.

    Afterwards `devices()` returns the devices of all processes, and `local_devices()` those of this one. The
    coordination service has no authentication: use an address that only the cluster can reach.

    Args:
        coordinator_address: the `host:port` of the coordination service, which process 0 hosts.
        num_processes: the number of processes.
        process_id: the number of this process, from 0.
        initialization_timeout: the seconds to wait for the other processes.

    Raises:
        ValueError: if `coordinator_address` is not `host:port`, or `process_id` is out of range.
        RuntimeError: if a device was used before.
    """
    cluster.join(coordinator_address, num_processes, process_id, initialization_timeout)


def shutdown() -> None:
    """Wait for the other processes and disconnect.

    Raises:
        RuntimeError: if `initialize` was not called.
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
    return cluster.store is not None


set_public_names(__name__, __all__)
