"""Who watches the programs that are compiled and run: nobody, as a rule, and then it costs one look."""

from collections.abc import Callable
from threading import Lock
from typing import Any

Watcher = Callable[[Any, bool], None]  # is called with a `Launch`, and whether it runs now or else was compiled


class _Watchers:
    def __init__(self) -> None:
        self.seeing: tuple[Watcher, ...] = ()
        self._lock = Lock()

    def add(self, watcher: Watcher) -> None:
        with self._lock:
            self.seeing = (*self.seeing, watcher)

    def remove(self, watcher: Watcher) -> None:
        with self._lock:
            self.seeing = tuple(other for other in self.seeing if other != watcher)

    def tell(self, launch: Any, runs: bool) -> None:
        for see in self.seeing:
            see(launch, runs)


watchers = _Watchers()
