"""LaunchRecord: a file with the last launches of a process, which survives the process.

The file is mapped into memory, so that a launch costs no system call, and the kernel keeps what a killed process has
written. It has three parts: a status as JSON, with the time and the user's line, which is renewed with every heartbeat;
the programs as JSON lines, in order of their first launch; and a ring of launches. All numbers are little-endian.
"""

import json
import mmap
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, final

from shardwise.base.call_site import format_line, is_user_file
from shardwise.base.regular_file import read_regular_file
from shardwise.processes.protocol import split_ranks

RECORD_SUFFIX = ".record"
_MAGIC = b"shardwise record 1\n"
_STATUS, _STATUS_SIZE = 64, (1 << 14) - 64  # offset and size
_PROGRAMS, _PROGRAMS_SIZE = 1 << 14, 1 << 20
_RING, _SLOTS = _PROGRAMS + _PROGRAMS_SIZE, 4096
_SLOT = struct.Struct("<QdQqQ")  # the count of all launches, and the fields of `Launch`; a step of -1 is None
_SIZE = _RING + _SLOTS * _SLOT.size
_STEPS = 1 << 62  # steps from here on are not recorded
_MOST_COLLECTIVES = 32  # that a program lists
_STANDARD_LIBRARY = str(Path(os.__file__).parent) + os.sep
_MOST_TEXT = 2000  # characters of one text in the status


@final
@dataclass(frozen=True)
class RecordedProgram:
    """A program of a record.

    Attributes:
        name: its name.
        processes: the ranks of the processes that run it together, separated by commas.
        collectives: its first collectives, with their source lines.
        more: the number of further collectives.
    """

    name: str
    processes: str
    collectives: Sequence[str] = ()
    more: int = 0


@final
@dataclass(frozen=True)
class Launch:
    """A launch of a record.

    Attributes:
        time: the time, in seconds since the epoch.
        number: the number of launches on the processes of the program, from 1.
        step: the last step that the process had reported; None before the first.
        program: the program.
    """

    time: float
    number: int
    step: int | None
    program: RecordedProgram


@final
@dataclass
class Status:
    """The status of a process, as of its last heartbeat.

    Attributes:
        rank: the index of the process.
        num_processes: the number of processes.
        host: its host.
        pid: its process id.
        time: the time of the heartbeat, in seconds since the epoch.
        line: the line of the user's program that the main thread executed.
        step: the last step that the process had reported.
        end: how it ended: "left", "raised …", or "" if it did not end by itself.
    """

    rank: int
    num_processes: int
    host: str
    pid: int
    time: float
    line: str = ""
    step: int | None = None
    end: str = ""


@final
@dataclass(frozen=True)
class Record:
    """The contents of a file: the status, and the last launches, oldest first."""

    status: Status
    launches: Sequence[Launch] = field(repr=False)


@final
class LaunchRecord:
    """Writes the launches of this process to a file.

    Args:
        path: the file, which is replaced.
        rank: the index of this process.
        num_processes: the number of processes.
        step: returns the last step that the program has reported.

    Raises:
        OSError: if the file cannot be written.
    """

    def __init__(self, path: Path, rank: int, num_processes: int, step: Callable[[], int | None]):
        path.unlink(missing_ok=True)  # a reader may have mapped it
        with path.open("xb+") as file:
            file.truncate(_SIZE)
            self._memory = mmap.mmap(file.fileno(), _SIZE)
        self._memory[: len(_MAGIC)] = _MAGIC
        self._status = Status(rank, num_processes, socket.gethostname(), os.getpid(), time.time())
        self._step = step
        self._counter = count(1)  # of all launches; several threads may use it
        self._programs = 0
        self._end_of_programs = _PROGRAMS
        self._lock = threading.Lock()
        self.renew_status()

    def launch_recorder(self, name: str, processes: str, collectives: Sequence[str]) -> Callable[[int], None] | None:
        """Add a program, and return a function that records a launch; None if the file has no space for the program.

        The function is called with the number of launches on the program's processes, before the program runs. It takes
        less than a microsecond.

        Args:
            name: the name of the program.
            processes: the ranks of the processes that run it, separated by commas.
            collectives: its collectives, with their source lines.
        """
        index = self._add_program(name, processes, collectives)
        if index is None:
            return None
        pack, memory, clock, step = _SLOT.pack_into, self._memory, time.time, self._step
        counter, size = self._counter, _SLOT.size

        def record(number: int) -> None:
            launch, last = next(counter), step()
            last = last if last is not None and 0 <= last < _STEPS else -1
            pack(memory, _RING + launch % _SLOTS * size, launch, clock(), number, last, index)

        return record

    def _add_program(self, name: str, processes: str, collectives: Sequence[str]) -> int | None:
        """Return the index of a new program; None if the file has no space for it."""
        listed = [text[:200] for text in collectives[:_MOST_COLLECTIVES]]
        program = RecordedProgram(name[:200], processes, listed, len(collectives) - len(listed))
        line = json.dumps(asdict(program)).encode() + b"\n"
        with self._lock:
            end = self._end_of_programs + len(line)
            if end >= _RING:
                return None
            self._memory[self._end_of_programs : end] = line
            self._end_of_programs = end
            self._programs += 1
            return self._programs - 1

    def renew_status(self) -> None:
        """Record the time, and the line of the user's program that the main thread executes."""
        status = self._status
        status.time, status.step = time.time(), self._step()
        status.line = _main_line() or status.line
        self._write_status()

    def end(self, reason: str) -> None:
        """Record how this process ends, once: `left`, or an exception."""
        if not self._status.end:
            self._status.end = reason.partition("\n")[0][:_MOST_TEXT]
            self.renew_status()

    def _write_status(self) -> None:
        content = json.dumps(asdict(self._status)).encode()[: _STATUS_SIZE - 1]
        with self._lock:
            # One copy: a reader finds the old or the new status, unless the process is killed inside of the copy.
            self._memory[_STATUS : _STATUS + _STATUS_SIZE] = content.ljust(_STATUS_SIZE, b"\0")


def _main_line() -> str:
    """Return the innermost line of the user's program that the main thread executes."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and not _is_cited(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{format_line(frame.f_code.co_filename, frame.f_lineno)} ({frame.f_code.co_name})"[:_MOST_TEXT]


def _is_cited(file: str) -> bool:
    """Return whether a file is the user's; those of the standard library, such as importlib, are not."""
    return is_user_file(file) and not file.startswith(_STANDARD_LIBRARY)


def read_record(path: Path) -> Record:
    """Return the contents of a file that a `LaunchRecord` has written.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is not a record, or is damaged.
    """
    content = read_regular_file(path, _SIZE)
    if len(content) != _SIZE or not content.startswith(_MAGIC):
        raise ValueError(f"{path} is not a record of launches")
    try:
        status = _status_from(json.loads(content[_STATUS : _STATUS + _STATUS_SIZE].rstrip(b"\0")))
        lines = content[_PROGRAMS:_RING].rstrip(b"\0").splitlines()
        programs = [_program_from(json.loads(line)) for line in lines]
        launches = _launches_from(content, programs)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} is a damaged record of launches: {error}") from None
    return Record(status, launches)


def _launches_from(content: bytes, programs: Sequence[RecordedProgram]) -> list[Launch]:
    slots = []
    for place in range(_RING, _SIZE, _SLOT.size):
        order, at, number, step, program = _SLOT.unpack_from(content, place)
        if not order:
            continue
        if program >= len(programs) or not 0 <= at < 1e11:
            raise ValueError(f"launch {order} has no program {program}")
        slots.append((order, Launch(at, number, None if step < 0 else step, programs[program])))
    return [launch for _, launch in sorted(slots, key=lambda slot: slot[0])]


def _status_from(content: dict[str, Any]) -> Status:
    status = Status(**content)
    numbers = (status.rank, status.num_processes, status.pid)
    texts = (status.host, status.line, status.end)
    is_valid = all(type(number) is int and 0 <= number < 1 << 31 for number in numbers) and all(
        isinstance(t, str) for t in texts
    )
    if not is_valid or not isinstance(status.time, float) or not 0 <= status.time < 1e11:
        raise ValueError(f"the status {content} is not valid")
    if status.step is not None and (type(status.step) is not int or abs(status.step) >= 1 << 63):
        raise ValueError(f"the step {status.step!r} is not a number")
    return status


def _program_from(content: dict[str, Any]) -> RecordedProgram:
    program = RecordedProgram(**content)
    texts = (program.name, program.processes, *program.collectives)
    if not all(isinstance(text, str) for text in texts) or type(program.more) is not int:
        raise ValueError(f"the program {content} is not valid")
    split_ranks(program.processes)
    return program
