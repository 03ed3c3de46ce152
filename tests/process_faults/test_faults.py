"""Faults in real processes: signals, exceptions, early ends and different programs. The survivors raise exceptions."""

import re
import signal

import pytest

from tests.process_faults.fault_worker import READS
from tests.process_faults.groups import WAIT, group

pytestmark = pytest.mark.faults

STUCK_TIME = 20  # seconds after which a process counts as stuck: more than a step takes on a busy machine
LOST = "its connection closed: the process was killed, or it exited without distributed.shutdown"
KILLS = [(2, 1), pytest.param(3, 0, marks=pytest.mark.slow), pytest.param(4, 2, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("processes", "victim"), KILLS)
def test_a_killed_process_is_a_peer_failure_in_the_others(processes, victim):
    with group("none", processes, devices=1 if processes > 2 else 2) as started:
        for worker in started.workers:
            worker.event("running")
        started.workers[victim].signal(signal.SIGKILL)
        for rank, worker in enumerate(started.workers):
            if rank != victim:
                failure = worker.event("PeerFailure")
                assert failure["rank"] == victim
                assert failure["step"] >= 5
                assert failure["reason"] == LOST
                assert worker.wait() == 1  # an uncaught exception, not an abort
        started.wait_for_coordinator_end()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_process_is_named_with_its_last_step(victim):
    with group("none", timeout=STUCK_TIME, devices=2) as started:
        for worker in started.workers:
            worker.event("running")
        started.workers[victim].signal(signal.SIGSTOP)
        survivor = started.workers[1 - victim]
        failure = survivor.event("PeerFailure")
        assert failure["rank"] == victim
        assert failure["step"] >= 5
        assert re.search(rf"waited (more than )?{STUCK_TIME} s", failure["text"])
        assert "the process is stopped, or unreachable" in failure["text"]
        assert f"process {victim}: {failure['step']}" in failure["text"]
        assert survivor.wait() == 1


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_process_that_sleeps_is_named_with_its_python_stack(devices):
    with group("sleep", timeout=STUCK_TIME, devices=devices) as started:
        failure = started.workers[0].event("PeerFailure")
        assert (failure["rank"], failure["step"]) == (1, 4)
        assert re.search(r"it is alive, but has made \d+ launches on the processes 0,1, not \d+", failure["reason"])
        assert "in sleep_for_ever" in failure["detail"]
        assert "time.sleep(1)" in failure["detail"]
        assert started.workers[0].wait() == 1


@pytest.mark.slow
def test_every_read_of_an_array_ends_when_another_process_fails():
    """Fault 6 for reads of local shards, and of arrays that this process computes from them alone."""
    with group("reads", timeout=10 * WAIT) as started:  # XLA waits longer than this test
        survivor, culprit = started.workers
        culprit.event("fault step")
        survivor.event("waiting")
        culprit.signal(signal.SIGUSR1)
        reads = [survivor.event(name) for name in READS]
        assert [read["rank"] for read in reads] == [1] * len(reads), reads
        assert {read["reason"] for read in reads} == {"it raised RuntimeError: the program ends"}


@pytest.mark.slow
def test_an_exception_of_one_process_is_shown_in_the_others():
    with group("exception", 3, devices=2) as started:
        *survivors, culprit = started.workers
        for worker in survivors:
            failure = worker.event("PeerFailure")
            assert (failure["rank"], failure["step"]) == (2, 4)
            assert failure["reason"] == "it raised ZeroDivisionError: the exception of one process"
            assert 'raise ZeroDivisionError("the exception of one process")' in failure["detail"]
            assert worker.wait() == 1
        assert culprit.wait() == 1
        assert "ZeroDivisionError: the exception of one process" in culprit.errors
        started.wait_for_coordinator_end()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason", "code"),
    [
        ("exit", LOST, 0),  # of os._exit
        (
            "return",
            r"it reached the end of its program after \d+ launches on the processes 0,1, but process 0 made \d+",
            1,
        ),
    ],
)
def test_a_premature_exit_is_reported(fault, reason, code):
    with group(fault) as started:
        failure = started.workers[0].event("PeerFailure")
        assert (failure["rank"], failure["step"]) == (1, 4)
        assert re.fullmatch(reason, failure["reason"])
        assert [worker.wait() for worker in started.workers] == [1, code]
        started.wait_for_coordinator_end()


@pytest.mark.parametrize(
    ("fault", "texts"),
    [
        ("op", [r"launch \d+ on the processes 0,1 differs", "first difference", "stablehlo.add", "stablehlo.subtract"]),
        pytest.param("shape", [r"launch \d+ on the processes 0,1 differs"], marks=pytest.mark.slow),
        pytest.param("order", [r"launch \d+ on the processes 0,1 differs"], marks=pytest.mark.slow),
        pytest.param(
            "skip", [r"at step 6, .* number of launches: process 0 \d+, process 1 \d+"], marks=pytest.mark.slow
        ),
    ],
)
def test_different_programs_are_a_mismatch_in_every_process(fault, texts):
    with group(fault) as started:
        messages = {worker.event("ProgramMismatch")["text"] for worker in started.workers}
        assert len(messages) == 1
        for text in texts:
            assert re.search(text, next(iter(messages)))
        assert [worker.wait() for worker in started.workers] == [1, 1]


@pytest.mark.slow
def test_debug_launch_order_finds_the_first_different_launch():
    with group("order", SHARDWISE_DEBUG_LAUNCH_ORDER="1") as started:
        for worker in started.workers:
            text = worker.event("ProgramMismatch")["text"]
            assert re.search(r"launch \d+ on the processes 0,1 differs", text)
            assert "stablehlo.divide" in text
            assert "stablehlo.multiply" in text


PROXIES = {name: "http://192.0.2.1:3128" for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY")}


@pytest.mark.slow
def test_a_program_ends_without_shutdown_and_proxies_are_ignored():
    with group("end", **PROXIES) as started:
        for worker in started.workers:
            worker.event("end")
            assert worker.wait() == 0
            assert worker.errors == ""
        started.wait_for_coordinator_end()


@pytest.mark.slow
def test_damaged_entries_of_a_shared_compilation_cache_are_compiled_again(tmp_path):
    folder = tmp_path / "cache"
    settings = {
        "SHARDWISE_COMPILATION_CACHE_DIR": str(folder),
        "SHARDWISE_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    for is_damaged in (False, True):
        with group("end", **settings) as started:
            for worker in started.workers:
                worker.event("end")
                assert worker.wait() == 0
                assert ("damaged" in worker.errors) == is_damaged
        entries = [path for path in folder.iterdir() if path.is_file()]
        assert entries
        for index, path in enumerate(entries):  # cut, foreign or with a flipped bit
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes([bytes(content), content[:100], b"another program's file"][index % 3])
