"""The soak, for a short time, and its search for processes."""

import json
import os
import subprocess
import sys

import pytest

from tests.soak.run import FAULTS, MARK, is_marked, main, marked_processes


def test_processes_are_found_by_their_mark():
    mark = f"test-{os.getpid()}"
    command = [sys.executable, "-c", "print('started', flush=True); input()"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, MARK: mark}
    ) as child:
        assert child.stdout.readline() == b"started\n"
        assert marked_processes(mark) == [child.pid]
        assert not is_marked(os.getpid(), mark)
        child.stdin.close()
        child.wait(60)
        assert marked_processes(mark) == []


@pytest.mark.slow
@pytest.mark.faults
def test_a_short_soak(tmp_path):
    log = tmp_path / "soak.log"
    options = ["--minutes", "0.3", "--processes", "2", "--steps", "40", "--seed", "3", "--log", str(log)]
    assert main(options) == 0
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert {event["event"] for event in events} & set(FAULTS)
    assert events[-1]["event"] == "result" and events[-1]["errors"] == [] and events[-1]["rounds"] >= 1
