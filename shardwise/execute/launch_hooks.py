"""Hooks that are called when a program is compiled or launched. Without hooks, a launch pays for one check."""

from collections.abc import Callable
from threading import Lock
from typing import Any, Protocol

from shardwise.runtime.memory_stats import MemoryStats


class LaunchedProgram(Protocol):
    """A compiled program: the request that it was planned from, and the chip, if it is not that of its devices."""

    @property
    def request(self) -> Any: ...

    @property
    def chip(self) -> Any: ...

    def memory_stats(self) -> MemoryStats | None:
        """Return XLA's statistics of the executable; None if they are not known."""

    def __hash__(self) -> int: ...


# Called with the program, and with True if it runs, False if it was compiled.
LaunchHook = Callable[[LaunchedProgram, bool], None]


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

    def notify(self, launch: LaunchedProgram, runs: bool) -> None:
        for hook in self.hooks:
            hook(launch, runs)


launch_hooks = _LaunchHooks()
