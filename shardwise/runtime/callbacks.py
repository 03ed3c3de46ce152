"""Host callbacks: Python functions that running programs call.

An exception cannot propagate through XLA: on several devices, the other devices would wait for the failed one, and then
abort the process. So a failing callback records its exception, the program continues with zeros, and the caller raises
the exception after the run, unchanged or wrapped according to the setting `callback_errors`. If several processes run
the program, the others then raise `PeerFailure` (`process_set.py`). On one device, the callback stops XLA at once. The
caller waits for programs with callbacks, so that no callback runs after the call.
"""

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np

from shardwise.base._jaxlib import RuntimeFailure
from shardwise.base.config import config
from shardwise.compiler.lower.hlo import HostCallback


class CallbackFailure(RuntimeError):
    """The error that a failing callback reports to XLA."""


@final
class Callbacks:
    """The host callbacks of one executable, and its active runs."""

    def __init__(self, calls: Sequence[HostCallback], devices: int):
        self.functions: list[Callable[..., Any]] = [_Guarded(self, call) for call in calls]
        self.stops_at_failure = devices == 1
        self._runs: dict[object, list[BaseException]] = {}  # the failures of each active run

    @contextmanager
    def run(self) -> Iterator[None]:
        """Enclose one complete run; raise the first exception of a callback at its end."""
        run = object()
        failures = self._runs[run] = []
        try:
            yield
        except RuntimeFailure:
            if not failures:
                raise
        finally:
            del self._runs[run]
        if failures:
            error = error_of_callback(failures[0])
            # Do not show XLA's failure as the context: it only transports the callback's exception to this thread.
            error.__suppress_context__ |= failures[0].__context__ is None
            raise error

    def record_failure(self, error: BaseException) -> None:
        """Record a failure in every active run, because a callback cannot identify the run that called it."""
        for failures in list(self._runs.values()):
            failures.append(error)

    def error(self) -> BaseException | None:
        """Return the first exception of a callback in an active run, or None."""
        return next((failures[0] for failures in list(self._runs.values()) if failures), None)

    @property
    def is_failing(self) -> bool:
        return any(self._runs.values())


def error_of_callback(failure: BaseException) -> BaseException:
    """Return the error that a call raises for an exception of a callback."""
    if config.callback_errors == "unchanged" or not isinstance(failure, Exception):
        return failure
    error: BaseException = RuntimeFailure(
        "a callback failed:\n" + "".join(traceback.format_exception(failure)).rstrip()
    )
    error.__cause__ = failure
    return error


@final
class _Guarded:
    """A host callback as XLA calls it: it records exceptions and returns zeros instead."""

    def __init__(self, callbacks: Callbacks, call: HostCallback):
        self.callbacks, self.call = callbacks, call

    def __call__(self, *args: object) -> tuple[Any, ...]:
        tokens, arrays = (args[:1], args[1:]) if self.call.ordered else ((), args)
        if not self.callbacks.is_failing:
            try:
                return (*tokens, *self.call.function(*(np.array(x) for x in arrays)))
            except BaseException as error:
                self.callbacks.record_failure(error)
                if self.callbacks.stops_at_failure:
                    raise CallbackFailure(repr(error)) from None
        return (*tokens, *(np.zeros(type.shape, type.dtype) for type in self.call.results))
