"""Which step is restored while a writer deletes steps, and when listings are stale."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.checkpoints import manager as manager_module
from shardwise.checkpoints import selection
from shardwise.checkpoints.location import Folder
from shardwise.checkpoints.read import Reader
from shardwise.errors import CheckpointError, CheckpointNotFound
from tests.checkpoints.test_save_faults import ROOT, TIME_LIMIT


def state(step):
    return {"w": jnp.full(3, step)}


@pytest.fixture
def manager(tmp_path):
    with checkpoints.Manager(tmp_path, every_steps=1, save_on_sigterm=False) as opened:
        for step in (1, 2, 3):
            opened.save(step, state(step))
        opened.wait()
        yield opened


def delete_when_read(monkeypatch, function, folder, step, replacement=None):
    """Delete a step when a function of Reader is called the next time, and save another step."""
    original = getattr(Reader, function)

    def patched(self, *arguments, **options):
        if self_path(self, arguments).endswith(f"step-{step}") and (folder / f"step-{step}").exists():
            if replacement is not None and not (folder / f"step-{replacement}").exists():
                shutil.copytree(folder / f"step-{step}", folder / f"step-{replacement}")
            shutil.rmtree(folder / f"step-{step}")
        return original(self, *arguments, **options)

    def self_path(self, arguments):
        return str(arguments[0]) if function == "__init__" else self.path

    monkeypatch.setattr(Reader, function, patched)


@pytest.mark.parametrize("function", ["__init__", "read_small"])
def test_a_latest_step_that_is_deleted_while_it_is_read_is_no_error(tmp_path, manager, monkeypatch, function):
    delete_when_read(monkeypatch, function, tmp_path, 3, replacement=4)
    restored = manager.restore(state(0))
    assert restored.step == 4 and restored.tree["w"].tolist() == [3] * 3


@pytest.mark.parametrize("function", ["__init__", "read_small"])
def test_a_step_that_is_deleted_while_it_is_read_is_not_found(tmp_path, manager, monkeypatch, function):
    delete_when_read(monkeypatch, function, tmp_path, 1)
    delete_when_read(monkeypatch, function, tmp_path, 2)
    with pytest.raises(CheckpointNotFound, match="step-2 was deleted or replaced while it was read"):
        manager.restore(state(0), step=2)
    with pytest.raises(CheckpointNotFound, match="step-1 was deleted or replaced while it was read"):
        checkpoints.restore(tmp_path / "step-1", state(0))
    with pytest.raises(
        CheckpointNotFound, match=r"no step 2: the last ones that it has are 3. A step is deleted when the `keep_`"
    ):
        manager.restore(state(0), step=2)


def test_a_step_that_is_replaced_while_it_is_read_is_not_mixed(tmp_path, manager, monkeypatch):
    original = Reader.read_small

    def replace(self, names):
        yield from original(self, names)
        if self.path.endswith("step-3"):
            shutil.rmtree(tmp_path / "step-3")
            shutil.copytree(tmp_path / "step-2", tmp_path / "step-3")
            monkeypatch.undo()

    monkeypatch.setattr(Reader, "read_small", replace)
    assert manager.restore(state(0)).tree["w"].tolist() == [2] * 3


def test_steps_that_are_deleted_again_and_again_are_an_error(tmp_path, manager, monkeypatch):
    monkeypatch.setattr(manager_module, "_MOST_DELETIONS", 2)
    delete_when_read(monkeypatch, "read_small", tmp_path, 3, replacement=4)
    delete_when_read(monkeypatch, "read_small", tmp_path, 4, replacement=5)
    with pytest.raises(CheckpointNotFound, match="let that program keep more steps"):
        manager.restore(state(0))


def test_a_step_that_is_only_listed_is_skipped(tmp_path, manager, monkeypatch):
    monkeypatch.setattr(selection, "_PAUSE", 0.0)
    children = Folder.children
    monkeypatch.setattr(Folder, "children", lambda self: [*children(self), "step-9"])
    assert manager.restore(state(0)).step == 3


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path, manager, monkeypatch):
    def denied(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(tmp_path), "iterdir", denied)
    with pytest.raises(CheckpointError, match="cannot be listed: Permission denied"):
        manager.restore(state(0))


@pytest.mark.slow
@pytest.mark.faults
def test_restores_beside_a_writer_that_prunes(tmp_path):
    code = (
        "import sys, numpy as np\n"
        "from shardwise import checkpoints\n"
        "with checkpoints.Manager(sys.argv[1], every_steps=1, keep_last=1, save_on_sigterm=False) as manager:\n"
        "    for step in range(1, 1000000):\n"
        "        manager.save(step, {'w': np.full(1 << 19, step, np.float32), 'b': np.full(3, step)})\n"
        "        print(step, flush=True)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert [writer.stdout.readline() for _ in range(3)]
        with checkpoints.Manager(tmp_path, read_only=True) as manager:
            for _ in range(300):
                restored = manager.restore()
                assert set(np.unique(restored.tree["w"])) == set(np.unique(restored.tree["b"])) == {restored.step}
    finally:
        writer.kill()
        writer.communicate(timeout=TIME_LIMIT)
