"""Preemption: a SIGTERM to any process makes all processes save the same step and stop."""

import os
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, final

from shardwise.runtime.cluster import cluster
from shardwise.runtime.preemption import preemption


@final
class Preemption:
    """Catches SIGTERM; in a cluster by XLA's preemption manager, which agrees with the other processes on the step."""

    def __init__(self) -> None:
        self.is_signalled = False
        self._uses_xla = False

    def install(self) -> None:
        """Catch SIGTERM from now on. Without a cluster, this works only in the main thread."""
        self._uses_xla = cluster.store is not None
        if self._uses_xla:
            preemption.watch(cluster.store)
        else:
            _shared.add(self)

    def uninstall(self) -> None:
        """Restore the previous handling of SIGTERM, if no other object catches it.

        A SIGTERM that came too late for a step to be saved takes effect now: by default, it ends the process.

        Raises:
            BaseException: the exception of the program's own handler, if it raised one.
        """
        if self._uses_xla:
            preemption.unwatch()
        else:
            _shared.remove(self)
        self._uses_xla = False

    def has_reached_last_step(self) -> bool:
        """Return whether all processes save the current step and stop. They call it in every step."""
        if self._uses_xla:
            return preemption.has_reached_sync_point()
        if self.is_signalled:
            _shared.is_answered = True
        return self.is_signalled


@final
class _SharedHandler:
    """The SIGTERM handler that any number of objects share, which may be added and removed in any order.

    The program's handler is called too. Its exceptions are raised after the last object is removed, so that the step is
    saved first. Objects of managers that were garbage-collected without `close` do not count, because SIGTERM would
    otherwise have no effect for the rest of the program.
    """

    def __init__(self) -> None:
        self.is_answered = True  # whether `has_reached_last_step` of an object has reported the SIGTERM
        self._references: list[weakref.ref[Preemption]] = []
        self._installed: _Handler | None = None
        self._raised: BaseException | None = None

    def add(self, notified: Preemption) -> None:
        """Notify an object of SIGTERM from now on."""
        self._references.append(weakref.ref(notified))
        current = signal.getsignal(signal.SIGTERM)
        # If the current handler is not the installed one, it is the program's, which may call the installed one in
        # turn.
        if _is_main_thread() and (self._installed is None or current is not self._installed):
            self._installed = _Handler(self, current)
            signal.signal(signal.SIGTERM, self._installed)

    def remove(self, notified: Preemption) -> None:
        """Stop notifying an object. After the last one, restore the previous handling of SIGTERM."""
        alive = self._alive()
        if notified not in alive:
            return
        self._references = [weakref.ref(each) for each in alive if each is not notified]
        if self._references:
            return
        handler = self._installed
        is_current = handler is not None and signal.getsignal(signal.SIGTERM) is handler
        if handler is not None and is_current and handler.previous is not None and _is_main_thread():
            signal.signal(signal.SIGTERM, handler.previous)
            self._installed = None
            if not self.is_answered and handler.previous is signal.SIG_DFL:
                signal.raise_signal(signal.SIGTERM)
        self.is_answered = True
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised

    def notify(self) -> bool:
        """Notify all objects of a SIGTERM. Return whether there are any."""
        alive = self._alive()
        for notified in alive:
            notified.is_signalled = True
            self.is_answered = False
        return bool(alive)

    def keep(self, raised: BaseException) -> None:
        """Keep an exception of the program's handler until the last object is removed."""
        self._raised = raised

    def reset_in_child(self) -> None:
        """Restore the previous handling of SIGTERM in a forked process, such as a data-loading worker.

        It does not save, and `multiprocessing` ends it by SIGTERM.
        """
        handler = self._installed
        self._references = []
        self._installed = self._raised = None
        self.is_answered = True
        is_current = handler is not None and signal.getsignal(signal.SIGTERM) is handler
        if handler is not None and is_current and handler.previous is not None:
            signal.signal(signal.SIGTERM, handler.previous)

    def _alive(self) -> list[Preemption]:
        """Return the objects that were neither removed nor garbage-collected."""
        return [notified for reference in self._references if (notified := reference()) is not None]


@final
class _Handler:
    """A SIGTERM handler, and the handler that it replaced; None if that is not Python's."""

    def __init__(self, shared: _SharedHandler, previous: Callable[[int, FrameType | None], Any] | int | None):
        self.previous = previous
        self._shared = shared

    def __call__(self, number: int, frame: FrameType | None) -> None:
        has_objects = self._shared.notify()
        if callable(self.previous):
            try:
                self.previous(number, frame)
            except BaseException as error:
                if not has_objects:
                    raise
                self._shared.keep(error)
        elif not has_objects and self.previous is signal.SIG_DFL and signal.getsignal(number) is self:
            # The last object was garbage-collected, or removed in another thread, where handlers cannot be changed.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


_shared = _SharedHandler()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_shared.reset_in_child)
