"""Saves that are killed, that run out of disk space, that may not write, and that race: nothing is lost."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.checkpoints.location import location_of
from shardwise.errors import CheckpointError, CheckpointExists
from tests.checkpoints.faulty_writer import state

ROOT = Path(__file__).resolve().parents[2]
TIME_LIMIT = 120  # seconds
KILLS = 20


def check_steps(manager):
    """Check that every listed step is complete, bit for bit."""
    for step in manager.steps():
        restored = manager.restore(step=step).tree
        for name, expected in state(step).items():
            assert np.asarray(restored[name]).tobytes() == expected.tobytes(), (step, name)


@pytest.mark.parametrize("number", [pytest.param(n, marks=[pytest.mark.slow] if n >= 1 else []) for n in range(KILLS)])
def test_a_killed_save_leaves_only_committed_steps(tmp_path, number):
    delay = random.Random(number).uniform(0, 0.3)
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.checkpoints.faulty_writer", str(tmp_path), "1", "1000"],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline()  # the first step is being written
        time.sleep(delay)
    finally:
        writer.send_signal(signal.SIGKILL)
        out, _ = writer.communicate(timeout=TIME_LIMIT)
    returned = [1, *map(int, out.split())]  # all but the last of these are committed: a save waits for the one before
    manager = checkpoints.Manager(tmp_path, save_on_sigterm=False)
    assert set(returned[:-1]) <= set(manager.steps()) <= {*returned, returned[-1] + 1}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(f"step-{step}" for step in manager.steps())
    check_steps(manager)


FULL_DISK = """
import pathlib, sys
import numpy as np
import shardwise as sw
from shardwise import checkpoints
folder = pathlib.Path(sys.argv[1])
checkpoints.save(folder / "first", {"x": np.arange(1 << 19, dtype=np.float32)}).wait()
try:
    checkpoints.save(folder / "second", {"x": np.ones(1 << 23, np.float32)}).wait()
except checkpoints.CheckpointError as error:
    print("ERROR", error)
print(checkpoints.verify(folder / "first"), [entry.name for entry in folder.iterdir()])
checkpoints.save(folder / "third", {"x": np.arange(1 << 19, dtype=np.float32)}).wait()
print(checkpoints.verify(folder / "third"))
"""

READ_ONLY = """
import sys
from shardwise import checkpoints
try:
    checkpoints.Manager(sys.argv[1] + "/run")
except checkpoints.CheckpointError as error:
    print("ERROR", error)
"""


def run_in_namespace(script, folder, mount):
    """Run a script in a mount namespace of its own, after the command `mount`."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("this machine does not allow mount namespaces (unshare -rm)")
    script = script.replace("checkpoints.CheckpointError", "sw_errors.CheckpointError")
    code = f"from shardwise import errors as sw_errors\n{script}"
    command = f'{mount} && exec "$0" -c "$1" "$2"'
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", command, sys.executable, code, str(folder)],
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ).stdout.splitlines()


def test_a_full_disk_is_an_error_that_names_path_and_bytes(tmp_path):
    error, kept, third = run_in_namespace(FULL_DISK, tmp_path, f"mount -t tmpfs -o size=8m tmpfs {tmp_path}")
    assert error.startswith("ERROR") and f"{tmp_path}/second" in error and "bytes" in error
    assert "No space left" in error and "Earlier checkpoints are unchanged" in error
    assert kept == "2097152 ['first']" and third == "2097152"


def test_a_read_only_folder_is_an_error_before_training(tmp_path):
    (error,) = run_in_namespace(READ_ONLY, tmp_path, f"mount -t tmpfs -o ro tmpfs {tmp_path}")
    assert error.startswith("ERROR") and f"{tmp_path}/run cannot be created: Read-only file system" in error


def test_of_two_writers_of_one_step_one_is_refused(tmp_path):
    results = {}
    barrier = threading.Barrier(2)

    def write(number):
        location = location_of(tmp_path / "step-1")
        partial = location.begin(f"token{number}")
        partial.prepare()
        partial.write("manifest.json", str(number).encode())
        barrier.wait()
        try:
            location.commit(partial)
            results[number] = "saved"
        except CheckpointExists:
            results[number] = "refused"

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results.values()) == ["refused", "saved"]
    (winner,) = (number for number, result in results.items() if result == "saved")
    assert (tmp_path / "step-1" / "manifest.json").read_text() == str(winner)


def test_the_error_of_a_save_that_nobody_waited_for_comes_with_the_next(tmp_path, monkeypatch):
    started = checkpoints.save(tmp_path / "one", {"x": jnp.ones(3)})
    started.wait()
    broken = checkpoints.save(tmp_path / "two", {"x": jnp.ones(3)})
    while not broken.done():
        time.sleep(0.01)
    broken._error = CheckpointError("disk")
    with pytest.raises(CheckpointError, match="disk"):
        checkpoints.save(tmp_path / "three", {"x": jnp.ones(3)})
    checkpoints.save(tmp_path / "three", {"x": jnp.ones(3)}).wait()


def test_a_program_that_ends_waits_for_its_save(tmp_path):
    code = (
        "import numpy as np\nfrom shardwise import checkpoints\n"
        f"checkpoints.save({str(tmp_path / 'one')!r}, {{'x': np.ones(1 << 22)}})"
    )
    subprocess.run(
        [sys.executable, "-c", code], timeout=TIME_LIMIT, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert checkpoints.verify(tmp_path / "one") == 1 << 25
