"""debug.breakpoint: stop a running program at a point, and inspect the values of its traced variables.

When the function is traced, the Python frames of the caller are recorded: source lines, and local variables, whose
arrays become operands of a callback. When the program reaches the point, the callback opens a command line on the
recorded frames, with the values that the arrays have then.
"""

import cmd
import pprint
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock
from types import FrameType
from typing import IO, Any, final

from shardwise import tree
from shardwise.api.callbacks.debug_callback import debug_callback, printable
from shardwise.base.call_site import PACKAGE
from shardwise.compiler.ir.dispatch import open_frames
from shardwise.compiler.trace.tracer import Tracer

_CONTEXT = 5  # source lines shown before and after the current one
_lock = RLock()  # several devices may reach a breakpoint at the same time


def debug_breakpoint(
    *,
    backend: str | None = None,
    filter_frames: bool = True,
    num_frames: int | None = None,
    ordered: bool = False,
    token: object = None,
    **kwargs: IO[str] | None,
) -> Any:
    """Open a debugger when a program reaches this point, also inside compiled functions.

    The debugger knows the local variables of the calling functions: arrays have the values that they have when the
    program runs. Its commands are those of pdb: `p` and `pp` print an expression, `u` and `d` move between frames, `bt`
    and `l` show the frames and the source, `c` continues, `q` quits with an error, `h` helps.

    Args:
        backend: the debugger; must be None or "cli", the command line.
        filter_frames: whether to leave out the frames inside this package.
        num_frames: the number of innermost frames to record; by default all.
        ordered: whether ordered breakpoints, prints and callbacks happen in program order.
        token: a pytree of arrays, which orders the breakpoint by data in place of `ordered`: it is reached when these
            arrays are computed.
        **kwargs: `stdin`, where commands are read from, and `stdout`, where the debugger prints; by default, those of
            the process.

    Returns:
        `token`.

    Raises:
        ValueError: if `backend` is another debugger, or if `ordered` and `token` are both passed.
        TypeError: if `kwargs` has other keywords.

    Example:
        >>> import io
        >>> commands = io.StringIO("continue\\n")
        >>> result = jax.jit(lambda x: jax.debug.breakpoint(stdin=commands))(2)
        Entering the debugger:
        (sdb)
    """
    if backend not in (None, "cli"):
        raise ValueError(f"debug.breakpoint: backend must be None or 'cli', not {backend!r}")
    if unknown := kwargs.keys() - {"stdin", "stdout"}:
        raise TypeError(f"debug.breakpoint: unknown keyword {sorted(unknown)[0]!r}")
    if ordered and token is not None:
        raise ValueError("debug.breakpoint: pass either ordered or token, not both")
    frames = _caller_frames(sys._getframe(1), filter_frames)[:num_frames]

    def enter(_: object, *values: object) -> None:
        remaining = map(printable, values)
        with _lock:
            recorded = [frame.with_values(remaining) for frame in frames]
            Debugger(recorded, **kwargs).cmdloop("Entering the debugger:")

    enter.__name__ = "breakpoint"
    debug_callback(enter, token, *(tracer for frame in frames for tracer in frame.tracers()), ordered=ordered)
    return token


@final
@dataclass(frozen=True)
class RecordedFrame:
    """A Python frame while a function was traced: its place in the source, and its variables."""

    file: str
    line: int
    function: str
    variables: Mapping[str, Any]
    global_variables: Mapping[str, Any]

    @staticmethod
    def from_frame(frame: FrameType) -> "RecordedFrame":
        code = frame.f_code
        variables = {name: x for name, x in frame.f_locals.items() if not _has_leaked_tracer(x)}
        return RecordedFrame(code.co_filename, frame.f_lineno, code.co_name, variables, frame.f_globals)

    def tracers(self) -> list[Any]:
        """Return the traced values in the variables, in order."""
        return [leaf for x in self.variables.values() for leaf in _flatten(x)[0] if _is_traced(leaf)]

    def with_values(self, values: Iterator[Any]) -> "RecordedFrame":
        """Return the frame with the next of `values` in place of its tracers."""
        variables = {}
        for name, x in self.variables.items():
            leaves, structure = _flatten(x)
            variables[name] = x
            if any(map(_is_traced, leaves)):
                variables[name] = structure.unflatten([next(values) if _is_traced(leaf) else leaf for leaf in leaves])
        return replace(self, variables=variables)

    def source(self) -> str:
        """Return the lines around the current one."""
        try:
            lines = Path(self.file).read_text().splitlines()
        except OSError:
            return f"the source of {self.file} is not available"
        first = max(self.line - 1 - _CONTEXT, 0)
        shown = enumerate(lines[first : self.line + _CONTEXT], first + 1)
        return "\n".join(f"{'->' if number == self.line else '  '} {number:4} {line}" for number, line in shown)

    def __str__(self) -> str:
        return f"{self.file}({self.line}): {self.function}"


def _flatten(x: object) -> tuple[list[Any], tree.Structure]:
    """Flatten a variable. An object that is not a pytree of arrays is one leaf."""
    if isinstance(x, Iterator):
        return [x], tree.structure(0)
    try:
        return tree.flatten(x, lambda node: isinstance(node, Iterator))
    except (TypeError, ValueError):  # such as a dict whose keys cannot be compared
        return [x], tree.structure(0)


def _has_leaked_tracer(x: object) -> bool:
    return any(_is_traced(leaf) and leaf.frame not in open_frames() for leaf in _flatten(x)[0])


def _is_traced(x: object) -> bool:
    return isinstance(x, Tracer)


def _caller_frames(frame: FrameType | None, filter_frames: bool) -> list[RecordedFrame]:
    frames = []
    while frame is not None:
        if not (filter_frames and frame.f_code.co_filename.startswith(PACKAGE)):
            frames.append(RecordedFrame.from_frame(frame))
        frame = frame.f_back
    return frames


@final
class Debugger(cmd.Cmd):
    """A command line on recorded frames, innermost first."""

    prompt = "(sdb) "

    def __init__(self, frames: list[RecordedFrame], stdin: IO[str] | None = None, stdout: IO[str] | None = None):
        super().__init__(stdin=stdin, stdout=stdout)
        self.use_rawinput = stdin is None
        self.frames, self.position = frames, 0

    def _print(self, text: str) -> None:
        print(text, file=self.stdout)

    def _evaluate(self, expression: str) -> Any:
        frame = self.frames[self.position]
        return eval(expression, dict(frame.global_variables), dict(frame.variables))

    def _show(self, expression: str, show: Callable[[Any], str]) -> None:
        try:
            self._print(show(self._evaluate(expression)))
        except Exception as error:
            self._print(traceback.format_exception_only(error)[-1].strip())

    def default(self, line: str) -> None:
        """Print the value of an expression."""
        self._show(line, repr)

    def emptyline(self) -> bool:
        return False

    def do_p(self, arg: str) -> None:
        """p(rint) expression: print the value of an expression."""
        self._show(arg, repr)

    def do_pp(self, arg: str) -> None:
        """pp expression: pretty-print the value of an expression."""
        self._show(arg, pprint.pformat)

    def do_u(self, arg: str) -> None:
        """u(p): go to the calling frame."""
        self._move(1)

    def do_d(self, arg: str) -> None:
        """d(own): go to the called frame."""
        self._move(-1)

    def _move(self, step: int) -> None:
        if not 0 <= self.position + step < len(self.frames):
            self._print("this is the outermost frame" if step > 0 else "this is the innermost frame")
            return
        self.position += step
        self._print(str(self.frames[self.position]))

    def do_l(self, arg: str) -> None:
        """l(ist): show the source around the current line."""
        self._print(self.frames[self.position].source())

    def do_bt(self, arg: str) -> None:
        """bt, w(here): show the frames, outermost first."""
        for position in reversed(range(len(self.frames))):
            self._print(f"{'>' if position == self.position else ' '} {self.frames[position]}")

    def do_c(self, arg: str) -> bool:
        """c(ontinue): leave the debugger and continue the program."""
        return True

    def do_q(self, arg: str) -> bool:
        """q(uit): leave the debugger with an error, which ends the program."""
        raise KeyboardInterrupt("the user quit the debugger of debug.breakpoint")

    def do_EOF(self, arg: str) -> bool:
        """End of the input: continue."""
        return True

    do_h = cmd.Cmd.do_help
    do_up, do_down, do_list, do_where, do_w = do_u, do_d, do_l, do_bt, do_bt
    do_continue, do_cont, do_quit, do_exit = do_c, do_c, do_q, do_q
