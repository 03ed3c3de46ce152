"""Functions of the host that running programs call.

An exception cannot pass through XLA: on many devices the others would wait for the failed one for ever, and then end
the process. So a failure is noted here, the program goes on with zeros, and its caller raises the exception itself. On
one device XLA is stopped at once. Programs with callbacks are waited for, so that nothing of them is left to happen.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np

from shardwise._jaxlib import RuntimeFailure
from shardwise.compiler.lower.hlo import HostCallback


class CallbackFailure(RuntimeError):
    """What XLA sees of an exception in a callback."""


@final
class Callbacks:
    """The host calls of one executable, and the runs of it that are under way."""

    def __init__(self, calls: Sequence[HostCallback], devices: int):
        self.functions: list[Callable[..., Any]] = [_Guarded(self, call) for call in calls]
        self.stops = devices == 1
        self._runs: dict[object, list[BaseException]] = {}

    @contextmanager
    def run(self) -> Iterator[None]:
        """One run, until all of it is done; the first exception in a callback is raised."""
        me = object()
        failures = self._runs[me] = []
        try:
            yield
        except RuntimeFailure:
            if not failures:
                raise
        finally:
            del self._runs[me]
        if failures:
            raise failures[0]

    def failed(self, error: BaseException) -> None:
        """Which of the runs under way it was cannot be told: none of them has a result to trust."""
        for failures in list(self._runs.values()):
            failures.append(error)

    @property
    def is_failing(self) -> bool:
        return any(self._runs.values())


@final
class _Guarded:
    """A host call as XLA calls it."""

    def __init__(self, callbacks: Callbacks, call: HostCallback):
        self.callbacks, self.call = callbacks, call

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        tokens, arrays = (args[:1], args[1:]) if self.call.ordered else ((), args)
        if not self.callbacks.is_failing:
            try:
                return (*tokens, *self.call.function(*(np.array(x) for x in arrays)))
            except BaseException as error:
                self.callbacks.failed(error)
                if self.callbacks.stops:
                    raise CallbackFailure(repr(error)) from None
        return (*tokens, *(np.zeros(type.shape, type.dtype) for type in self.call.results))
