"""Preemption: agree on the step at which all processes save, after one of them got SIGTERM."""

from typing import Any, final

from shardwise._jaxlib import preemption_sync_manager


@final
class _Preemption:
    """XLA's preemption manager for the cluster of this process, created at its first use."""

    def __init__(self) -> None:
        self._store: Any = None
        self._manager: Any = None

    def watch(self, store: Any) -> None:
        """Notice SIGTERM from now on, which ends the process otherwise. `store` is the cluster's."""
        if self._store is not store:
            self._manager = preemption_sync_manager(store)
            self._store = store

    def reached_sync_point(self, store: Any, step: int) -> bool:
        """Return whether all processes should save at this step. `store` is the cluster's; None without a cluster."""
        if store is None:
            return False
        self.watch(store)
        return bool(self._manager.reached_sync_point(step))


preemption = _Preemption()
