"""Processes that launch programs in different orders, or use different values, read no wrong number and exit with 1."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process_faults.groups import ROOT, WAIT, free_port

pytestmark = pytest.mark.faults


MORE_LAUNCHES = (
    r"process 1 failed: it reached the end of its program after (\d+) launches on the processes 0,1, but process 0 "
    r"made (\d+)"
)


def run(mode, folder):
    """Run two processes; return their outputs, errors and exit codes."""
    port = free_port()
    workers = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "order_worker.py"), mode, str(rank), str(port), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )
        for rank in (0, 1)
    ]
    try:
        outputs = [worker.communicate(timeout=WAIT) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return [(out, err, worker.returncode) for worker, (out, err) in zip(workers, outputs, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    [
        "read in one",
        "exit",
        *(
            pytest.param(mode, marks=pytest.mark.slow)
            for mode in (
                "read behind",
                "computed",
                "read",
                "shards",
                "save",
                "callback",
                "local callback",
                "shutdown",
                "caught at shutdown",
            )
        ),
    ],
)
def test_no_process_reads_a_value_or_exits_with_0_after_another_order(mode, tmp_path):
    for out, err, code in run(mode, tmp_path):
        assert "ready" in out
        assert "wrong" not in out
        assert code == 1, err
        assert re.search(r"launch \d+ on the processes 0,1 differs: process 0 launched `\w+`", err)
    assert not list(tmp_path.iterdir()) or mode != "save"


@pytest.mark.slow
def test_a_process_that_launches_more_than_the_others_exits_with_1(tmp_path):
    for out, err, code in run("more launches", tmp_path):
        assert "ready" in out
        assert code == 1, err
        assert (counts := re.search(MORE_LAUNCHES, err)), err
        assert int(counts[2]) == int(counts[1]) + 1


@pytest.mark.slow
def test_a_process_is_compared_with_one_that_is_far_ahead(tmp_path):
    for out, err, code in run("read far behind", tmp_path):
        assert "ready" in out
        assert "wrong" not in out
        assert code == 1, err
        assert "the processes 0 and 1 launched different programs on the processes 0,1" in err


@pytest.mark.slow
def test_equal_orders_are_confirmed(tmp_path):
    assert [code for *_, code in run("alike", tmp_path)] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["numpy", "scalar", "captured", "key"])
def test_different_host_values_are_found_with_the_debug_setting(mode, tmp_path):
    for out, err, code in run(mode, tmp_path):
        assert "right" in out
        assert "wrong" not in out
        assert code == 1
        assert "ProgramMismatch: the processes 0,1 use different values after" in err
        assert "at order_worker.py:" in err
        assert "process 1: " in err
