"""Output of the launched processes: prefixed and coloured lines on the terminal, and a log file for each process."""

import os
import re
import selectors
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TextIO, final

from shardwise.launch.log_file import LogFile
from shardwise.launch.writer import Writer

# Bright colours that are readable on dark and light backgrounds, by rank.
COLOURS = (36, 33, 35, 32, 34, 31)
# A longer line is written in parts before it ends.
MAX_LINE = 2**16
# The number of last lines of a process that are kept for the report of a failure.
KEPT_LINES = 400
READ_BYTES = 2**16
# The most bytes that a pipe can hold for non-root users. A child of a process may still write after the process ended.
MAX_PIPE_BYTES = 2**20
# Gloo's threads print these lines while they connect, sometimes interleaved. They go only to the log files.
_NOISE = re.compile(
    r"(\[Gloo\] Rank )*(\d+ )?(is connected to \d+ peer ranks\. Expected number of connected peer ranks is : \d+)?"
)


def uses_colour(stream: TextIO, variables: Mapping[str, str] = os.environ) -> bool:
    """Return whether to write colours to a stream: on terminals, unless NO_COLOR is set or the terminal is dumb."""
    return stream.isatty() and not variables.get("NO_COLOR") and variables.get("TERM") != "dumb"


@final
class _Pipe:
    """One output stream of a process."""

    def __init__(self, rank: int, stream: IO[bytes], target: Writer, log: LogFile, kept: "deque[str]"):
        self.rank = rank
        self.stream = stream
        self.target = target
        self.log = log
        self.kept = kept
        self.rest = b""


@final
class Output:
    """Copies the output of processes to this process's output and to log files.

    Args:
        log_folder: the folder of the log files, or None for none.
        num_processes: the number of all processes, for the width of the prefix.
        stdout: the target of the processes' standard output.
        stderr: the target of the processes' standard error.
    """

    def __init__(self, log_folder: Path | None, num_processes: int, stdout: Writer, stderr: Writer):
        self._log_folder = log_folder
        self._width = len(str(num_processes - 1))
        self._targets = (stdout, stderr)
        self._selector = selectors.DefaultSelector()
        self._errors: dict[int, deque[str]] = {}
        self._mutes_errors = False
        self._has_log_error = self._has_output_error = False

    def log_file(self, rank: int, restart: int = 0) -> Path:
        """Return the path of the log file of a process."""
        if self._log_folder is None:
            return Path(os.devnull)
        return self._log_folder / (f"rank{rank}.restart{restart}.log" if restart else f"rank{rank}.log")

    def add(self, rank: int, restart: int, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        """Copy the pipes of a process from now on."""
        log = LogFile(self.log_file(rank, restart), self._warn_of_log)
        self._errors[rank] = deque(maxlen=KEPT_LINES)
        unused: deque[str] = deque(maxlen=0)
        for stream, target, kept in zip((stdout, stderr), self._targets, (unused, self._errors[rank]), strict=True):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, _Pipe(rank, stream, target, log, kept))

    def copy(self, timeout: float) -> None:
        """Wait for output for at most `timeout` seconds, and copy it unless the output of this process is not read.

        Raises:
            BrokenPipeError: if the reader of this process's output has ended.
        """
        pipes: list[_Pipe] = [key.data for key, _ in self._selector.select(timeout)]
        for pipe in pipes:
            if not pipe.target.is_full:
                self._read(pipe)
        if pipes and all(pipe.target.is_full for pipe in pipes):
            pipes[0].target.wait_for_room(timeout)
        for target in self._targets:
            if isinstance(target.error, BrokenPipeError):
                raise target.error
        if (error := self._targets[0].error) is not None and not self._has_output_error:
            self._has_output_error = True
            self._warn(f"standard output cannot be written ({error.strerror}): the job continues without it")

    def close(self) -> None:
        """Copy the rest of the pipes, and close pipes and log files."""
        for key in list(self._selector.get_map().values()):
            for _ in range(MAX_PIPE_BYTES // READ_BYTES):
                if not self._read(key.data):
                    break
            if not key.data.stream.closed:  # a child of the process may hold the other end
                self._end(key.data)

    def mute_errors(self) -> None:
        """Write standard error to the log files only, from now on."""
        self._mutes_errors = True

    def error_lines(self, rank: int) -> list[str]:
        """Return the last lines of a process's standard error."""
        return list(self._errors.get(rank, ()))

    def prefix(self, rank: int, stream: TextIO) -> str:
        """Return the prefix of a process's lines on a stream."""
        text = f"[{rank:>{self._width}}]"
        return f"\033[{COLOURS[rank % len(COLOURS)]}m{text}\033[0m " if uses_colour(stream) else f"{text} "

    def _read(self, pipe: _Pipe) -> bool:
        """Copy the available bytes of a pipe. Return False if there are none."""
        try:
            data = os.read(pipe.stream.fileno(), READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._end(pipe)
            return False
        pipe.log.write(data)
        *lines, pipe.rest = (pipe.rest + data).split(b"\n")
        if len(pipe.rest) > MAX_LINE:
            lines.append(pipe.rest)
            pipe.rest = b""
        for line in lines:
            self._write(pipe, line)
        return True

    def _end(self, pipe: _Pipe) -> None:
        if pipe.rest:
            self._write(pipe, pipe.rest)
        self._selector.unregister(pipe.stream)
        pipe.stream.close()
        if not any(key.data.log is pipe.log for key in self._selector.get_map().values()):
            pipe.log.close()

    def _write(self, pipe: _Pipe, line: bytes) -> None:
        # A progress bar rewrites its line after each carriage return; only its last state is written.
        text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
        if text and _NOISE.fullmatch(text):
            return
        pipe.kept.append(text)
        if self._mutes_errors and pipe.kept.maxlen:
            return
        pipe.target.write(f"{self.prefix(pipe.rank, pipe.target.stream)}{text}\n")

    def _warn_of_log(self, text: str) -> None:
        if not self._has_log_error:  # one warning, not one per process
            self._has_log_error = True
            self._warn(text)

    def _warn(self, text: str) -> None:
        self._targets[1].write(f"shardwise launch: {text}\n")


def last_traceback(lines: list[str]) -> str:
    """Return the last Python traceback in some lines of standard error, with its causes, or "" if there is none.

    Args:
        lines: the lines.
    """
    start = None
    for index, line in enumerate(lines):
        if line.lstrip("+| ").startswith("Traceback (most recent call last):"):
            chained = start is not None and any(_CHAIN.match(before) for before in lines[max(0, index - 3) : index])
            start = start if chained else index
    return "" if start is None else "\n".join(lines[start:])


_CHAIN = re.compile(r"(During handling of the above exception|The above exception was the direct cause)")
