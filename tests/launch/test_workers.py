"""Workers: how the ends of processes are described."""

import signal
import sys

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
