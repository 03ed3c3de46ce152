"""Faults of the rendezvous in real processes, through `distributed.initialize`: exceptions, and the job is unharmed."""

import socket
from contextlib import contextmanager

import pytest

from tests.process_faults.groups import WAIT, Worker, free_port
from tests.processes.members import wait_until

pytestmark = pytest.mark.faults

SHORT = 3  # seconds until a process that never comes is missing


@contextmanager
def processes(tmp_path, *arguments, environments=({},)):
    """Start processes with these arguments of `initialize_worker.py`: address, number of processes, rank, timeout."""
    end = tmp_path / "end"
    workers = []
    try:
        for index, each in enumerate(arguments):
            environment = environments[index % len(environments)]
            program = "tests/process_faults/initialize_worker.py"
            workers.append(Worker([program, *map(str, each), str(end)], environment))
        yield workers
        end.touch()
        for worker in workers:
            assert worker.wait() == 0, worker.errors
    finally:
        for worker in workers:
            worker.close()


def errors(workers):
    """Return type and text of the error of each process; a text is "" where there is none."""
    outcomes = [worker.event("outcome") for worker in workers]
    return [(outcome["error"], outcome.get("text", "")) for outcome in outcomes]


@pytest.mark.slow
def test_an_unreachable_coordinator(tmp_path):
    """Fault 11."""
    address = f"127.0.0.1:{free_port()}"
    with processes(tmp_path, (address, 2, 1, SHORT)) as workers:
        ((kind, text),) = errors(workers)
        assert kind == "RendezvousError"
        assert f"the coordinator at {address} cannot be reached within {SHORT} s" in text


@pytest.mark.slow
@pytest.mark.parametrize("address", ["no.such.host.invalid:1234", "nowhere", "127.0.0.1:99999"])
def test_a_wrong_address(tmp_path, address):
    """Fault 12."""
    with processes(tmp_path, (address, 2, 0, WAIT)) as workers:
        ((kind, text),) = errors(workers)
        assert kind == "ValueError" and address.rpartition(":")[0] in text


@pytest.mark.slow
def test_a_port_in_use(tmp_path):
    """Fault 13."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with processes(tmp_path, (address, 2, 0, WAIT)) as workers:
            ((kind, text),) = errors(workers)
            assert kind == "OSError" and f"the coordinator cannot listen on {address}" in text


@pytest.mark.slow
def test_a_duplicate_process_id(tmp_path):
    """Fault 14: one of the two processes with one id is refused, and the others run."""
    address = f"127.0.0.1:{free_port()}"
    with processes(tmp_path, *((address, 2, rank, WAIT) for rank in (0, 1, 1))) as workers:
        first, *others = errors(workers)
        assert first == (None, "")
        assert sorted(kind or "" for kind, _ in others) == ["", "RendezvousError"]
        assert any("process id 1 is taken by pid" in text for _, text in others)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "rank", "message"),
    [
        (2, 2, "process_id must be from 0 to 1"),
        (2, -1, "process_id must be from 0 to 1"),
        (0, 0, "num_processes must be from 1 to 65536"),
    ],
)
def test_wrong_numbers(tmp_path, count, rank, message):
    """Fault 15, before connecting."""
    with processes(tmp_path, (f"127.0.0.1:{free_port()}", count, rank, WAIT)) as workers:
        ((kind, text),) = errors(workers)
        assert kind == "ValueError" and message in text


@pytest.mark.slow
def test_different_numbers_of_processes(tmp_path):
    """Fault 15: the coordinator refuses the process that expects another number, and the others run."""
    address = f"127.0.0.1:{free_port()}"
    with processes(tmp_path, (address, 2, 0, WAIT), (address, 3, 1, WAIT), (address, 2, 1, WAIT)) as workers:
        assert errors(workers)[0] == errors(workers)[2] == (None, "")
        kind, text = errors(workers)[1]
        assert kind == "ValueError" and "num_processes is 3 in process 1, and 2 in the coordinator" in text


@pytest.mark.slow
def test_a_process_that_never_comes(tmp_path):
    """Fault 16."""
    address = f"127.0.0.1:{free_port()}"
    with processes(tmp_path, (address, 4, 0, SHORT)) as workers:
        ((kind, text),) = errors(workers)
        assert kind == "RendezvousError"
        assert f"after {SHORT} s, 3 of 4 processes are missing: process ids 1, 2, 3." in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("difference", "name"),
    [
        ({"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}, "XLA_FLAGS"),
        ({"SHARDWISE_ENABLE_X64": "1"}, "the setting enable_x64"),
    ],
)
def test_different_flags_and_settings(tmp_path, difference, name):
    """Fault 17: the coordinator refuses the process that comes later, with the difference."""
    address = f"127.0.0.1:{free_port()}"
    arguments = [(address, 2, rank, WAIT) for rank in (0, 1)]
    with processes(tmp_path, *arguments, environments=({}, difference)) as workers:
        wait_until(lambda: any(worker.events for worker in workers))
        if any(f"{name} differs: " in event.get("text", "") for event in workers[1].events):
            with processes(tmp_path, arguments[1]) as others:  # another process may take its place
                assert errors([workers[0], *others]) == [(None, ""), (None, "")]
        else:  # process 0 came later; the coordinator ended with it
            outcomes = errors(workers)
            assert [kind for kind, _ in outcomes] == ["RendezvousError"] * 2
            assert f"{name} differs: " in outcomes[0][1]
