"""Who watches the programs that are compiled and run: nobody, as a rule, and then it costs one look."""

from collections.abc import Callable
from threading import Lock
from typing import Any

LaunchHook = Callable[[Any, bool], None]  # is called with a `Launch`, and whether it runs now or else was compiled


class _Watchers:
    def __init__(self) -> None:
        self.hooks: tuple[LaunchHook, ...] = ()
        self._lock = Lock()

    def add(self, watcher: LaunchHook) -> None:
        with self._lock:
            self.hooks = (*self.hooks, watcher)

    def remove(self, watcher: LaunchHook) -> None:
        with self._lock:
            self.hooks = tuple(other for other in self.hooks if other != watcher)

    def notify(self, launch: Any, runs: bool) -> None:
        for see in self.hooks:
            see(launch, runs)


launch_hooks = _Watchers()
