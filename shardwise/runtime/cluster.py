"""Cluster: several processes with one client, whose devices are those of all processes."""

import os
import time
from typing import Any

from shardwise._jaxlib import cluster_cpu_client, cluster_service, cluster_store, wait_for_all
from shardwise.config import config
from shardwise.runtime.client import clients

# In seconds. XLA's default of half an hour would be how long processes wait for one that died.
COLLECTIVE_TIMEOUT = 60
# In seconds. The others need a few milliseconds to disconnect after the last barrier.
DISCONNECT_TIME = 0.5


class _Cluster:
    """The connection of this process to a cluster, and the coordination service if this process hosts it."""

    def __init__(self) -> None:
        self.store: Any = None
        self.service: Any = None
        self.timeout = 0

    def join(self, address: str, processes: int, rank: int, timeout: int) -> None:
        """Connect to the cluster and create the client. Every process calls this once, before it uses a device."""
        if clients.exist:
            raise RuntimeError(
                "distributed.initialize must come before the first use of a device: call it at the start of the program"
            )
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"coordinator_address must be host:port, not {address!r}")
        if not 0 <= rank < processes:
            raise ValueError(f"process_id must be from 0 to {processes - 1} (num_processes={processes}), not {rank}")
        flag = "--xla_cpu_collective_timeout_seconds"
        flags = os.environ.get("XLA_FLAGS", "")
        if flag not in flags:
            os.environ["XLA_FLAGS"] = f"{flags} {flag}={COLLECTIVE_TIMEOUT}".strip()
        if rank == 0:
            self.service = cluster_service(address, processes, timeout)
        self.store = cluster_store(address, rank, timeout)
        self.timeout = timeout
        clients.set("cpu", cluster_cpu_client(self.store, rank, processes, config.num_cpu_devices, host))

    def leave(self) -> None:
        """Wait for all processes, and disconnect. The service stops last, after every process has disconnected."""
        if self.store is None:
            raise RuntimeError("distributed.shutdown needs distributed.initialize first")
        wait_for_all(self.store, "leave", self.timeout)
        self.store.shutdown()
        if self.service is not None:
            time.sleep(DISCONNECT_TIME)
            self.service.shutdown()
        self.store = self.service = None


cluster = _Cluster()
