"""Supervised call: a call that waits in C++ for other processes, and that ends when one of them fails.

Such a call cannot be interrupted, and may wait for ever. So a thread makes it, and the caller waits for the thread, for
the failure of a process, or for the timeout. XLA releases Python's global lock in all of them.
"""

import threading
from collections.abc import Callable, Collection
from typing import TypeVar

from shardwise.processes.member import Member
from shardwise.processes.protocol import Awaited

T = TypeVar("T")


def call_supervised(
    function: Callable[[], T],
    member: Member,
    ranks: Collection[int],
    timeout: float,
    *,
    name: str,
    awaited: Awaited,
) -> T:
    """Return the result of a call that waits for other processes, or raise its exception.

    Args:
        function: makes the call.
        member: the connection to the coordinator.
        ranks: the processes that the call waits for.
        timeout: the seconds to wait.
        name: what the call does, for errors: "distributed.initialize".
        awaited: the progress of the others that the call waits for.

    Raises:
        PeerFailure: if one of the processes fails, or does not come in time. The call goes on in its thread.
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

    threading.Thread(target=run, name=f"shardwise {name}", daemon=True).start()
    if not member.wait_for(is_over.is_set, ranks, timeout):
        processes = ",".join(map(str, sorted(ranks)))
        known = member.error(processes, ranks)
        reason = f"waited {timeout:.0f} s in {name}"
        raise known or member.ask_for_failure(processes, reason, awaited=awaited)
    if errors:
        raise errors[0]
    return results[0]
