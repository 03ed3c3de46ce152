"""Workers: how the ends of processes are described."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.launch.workers import Exit, Workers


@pytest.mark.parametrize(
    ("code", "by_launcher", "text"),
    [
        (0, False, "exit code 0"),
        (3, False, "exit code 3"),
        (-signal.SIGTERM, False, "killed by SIGTERM"),
        (-signal.SIGKILL, False, "killed by SIGKILL, perhaps since the machine ran out of memory"),
        (-signal.SIGKILL, True, "killed by SIGKILL, by the launcher"),
    ],
)
def test_an_end_in_words(code, by_launcher, text):
    assert Exit(1, 4242, code, 0.5, by_launcher).describe() == text


class NoOutput:
    def add(self, rank, restart, *streams):
        for stream in streams:
            stream.close()


def test_a_process_that_the_launcher_kills_is_not_said_to_have_run_out_of_memory():
    workers = Workers(NoOutput())
    workers.start(0, [sys.executable, "-c", "import time; time.sleep(600)"], {}, 0)
    workers.close()
    assert [(exit.rank, exit.code, exit.by_launcher) for exit in workers.exits] == [(0, -signal.SIGKILL, True)]


def sleeping(workers):
    workers.start(0, [sys.executable, "-c", "import time; time.sleep(600)"], {}, 0)
    (pid,) = [process.pid for process in workers._running.values()]
    return pid


def test_a_process_that_ends_between_two_polls_is_not_an_error():
    """The state of a process that has just ended is not asked for twice: that raised `ChildProcessError`."""
    workers = Workers(NoOutput())
    pid = sleeping(workers)
    assert workers.poll() == [] and not workers.stopped
    os.kill(pid, signal.SIGTERM)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert workers.running == [0] and not workers.stopped
    assert [exit.code for exit in workers.poll()] == [-signal.SIGTERM]
    workers.close()


def test_stopped_processes_are_those_of_the_last_poll():
    workers = Workers(NoOutput())
    pid = sleeping(workers)
    for number, state in [(signal.SIGSTOP, "T"), (signal.SIGCONT, "S"), (signal.SIGSTOP, "T")]:
        os.kill(pid, number)
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in state + "R" * (state == "S"):
            pass
        assert workers.poll() == [] and [*workers.stopped] == [0] * (state == "T")
    workers.close()
    assert not workers.stopped


@pytest.mark.parametrize(
    ("number", "fix"),
    [(errno.EMFILE, "ulimit -n"), (errno.EAGAIN, "ulimit -u"), (errno.ENOMEM, "fewer"), (errno.ENOENT, "No such file")],
)
def test_a_process_that_cannot_be_started_is_an_error_that_names_it(number, fix, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(number, os.strerror(number))

    workers = Workers(NoOutput())
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(OSError, match=f"process 3 cannot be started: .*{fix}"):
        workers.start(3, ["program"], {}, 0)
    workers.close()


def kill_guardian(workers):
    workers._guardian.kill()
    workers._guardian.wait()
    workers.check_guardian()


def test_a_guardian_that_is_killed_is_started_again():
    """A new guardian knows the processes that run: it kills them when its input ends."""
    workers = Workers(NoOutput())
    sleeping(workers)
    kill_guardian(workers)
    workers._close_guardian()
    workers._guardian = workers._start_guardian()
    while workers.running:
        workers.poll()
    assert [(exit.code, exit.by_launcher) for exit in workers.exits] == [(-signal.SIGKILL, False)]
    workers.close()


def test_guardians_are_not_started_for_ever(monkeypatch):
    monkeypatch.setattr("shardwise.launch.workers.MAX_GUARDIANS", 2)
    workers = Workers(NoOutput())
    kill_guardian(workers)
    with pytest.raises(ChildProcessError, match="the guardian of the launcher ended 2 times"):
        kill_guardian(workers)
    workers.close()
