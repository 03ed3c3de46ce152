"""ThreadGuard: restrict multi-process programs to one thread.

All processes must launch such programs in one order, which concurrent threads do not guarantee.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any, final

_Run = Callable[[list[Any]], Any]


@final
class _ThreadGuard:
    """The thread that may launch multi-process programs; None if all threads may."""

    def __init__(self) -> None:
        self._thread: int | None = None

    @contextmanager
    def set(self, is_on: bool) -> Iterator[None]:
        """Enable the guard for this thread, or disable it, in a `with` block."""
        before = self._thread
        if is_on and before not in (None, get_ident()):
            raise RuntimeError(
                "thread_guard: another thread has set the thread guard. Nested thread guards in different threads are "
                "not supported: set it in one thread only."
            )
        self._thread = get_ident() if is_on else None
        try:
            yield
        finally:
            self._thread = before

    def guarded(self, run: _Run, devices: Sequence[Any]) -> _Run:
        """Return the function that runs a program, with a check of the calling thread if other processes take part."""
        process = devices[0].client.process_index()
        if all(device.process_index == process for device in devices):
            return run

        def check_and_run(buffers: list[Any]) -> Any:
            if self._thread is not None and self._thread != get_ident():
                raise RuntimeError(
                    "a program on devices of several processes is launched in another thread than the one where the "
                    "thread guard was set. Processes could launch programs of several threads in different orders, and "
                    "wait for each other for ever: launch them all in one thread."
                )
            return run(buffers)

        return check_and_run


guard = _ThreadGuard()
