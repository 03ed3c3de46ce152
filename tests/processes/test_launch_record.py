"""LaunchRecord: what a reader finds after the end of the process, also in damaged files."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shardwise.processes import launch_record
from shardwise.processes.launch_record import LaunchRecord, read_record

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rank1.record"


def create(path, steps=()):
    remaining = iter(steps)
    return LaunchRecord(path, 1, 3, lambda: next(remaining, None))


def test_launches_are_read_with_their_programs(path):
    record = create(path, [None, 4, 2**70, 5])
    train = record.launch_recorder("train_step", "0,1", ["all_reduce at train.py:12"])
    show = record.launch_recorder("show", "0,1,2", [])
    train(1), train(2), show(1)
    launches = read_record(path).launches
    assert [(each.program.name, each.number, each.step) for each in launches] == [
        ("train_step", 1, 4),
        ("train_step", 2, None),
        ("show", 1, 5),
    ]
    assert launches[0].program.processes == "0,1"
    assert launches[0].program.collectives == ["all_reduce at train.py:12"]
    assert launches[0].time <= launches[1].time


def test_the_ring_keeps_the_last_launches(path):
    launch = create(path).launch_recorder("f", "0,1", [])
    for number in range(1, 10_001):
        launch(number)
    assert [each.number for each in read_record(path).launches] == list(range(10_001 - launch_record._SLOTS, 10_001))


def test_the_status_has_the_line_of_the_main_thread(path):
    record = create(path)
    record.renew_status()
    status = read_record(path).status
    assert status.line.startswith("test_launch_record.py:") and "main_thread" in status.line
    assert (status.rank, status.num_processes, status.pid, status.end) == (1, 3, os.getpid(), "")
    record.end("raised ValueError: no")
    record.end("left")
    assert read_record(path).status.end == "raised ValueError: no"


def test_long_texts_and_many_programs_fit(path):
    record = create(path)
    record.end("x" * 100_000)
    recorders = [record.launch_recorder("f" * 500, "0,1", ["all_reduce at " + "é" * 500] * 50) for _ in range(500)]
    assert recorders[0] is not None and recorders[-1] is None
    recorders[0](1)
    read = read_record(path)
    assert read.launches[0].program.more == 18
    assert len(read.status.end) == 2000


def test_a_killed_process_leaves_its_record(path):
    program = (
        "import os, signal, sys; from pathlib import Path; from shardwise.processes.launch_record import LaunchRecord\n"
        "LaunchRecord(Path(sys.argv[1]), 1, 3, lambda: 7).launch_recorder('f', '0,1', [])(1)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run([sys.executable, "-c", program, path], timeout=120, check=False, env=environment)
    assert killed.returncode == -signal.SIGKILL
    (launch,) = read_record(path).launches
    assert (launch.program.name, launch.number, launch.step) == ("f", 1, 7)


def test_damaged_files_are_errors_or_read(path):
    record = create(path)
    record.launch_recorder("f", "0,1", ["all_reduce at train.py:12"])(1)
    whole = np.frombuffer(path.read_bytes(), np.uint8)
    rng = np.random.default_rng(0)
    used = np.flatnonzero(whole)
    for place in rng.choice(used, 60, replace=False):
        damaged = whole.copy()
        damaged[place] ^= 1 << rng.integers(8)
        path.write_bytes(damaged.tobytes())
        try:
            read_record(path)
        except ValueError as error:
            assert "record of launches" in str(error)
    for content in (b"", whole[:1000].tobytes(), b"x" * len(whole)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is not a record of launches"):
            read_record(path)
