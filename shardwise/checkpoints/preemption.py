"""Preemption: a SIGTERM to any process makes all processes save the same step and stop."""

import signal
import threading
from types import FrameType
from typing import Any, final

from shardwise.runtime.cluster import cluster
from shardwise.runtime.preemption import preemption


@final
class Preemption:
    """Notices SIGTERM: in a cluster by XLA's preemption manager, which agrees with the other processes on the step."""

    def __init__(self) -> None:
        self.is_signalled = False
        self._uses_xla = False

    def install(self) -> None:
        """Notice SIGTERM from now on. Without a cluster, only the main thread can."""
        self._uses_xla = cluster.store is not None
        if self._uses_xla:
            preemption.watch(cluster.store)
        else:
            _shared.add(self)

    def uninstall(self) -> None:
        """Handle SIGTERM as before, if no other object notices it.

        A SIGTERM that came too late for a step to be saved has its effect now: it ends the process by default.

        Raises:
            BaseException: the exception of the program's own handler, if it raised one.
        """
        if self._uses_xla:
            preemption.unwatch()
        else:
            _shared.remove(self)
        self._uses_xla = False

    def has_reached_last_step(self) -> bool:
        """Return whether all processes save the step that they have reached, and stop; they call it in every step."""
        if self._uses_xla:
            return preemption.has_reached_sync_point()
        if self.is_signalled:
            _shared.is_answered = True
        return self.is_signalled


@final
class _SharedHandler:
    """The handler of SIGTERM while objects notice it, in any number, which come and go in any order.

    The program's handler is called too. Its exceptions are raised after the last object is removed, so that the step
    is saved before.
    """

    def __init__(self) -> None:
        self.is_answered = True  # whether an object has returned from `has_reached_last_step` that a SIGTERM came
        self._preemptions: list[Preemption] = []
        self._installed: _Handler | None = None
        self._raised: BaseException | None = None

    def add(self, notified: Preemption) -> None:
        """Notify an object of SIGTERM from now on."""
        self._preemptions.append(notified)
        current = signal.getsignal(signal.SIGTERM)
        # Another handler than the installed one is the program's, which may call the installed one in turn.
        if _is_main_thread() and (self._installed is None or current is not self._installed):
            self._installed = _Handler(self, current)
            signal.signal(signal.SIGTERM, self._installed)

    def remove(self, notified: Preemption) -> None:
        """Notify an object no longer. After the last one, handle SIGTERM as before."""
        if notified not in self._preemptions:
            return
        self._preemptions.remove(notified)
        if self._preemptions:
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
        """Tell all objects that a SIGTERM came. Return whether there are any."""
        for notified in self._preemptions:
            notified.is_signalled = True
            self.is_answered = False
        return bool(self._preemptions)

    def keep(self, raised: BaseException) -> None:
        """Keep an exception of the program's handler until the last object is removed."""
        self._raised = raised


@final
class _Handler:
    """A handler of SIGTERM, and the one that it replaced; None if that is not Python's."""

    def __init__(self, shared: _SharedHandler, previous: Any):
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
            # The last object was removed in another thread, which cannot change handlers.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


_shared = _SharedHandler()
