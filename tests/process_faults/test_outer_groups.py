"""Groups that are separate programs: one is killed and one is stopped, and the others go on; both return."""

import signal
import time

import pytest

from shardwise import strategies
from tests.process_faults.groups import WAIT, Worker

pytestmark = pytest.mark.faults

DEADLINE = 1.0  # seconds; a busy machine only makes groups late more often, and they return


def wait_for(condition, workers):
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, [(worker.events[-3:], worker.errors) for worker in workers]
        time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_and_a_stopped_group_do_not_stop_the_others_and_return(tmp_path):
    server, end = strategies.OuterServer(deadline=DEADLINE), tmp_path / "end"
    workers = []

    def start(group):
        workers.append(Worker(["tests/process_faults/outer_worker.py", server.ticket, group, str(end)], {}))
        return workers[-1]

    try:
        going, killed, stopped = map(start, "abc")
        wait_for(lambda: server.groups == ("a", "b", "c") and server.version >= 3, workers)
        killed.process.kill()
        stopped.signal(signal.SIGSTOP)
        wait_for(lambda: server.groups == ("a",), workers)
        version = server.version
        wait_for(lambda: server.version >= version + 10, workers)
        stopped.signal(signal.SIGCONT)
        wait_for(lambda: server.groups == ("a", "c"), workers)
        again = start("b")
        joined = again.event("joined")
        assert joined["version"] >= version + 10 and any(joined["params"])  # those of the others
        again.event("exchanged")
        end.touch()
        for worker in (going, stopped, again):
            done = worker.event("done")
            assert worker.wait() == 0, worker.errors
            assert done["version"] > joined["version"] and done["loss"] < 0.5
        assert "was dropped: it has missed" in stopped.errors  # it continued from the newest parameters
    finally:
        for worker in workers:
            worker.close()
        server.close()
