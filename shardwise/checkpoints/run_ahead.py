"""Run calls on threads ahead of the use of their results.

Restores need this because allocating shards takes as long as reading them, due to page faults.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

Result = TypeVar("Result")

_THREADS = min(4, os.cpu_count() or 1)
_AHEAD = 2 * _THREADS


@contextmanager
def run_ahead(calls: Iterable[Callable[[], Result]]) -> Iterator[Iterator[Result]]:
    """Run calls on threads, some of them before their results are needed.

    Returns:
        A context with an iterator of the results, in the order of the calls. Calls that have not begun when the context
        ends are not made.
    """
    threads = ThreadPoolExecutor(_THREADS, "run_ahead")
    try:
        yield _results(threads, iter(calls))
    finally:
        threads.shutdown(cancel_futures=True)


def _results(threads: ThreadPoolExecutor, calls: Iterator[Callable[[], Result]]) -> Iterator[Result]:
    pending: deque[Future[Result]] = deque(threads.submit(call) for call in islice(calls, _AHEAD))
    while pending:
        result = pending.popleft().result()
        pending.extend(threads.submit(call) for call in islice(calls, 1))
        yield result
