"""Members of a coordinator in threads of this process, for tests."""

import threading
import time
from contextlib import contextmanager

from shardwise.processes.coordinator import Coordinator
from shardwise.processes.member import Member
from shardwise.processes.protocol import split_address

WAIT = 300  # seconds; no test waits so long if it passes, also on a busy machine


@contextmanager
def coordinator(num_processes, **arguments):
    """A running coordinator without XLA's service, with the list of its events."""
    events = []
    arguments = {"initialization_timeout": WAIT, **arguments}
    server = Coordinator(num_processes, on_event=events.append, starts_engine=False, **arguments)
    server.start()
    server.events = events
    try:
        yield server
    finally:
        server.stop()


def member(server, rank, num_processes=2, token="", requirements=None, timeout=WAIT):
    return Member(*split_address(server.address), rank, num_processes, token, requirements or {}, timeout)


def join(server, ranks, **arguments):
    """Join several members at the same time; return each member, or the exception that it got."""
    results = {}

    def run(rank):
        try:
            results[rank] = member(server, rank, **arguments)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    return [results[rank] for rank in ranks]


def leave_all(members):
    """Leave at the same time, as all processes do at the end of a program."""
    threads = [threading.Thread(target=one.leave, args=(WAIT,)) for one in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    for one in members:
        one.close()


def wait_until(condition):
    """Wait for a condition that another thread makes true."""
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
