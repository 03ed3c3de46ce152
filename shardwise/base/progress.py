"""Progress of work that may take long, such as a compilation: one line with its title, its stage and its duration.

The line appears after `DELAY` seconds, on standard error if it is a terminal, or below the running cell of a notebook,
and is removed at the end. A thread writes it, because XLA compiles in one call; the thread ends with the work. There is
neither a line nor a thread elsewhere, or if the setting `progress` is off.
"""

import contextvars
import os
import sys
import threading
import time
from contextlib import suppress
from typing import Protocol, TextIO, final

from shardwise.base.config import config
from shardwise.base.notebook import OutputLine, is_notebook

DELAY = 5.0  # seconds of work before the line appears
INTERVAL = 1.0  # seconds between its updates
_COLUMNS = 80  # of a terminal that does not report its width


class _Line(Protocol):
    """A line that can be replaced and removed."""

    def show(self, text: str) -> None: ...
    def remove(self) -> None: ...


class _RunningTasks(threading.local):
    """The tasks of this thread, outermost first."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []


_running = _RunningTasks()
_display = threading.Lock()  # held by the thread whose line is shown: there is one at a time


@final
class Task:
    """Work that may take long, as a `with` block. The outermost task of a thread shows its progress.

    Attributes:
        title: the work and its object, such as "compiling `train_step`".
        stage: the part of it that is running, or "".
    """

    def __init__(self, title: str):
        self.title = title
        self.stage = ""
        self._ticker: _Ticker | None = None

    def __enter__(self) -> "Task":
        tasks = _running.tasks
        tasks.append(self)
        if len(tasks) == 1 and (line := _available_line()) is not None:
            self._ticker = _Ticker(tasks, line)
        return self

    def __exit__(self, *error: object) -> None:
        if self._ticker is not None:
            self._ticker.stop()
        _running.tasks.pop()


def set_stage(stage: str) -> None:
    """Set the stage of the innermost task of this thread, if there is one."""
    if tasks := _running.tasks:
        tasks[-1].stage = stage


class _Ticker:
    """A thread that shows the state of tasks in a line until it is stopped."""

    def __init__(self, tasks: list[Task], line: _Line):
        self._tasks, self._line = tasks, line
        self._start = time.monotonic()
        self._ended = threading.Event()
        self._process = os.getpid()
        # In its own context, the thread would not know to which cell of a notebook its outputs belong.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Remove the line, and wait for the end of the thread. A forked process does not have the thread."""
        if os.getpid() == self._process:
            self._ended.set()
            self._thread.join()

    def _run(self) -> None:
        is_shown, pause = False, DELAY
        while not self._ended.wait(pause):
            pause = INTERVAL
            is_shown = is_shown or _display.acquire(blocking=False)
            if is_shown:
                with suppress(OSError, ValueError):  # the terminal was closed
                    self._line.show(self._text())
        if is_shown:
            with suppress(OSError, ValueError):
                self._line.remove()
            _display.release()

    def _text(self) -> str:
        tasks = tuple(self._tasks)
        stages = [task.stage for task in tasks if task.stage]
        minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
        elapsed = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
        titles = [task.title for task in tasks[:1]]  # none if the work has ended meanwhile
        return ": ".join([*titles, ", ".join([*stages, elapsed])])


def _available_line() -> _Line | None:
    """Return a line that the user sees; None if there is none, or if the setting `progress` is off."""
    if not config.progress:
        return None
    if is_notebook():
        return OutputLine()
    return _TerminalLine(sys.stderr) if sys.stderr is not None and sys.stderr.isatty() else None


@final
class _TerminalLine:
    """The current line of a terminal.

    The cursor stays at its start, so that other output replaces the line instead of following it.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._width = 0

    def show(self, text: str) -> None:
        columns = os.get_terminal_size(self._stream.fileno()).columns or _COLUMNS
        if len(text) >= columns:  # the duration at the end stays
            stages, comma, elapsed = text.rpartition(", ")
            text = f"{stages[: columns - 2 - len(comma + elapsed)]}…{comma}{elapsed}"[: columns - 1]
        self._write(text.ljust(self._width))
        self._width = len(text)

    def remove(self) -> None:
        self._write(" " * self._width)
        self._width = 0

    def _write(self, text: str) -> None:
        self._stream.write(f"{text}\r")
        self._stream.flush()
