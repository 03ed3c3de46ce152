"""Supervised call: a call that waits in C++ for other processes, and that is abandoned when one of them fails.

Such a call cannot be interrupted, and may wait forever. So a thread makes it, and the caller waits for the thread, for
the failure of a process, or for the timeout. XLA releases the GIL in all these calls.
"""

import threading
import time
from collections.abc import Callable, Collection
from typing import TypeVar

from shardwise.processes.member import Member

T = TypeVar("T")

_abandoned: list[threading.Thread] = []  # threads whose calls did not end in time


def call_supervised(
    function: Callable[[], T],
    member: Member,
    ranks: Collection[int],
    timeout: float,
    *,
    point: str,
    survives_failures: bool = False,
    failure_time: float = 0,
) -> T:
    """Return the result of a call that waits for other processes, or raise its exception.

    Args:
        function: makes the call.
        member: the connection to the coordinator.
        ranks: the processes that the call waits for.
        timeout: the seconds to wait.
        point: the function that makes the call, such as "live_devices". All processes call it equally often.
        survives_failures: whether the call still ends if one of the processes fails.
        failure_time: the additional seconds until it then detects the failure.

    Raises:
        PeerFailure: if one of the processes fails, or does not arrive in time. The call continues in its thread.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    is_over = threading.Event()

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)
        is_over.set()
        member.notify()

    member.report_arrival(point)
    thread = threading.Thread(target=run, name=f"shardwise {point}", daemon=True)
    thread.start()
    fatal = () if survives_failures else ranks
    has_ended = member.wait_for(is_over.is_set, fatal, timeout)
    if not has_ended and survives_failures and not member.failures.keys().isdisjoint(ranks):
        has_ended = member.wait_for(is_over.is_set, fatal, failure_time)
    if not has_ended:
        _abandoned.append(thread)
        if (known := member.error("", fatal)) is not None:
            raise known
        processes = ",".join(str(rank) for rank in sorted(ranks) if rank not in member.failures)
        raise member.ask_for_failure(processes, f"waited {timeout:.0f} s in {point}", awaited="arrival", point=point)
    if errors:
        raise errors[0]
    return results[0]


def drain_calls(timeout: float) -> None:
    """Wait for abandoned calls, at most `timeout` seconds. They end when XLA's client is disconnected.

    Python ends a thread that returns from C++ while the interpreter shuts down, which aborts the process.
    """
    end = time.monotonic() + timeout
    for thread in _abandoned:
        thread.join(max(0.0, end - time.monotonic()))
