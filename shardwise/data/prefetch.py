"""Prefetcher: an iterator that a background thread reads ahead, a bounded number of items."""

import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Generator
from typing import Any, final

_SECONDS_TO_CLOSE = 5.0  # how long to wait for a source that does not return


@final
class _Buffer:
    """A queue of at most `size` items between one thread that puts them and one that gets them."""

    def __init__(self, size: int):
        self._size = size
        self._items: deque[Any] = deque()
        self._error: BaseException | None = None
        self._is_complete = False
        self._is_closed = False
        self._changed = threading.Condition()

    def wait_for_room(self) -> bool:
        """Wait until there is room for an item. Return False if the buffer is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._items) < self._size)
            return not self._is_closed

    def put(self, item: object) -> None:
        with self._changed:
            if not self._is_closed:
                self._items.append(item)
            self._changed.notify_all()

    def complete(self, error: BaseException | None) -> None:
        """Say that no more items follow, because of an error or because there are none."""
        with self._changed:
            self._is_complete, self._error = True, error
            self._changed.notify_all()

    def get(self) -> Any:
        """Return the next item. After the last one, raise the error of the other thread, or StopIteration."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._is_complete or self._is_closed)
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            if self._error is not None:
                raise self._error
            raise StopIteration

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()


def _fill(items: Generator[Any, None, None], buffer: _Buffer) -> None:
    try:
        while buffer.wait_for_room():
            try:
                item = next(items)
            except StopIteration:
                break
            buffer.put(item)
            del item  # the buffer alone keeps it alive
        items.close()
    except BaseException as error:
        buffer.complete(error)
    else:
        buffer.complete(None)


def _stop(buffer: _Buffer, thread: threading.Thread, source: str) -> None:
    """End the thread, and wait for it a bounded time. It is a daemon, so it does not keep the interpreter from exiting.

    This is called by `close`, when the owner of the thread is collected, and when the program ends.
    """
    buffer.close()
    if thread is threading.current_thread():
        return
    thread.join(_SECONDS_TO_CLOSE)
    if thread.is_alive():
        warnings.warn(
            f"the source {source} does not return: its thread still runs {_position(thread)}, {_SECONDS_TO_CLOSE:g} "
            "seconds after the iterator was closed. The thread is abandoned, and ends when the source returns; the "
            "source may not be usable before. Give its reads a timeout",
            RuntimeWarning,
            stacklevel=2,
        )


def _position(thread: threading.Thread) -> str:
    """Return the line of Python that a thread executes."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "" if frame is None else f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"


@final
class Prefetcher:
    """Read a generator in a background thread, at most `size` items ahead of the consumer.

    An exception of the generator is raised by `__next__`, after the items before it, with the traceback of the thread.

    Args:
        items: the generator.
        size: how many items to read ahead.
        source: the name of what the generator reads, for warnings.
    """

    def __init__(self, items: Generator[Any, None, None], size: int, source: str):
        self._buffer = _Buffer(size)
        thread = threading.Thread(target=_fill, args=(items, self._buffer), name="shardwise-prefetch", daemon=True)
        # The thread does not refer to this object, which can therefore be collected, and ends the thread then.
        self._finalizer = weakref.finalize(self, _stop, self._buffer, thread, source)
        thread.start()

    def __next__(self) -> Any:
        return self._buffer.get()

    def close(self) -> None:
        """End the thread, and wait for it: the source is not used any more when this returns.

        If the source does not return in a few seconds, a RuntimeWarning names it and the line that it executes.
        """
        self._finalizer()  # once: the end of the program does not wait again
