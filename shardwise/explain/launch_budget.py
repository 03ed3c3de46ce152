"""LaunchBudget: the base class of budgets, which record the programs that are compiled or run in a block."""

from abc import abstractmethod
from collections import Counter
from contextlib import ContextDecorator
from threading import get_ident
from types import TracebackType
from typing import Self

from shardwise.execute.launch_hooks import LaunchedProgram, launch_hooks


class LaunchBudget(ContextDecorator):
    """A context manager that records the programs of this thread, and checks them at the end of the block.

    An error inside the block is not replaced by that of the budget. As a decorator, it checks every call separately.
    """

    def __init__(self) -> None:
        self._calls: Counter[LaunchedProgram] = Counter()
        self._compiled: set[LaunchedProgram] = set()
        self._thread = 0

    @abstractmethod
    def check(self) -> None:
        """Raise an AssertionError if the programs so far exceed the budget."""

    @abstractmethod
    def _recreate_cm(self) -> Self:
        """Return a new budget with the same limits: calls of a decorated function may overlap."""

    def __enter__(self) -> Self:
        self._calls.clear()
        self._compiled.clear()
        self._thread = get_ident()
        launch_hooks.add(self._record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        launch_hooks.remove(self._record)
        if error is None:
            self.check()

    def _record(self, launch: LaunchedProgram, runs: bool) -> None:
        if get_ident() == self._thread:
            if runs:
                self._calls[launch] += 1
            else:
                self._compiled.add(launch)

    def _programs(self) -> dict[LaunchedProgram, int]:
        """Return the programs so far, with their number of calls; 1 for a program that was only compiled."""
        return {**dict.fromkeys(self._compiled, 1), **self._calls}
