"""Preemption: agree on the step at which all processes save, after one of them received SIGTERM."""

import signal
import threading
from typing import Any, final

from shardwise.base._jaxlib import Store, preemption_sync_manager


@final
class _Preemption:
    """XLA's preemption manager for the cluster of this process.

    XLA compares step numbers, which must increase by one from call to call, in the same order in all processes. The
    steps of several callers do not, so the calls are counted instead. Once XLA returns True for one call, all later
    calls do.
    """

    def __init__(self) -> None:
        self._reset(None)

    def _reset(self, store: Store | None) -> None:
        self._store = store
        self._manager: Any = None
        self._watchers = 0
        self._previous: Any = None  # the handler of SIGTERM before XLA's
        self._calls = 0
        self._is_reached = False
        self._has_sync_point_caller = False
        self._has_reported_sync_point = False

    def watch(self, store: Store) -> None:
        """Catch SIGTERM, which otherwise ends the process, until `unwatch` is called as often.

        Meanwhile, XLA's handler replaces the program's handler. `store` is the cluster's.
        """
        if self._store is not store:
            self._reset(store)
        self._watchers += 1
        if self._watchers == 1:
            self._previous = signal.getsignal(signal.SIGTERM)  # XLA replaces it without notifying Python
            self._manager = None  # if there are two managers, only one is notified
            self._manager = preemption_sync_manager(store)

    def unwatch(self) -> None:
        """Restore the SIGTERM handler from before the first `watch`, at the last `unwatch`; in the main thread."""
        self._watchers -= 1
        is_main_thread = threading.current_thread() is threading.main_thread()
        if self._watchers == 0 and self._previous is not None and is_main_thread:
            signal.signal(signal.SIGTERM, self._previous)

    def has_reached_sync_point(self) -> bool:
        """Return whether all processes should save from this call on. All make the same calls, in the same order."""
        if not self._is_reached and self._manager is not None:
            self._calls += 1
            self._is_reached = bool(self._manager.reached_sync_point(self._calls))
        return self._is_reached

    def reached_sync_point(self, store: Store | None) -> bool:
        """Return True at one call after a SIGTERM, the same call in all processes. `store` is None without a cluster.

        The first call watches for SIGTERM until the program ends.
        """
        if store is None:
            return False
        if self._store is not store or not self._has_sync_point_caller:
            self.watch(store)
            self._has_sync_point_caller = True
        is_first = self.has_reached_sync_point() and not self._has_reported_sync_point
        self._has_reported_sync_point |= is_first
        return is_first


preemption = _Preemption()
