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
from shardwise.errors import CheckpointError, CheckpointExists, PeerFailure
from shardwise.runtime.generations import generations
from tests.checkpoints.faulty_writer import state

ROOT = Path(__file__).resolve().parents[2]
TIME_LIMIT = 120  # seconds
KILLS = 20


def run_python(code, *arguments, prefix=()):
    """Run code in a Python process of its own, by the command `prefix`; return the lines that it prints."""
    return subprocess.run(
        [*prefix, sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ).stdout.splitlines()


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
from shardwise import checkpoints
from shardwise.errors import CheckpointError
folder = pathlib.Path(sys.argv[1])
checkpoints.save(folder / "first", {"x": np.arange(1 << 19, dtype=np.float32)}).wait()
try:
    checkpoints.save(folder / "second", {"x": np.ones(1 << 23, np.float32)}).wait()
except CheckpointError as error:
    print("ERROR", error)
print(checkpoints.verify(folder / "first"), [entry.name for entry in folder.iterdir()])
checkpoints.save(folder / "third", {"x": np.arange(1 << 19, dtype=np.float32)}).wait()
print(checkpoints.verify(folder / "third"))
"""

READ_ONLY = """
import sys
from shardwise import checkpoints
from shardwise.errors import CheckpointError
try:
    checkpoints.Manager(sys.argv[1] + "/run")
except CheckpointError as error:
    print("ERROR", error)
"""


READER = """
import subprocess, sys
from shardwise import checkpoints
folder = sys.argv[1]
with checkpoints.Manager(folder, save_on_sigterm=False) as manager:
    manager.save(1, {"x": 3}, force=True)
subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
with checkpoints.Manager(folder, read_only=True) as manager:
    print(manager.latest(), manager.restore().tree)
"""


def run_in_namespace(code, folder, mount):
    """Run code in a mount namespace of its own, after the command `mount`; return the lines that it prints."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("this machine does not allow mount namespaces (unshare -rm)")
    return run_python(code, folder, prefix=["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh"])


def test_a_full_disk_is_an_error_that_names_path_and_bytes(tmp_path):
    error, kept, third = run_in_namespace(FULL_DISK, tmp_path, f"mount -t tmpfs -o size=8m tmpfs {tmp_path}")
    assert error.startswith("ERROR") and f"{tmp_path}/second" in error and "bytes" in error
    assert "No space left" in error and "Earlier checkpoints are unchanged" in error
    assert kept == "2097152 ['first']" and third == "2097152"


def test_a_read_only_folder_is_an_error_before_training(tmp_path):
    (error,) = run_in_namespace(READ_ONLY, tmp_path, f"mount -t tmpfs -o ro tmpfs {tmp_path}")
    assert error.startswith("ERROR") and f"{tmp_path}/run cannot be created: Read-only file system" in error


def test_a_read_only_manager_reads_a_read_only_folder(tmp_path):
    (line,) = run_in_namespace(READER, tmp_path, f"mount -t tmpfs tmpfs {tmp_path}")
    assert line == "1 {'x': 3}"


@pytest.mark.slow
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


def test_a_save_that_lost_a_process_does_not_fail_the_next_one_without_it(tmp_path, caplog):
    """The program has seen the failure, and goes on with the other processes."""
    lost = checkpoints.save(tmp_path / "one", {"x": jnp.ones(3)})
    while not lost.done():
        time.sleep(0.01)
    lost._error = PeerFailure(1, 5, "it was killed")
    checkpoints.save(tmp_path / "two", {"x": jnp.ones(3)}, processes=[0]).wait()
    assert "one: failed: process 1 failed after step 5" in caplog.text
    again = checkpoints.save(tmp_path / "three", {"x": jnp.ones(3)})
    while not again.done():
        time.sleep(0.01)
    again._error = PeerFailure(0, 5, "it was killed")
    with pytest.raises(PeerFailure):  # the next save is that of the process, too
        checkpoints.save(tmp_path / "four", {"x": jnp.ones(3)}, processes=[0])


@pytest.mark.parametrize("error", [CheckpointError("disk"), PeerFailure(1, 5, "it was killed")])
def test_the_error_of_a_save_of_an_earlier_generation_is_only_logged(tmp_path, monkeypatch, caplog, error):
    """A process that has replaced another one does not have it, and would wait for the others in the next save."""
    broken = checkpoints.save(tmp_path / "one", {"x": jnp.ones(3)})
    while not broken.done():
        time.sleep(0.01)
    broken._error = error
    monkeypatch.setattr(generations, "number", generations.number + 1)
    checkpoints.save(tmp_path / "two", {"x": jnp.ones(3)}).wait()
    assert f"one: failed: {error}" in caplog.text


@pytest.mark.parametrize("source", ["a tree", "a file"])
def test_a_program_that_ends_waits_for_its_save(tmp_path, source):
    one, two, file = (str(tmp_path / name) for name in ("one", "two", "x.safetensors"))
    if source == "a tree":
        code = f"import numpy as np; checkpoints.save({one!r}, {{'x': np.ones(1 << 22)}})"
    else:
        checkpoints.save(two, {"x": np.ones(1 << 22)}).wait()
        checkpoints.export_safetensors(two, file)
        code = f"checkpoints.import_safetensors([{file!r}], {one!r})"
    run_python(f"from shardwise import checkpoints\n{code}")
    assert checkpoints.verify(one) == 1 << 25


def test_a_save_waits_for_the_import_before(tmp_path):
    checkpoints.save(tmp_path / "one", {"x": np.ones(1 << 20)}).wait()
    checkpoints.export_safetensors(tmp_path / "one", tmp_path / "x.safetensors")
    imported = checkpoints.import_safetensors([tmp_path / "x.safetensors"], tmp_path / "two")
    started = checkpoints.save(tmp_path / "three", {"x": 1})
    assert imported.done()
    imported = checkpoints.import_safetensors([tmp_path / "x.safetensors"], tmp_path / "four")
    assert started.done()
    imported.wait()


def occupy(path, what):
    match what:
        case "folder":
            (path / "data").mkdir(parents=True)
        case "file":
            path.write_text("")
        case "link":
            (path.parent / "elsewhere").mkdir()
            path.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize("what", ["folder", "file", "link"])
def test_a_path_that_is_not_free_is_refused_before_anything_is_written(tmp_path, what):
    occupy(tmp_path / "one", what)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointExists, match="one exists, and it is not an empty folder: choose another name"):
        checkpoints.save(tmp_path / "one", {"x": 1})
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_folder_is_free(tmp_path):
    (tmp_path / "one").mkdir()
    checkpoints.save(tmp_path / "one", {"x": 1}).wait()
    assert checkpoints.restore(tmp_path / "one") == {"x": 1}
