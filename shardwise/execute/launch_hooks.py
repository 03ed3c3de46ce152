"""Hooks that are called when a program is compiled or launched. Without hooks, a launch pays for one check."""

from collections.abc import Callable
from threading import Lock
from typing import Any

LaunchHook = Callable[[Any, bool], None]  # called with the `Launch`, and with True if it runs, False if it was compiled


class _LaunchHooks:
    def __init__(self) -> None:
        self.hooks: tuple[LaunchHook, ...] = ()
        self._lock = Lock()

    def add(self, hook: LaunchHook) -> None:
        with self._lock:
            self.hooks = (*self.hooks, hook)

    def remove(self, hook: LaunchHook) -> None:
        with self._lock:
            self.hooks = tuple(other for other in self.hooks if other != hook)

    def notify(self, launch: Any, runs: bool) -> None:
        for hook in self.hooks:
            hook(launch, runs)


launch_hooks = _LaunchHooks()
