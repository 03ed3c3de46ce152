"""Prefetcher: an iterator that a background thread reads ahead, a bounded number of items."""

import threading
import weakref
from collections import deque
from collections.abc import Generator
from typing import Any, final

_SECONDS_AT_EXIT = 5.0  # how long the end of the program waits for a source that does not return


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

    def put(self, item: Any) -> None:
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


def _stop(buffer: _Buffer, thread: threading.Thread) -> None:
    """End the thread: when its owner is collected, and when the program ends."""
    buffer.close()
    if thread is not threading.current_thread():
        thread.join(_SECONDS_AT_EXIT)


@final
class Prefetcher:
    """Read a generator in a background thread, at most `size` items ahead of the consumer.

    An exception of the generator is raised by `__next__`, after the items before it, with the traceback of the thread.
    """

    def __init__(self, items: Generator[Any, None, None], size: int):
        self._buffer = _Buffer(size)
        self._thread = threading.Thread(
            target=_fill, args=(items, self._buffer), name="shardwise-prefetch", daemon=True
        )
        # The thread does not refer to this object, which can therefore be collected, and ends the thread then.
        weakref.finalize(self, _stop, self._buffer, self._thread)
        self._thread.start()

    def __next__(self) -> Any:
        return self._buffer.get()

    def close(self) -> None:
        """End the thread, and wait for it: the source is not used any more when this returns."""
        self._buffer.close()
        self._thread.join()
