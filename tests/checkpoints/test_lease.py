"""Leases: other programs do not delete the files of a save in flight, and delete those of a dead one."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.base.lazy import lazy_module
from shardwise.checkpoints import lease
from shardwise.checkpoints.lease import FileLease, has_file_lease_ended, has_object_lease_ended
from shardwise.checkpoints.location import location_of
from shardwise.errors import CheckpointError
from tests.checkpoints.test_save_faults import ROOT, TIME_LIMIT

STATE = {"w": jnp.arange(3)}


@pytest.fixture
def held_save(monkeypatch):
    """A function that starts a save and holds it before its commit; it is released at the end."""
    written, release = threading.Event(), threading.Event()
    write_manifest = checkpoints.Save._write_manifest

    def hold(self, *arguments):
        write_manifest(self, *arguments)
        written.set()
        assert release.wait(TIME_LIMIT)

    def start(save):
        monkeypatch.setattr(checkpoints.Save, "_write_manifest", hold)
        started = save()
        assert written.wait(TIME_LIMIT)
        monkeypatch.undo()
        return started

    start.release = release.set
    yield start
    release.set()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_second_manager_leaves_a_save_in_flight_alone(tmp_path, held_save, read_only):
    first = checkpoints.Manager(tmp_path, every_steps=1, save_on_sigterm=False)
    started = held_save(lambda: first.save(1, STATE))
    with checkpoints.Manager(tmp_path, read_only=read_only, save_on_sigterm=False) as second:
        assert second.steps() == []
    held_save.release()
    started.wait()
    assert first.restore(STATE).step == 1
    first.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-1"]


def test_a_second_manager_leaves_a_save_on_an_object_store_alone(store):
    first = checkpoints.Manager(f"{store.url}/run", every_steps=1, save_on_sigterm=False)
    first.save(1, STATE)
    first.wait()
    location = location_of(f"{store.url}/run")
    with location.child("step-2").lease("a" * 16):
        location.child("step-2").begin("a" * 16).write("manifest.json", b"{}")
        checkpoints.Manager(f"{store.url}/run", save_on_sigterm=False).close()
        assert store[f"run/step-2/{'a' * 16}/manifest.json"] == b"{}"
        store[f"run/step-2/{'a' * 16}.lease"] = b"0"  # not renewed since 1970
        checkpoints.Manager(f"{store.url}/run", save_on_sigterm=False).close()
        assert not any("step-2" in key for key in store)
    assert first.steps() == [1]


WRITER = """
import sys, time
from shardwise.checkpoints.location import location_of
location = location_of(sys.argv[1] + "/step-1")
with location.lease("a" * 16):
    partial = location.begin("a" * 16)
    partial.prepare()
    partial.write("manifest.json", b"{}")
    print("written", flush=True)
    time.sleep(120)
"""


@pytest.mark.faults
def test_the_files_of_another_process_are_deleted_when_it_is_dead(tmp_path):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert writer.stdout.readline()
        writer.send_signal(signal.SIGSTOP)
        assert location_of(tmp_path).clean() == []
    finally:
        writer.kill()
        writer.communicate(timeout=TIME_LIMIT)
    assert location_of(tmp_path).clean() == [f".partial-step-1-{'a' * 16}"]
    assert not list(tmp_path.iterdir())


def test_a_lease_ends_by_its_age_if_its_machine_is_another(tmp_path):
    now = time.time()
    path = tmp_path / "lease"
    path.write_bytes(b"another machine")
    assert not has_file_lease_ended(path, now)
    assert not has_file_lease_ended(path, now + 60)
    assert has_file_lease_ended(path, now + 3600)
    assert has_file_lease_ended(tmp_path / "missing", now)


def test_a_lease_whose_new_file_is_deleted_is_created_again(tmp_path, monkeypatch):
    rename, cleaned = os.rename, []

    def clean_before(source, target):
        if str(target).endswith(".lease") and len(cleaned) < 2:
            cleaned.extend(location_of(tmp_path).clean())
        rename(source, target)

    monkeypatch.setattr(os, "rename", clean_before)
    checkpoints.save(tmp_path / "one", STATE).wait()
    assert len(cleaned) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["one"]


def test_a_lease_that_cannot_be_created_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"lease cannot be created: File exists"):
        checkpoints.save(tmp_path / "file" / "one", STATE).wait()
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CheckpointError, match=r"lease cannot be created: No space left on device"):
        checkpoints.save(tmp_path / "two", STATE).wait()
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("content", "ended"), [(b"0", True), (b"x", True), (None, False)])
def test_leases_of_object_stores_end_by_their_age(content, ended):
    assert has_object_lease_ended(content) == ended
    assert not has_object_lease_ended(str(time.time() - 60).encode())


def test_a_lease_is_renewed(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "_RENEWAL", 0.01)
    with FileLease(tmp_path / "lease") as held:
        os.utime(held.path, (0, 0))
        deadline = time.monotonic() + TIME_LIMIT
        while held.path.stat().st_mtime == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert not held.path.exists()


def test_without_locks_a_lease_ends_by_its_age(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "fcntl", lazy_module("no_locks"))  # its use raises ImportError
    with FileLease(tmp_path / "lease") as held:
        assert not has_file_lease_ended(held.path, time.time())
        assert has_file_lease_ended(held.path, time.time() + 3600)


def test_a_save_whose_files_another_program_deleted_is_not_committed(tmp_path, held_save):
    started = held_save(lambda: checkpoints.save(tmp_path / "one", STATE))
    (path,) = tmp_path.glob(".partial-*.lease")
    os.utime(path, (0, 0))  # as if the machine had slept
    (name,) = location_of(tmp_path).clean()
    assert path.name == f"{name}.lease"
    (tmp_path / name).mkdir()  # a writer creates folders as it goes on
    (tmp_path / name / "manifest.json").write_text("{}")
    held_save.release()
    with pytest.raises(CheckpointError, match=r"lease is gone: another program .* Earlier checkpoints are unchanged"):
        started.wait()
    assert not list(tmp_path.iterdir())


def snapshot_of(folder):
    return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in folder.rglob("*")}


def test_a_read_only_manager_changes_nothing(tmp_path):
    with checkpoints.Manager(tmp_path, every_steps=1, save_on_sigterm=False) as writer:
        writer.save(1, STATE)
    (tmp_path / ".partial-step-4-aaaa").mkdir()
    before = snapshot_of(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    with checkpoints.Manager(tmp_path, read_only=True) as manager:
        assert signal.getsignal(signal.SIGTERM) is handler
        assert manager.steps() == [1] and manager.latest() == 1
        assert manager.restore(STATE).tree["w"].tolist() == [0, 1, 2]
        with pytest.raises(CheckpointError, match="open with read_only=True"):
            manager.save(2, STATE, force=True)
        assert not manager.stopping
    assert snapshot_of(tmp_path) == before
    with checkpoints.Manager(tmp_path / "absent", read_only=True) as manager:
        assert manager.steps() == []
        with pytest.raises(CheckpointError, match="has no step to restore: there is none"):
            manager.restore(STATE)
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("name", ["every_steps", "every_minutes", "keep_last", "keep_every"])
def test_a_read_only_manager_has_no_rules_of_saving_and_keeping(tmp_path, name):
    with pytest.raises(ValueError, match=f"read_only=True needs no {name}"):
        checkpoints.Manager(tmp_path, read_only=True, **{name: 3})
