"""Manager: when steps are saved, which are kept, and which is restored."""

import math
import os
import signal

import numpy as np
import pytest

import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.checkpoints.location import Folder
from shardwise.checkpoints.manifest import Manifest
from shardwise.errors import CheckpointError, CorruptCheckpoint


def state(step):
    return {"w": jnp.full(3, step)}


def run(manager, steps):
    for step in steps:
        manager.save(step, state(step), metrics={"loss": abs(step - 12)}, metadata={"batch": step})
    manager.wait()


def test_steps_are_saved_when_they_are_due_and_kept_by_the_rules(tmp_path):
    with checkpoints.Manager(tmp_path, every_steps=3, keep_last=2, keep_every=9, keep_best=1, metric="loss") as manager:
        assert manager.latest() is None
        run(manager, range(31))
        assert manager.steps() == [9, 12, 18, 27, 30]
        restored = manager.restore(state(0))
        assert restored.step == manager.latest() == 30
        np.testing.assert_array_equal(restored.tree["w"], [30] * 3)
        assert restored.metrics == {"loss": 18} and restored.metadata == {"batch": 30}
        assert manager.restore(state(0), step=12).metrics == {"loss": 0}


def test_every_minutes_saves_when_time_has_passed(tmp_path):
    manager = checkpoints.Manager(tmp_path / "now", every_minutes=0, save_on_sigterm=False)
    assert manager.save(1, state(1)) is not None
    later = checkpoints.Manager(tmp_path / "later", every_minutes=60, save_on_sigterm=False)
    assert later.save(1, state(1)) is None and later.save(2, state(2), force=True) is not None
    manager.close()
    later.close()


def test_a_corrupt_step_is_skipped_with_a_warning(tmp_path):
    manager = checkpoints.Manager(tmp_path, every_steps=1, save_on_sigterm=False)
    run(manager, [1, 2, 3])
    for step in (2, 3):
        (tmp_path / f"step-{step}" / "manifest.json").write_text("{")
    with pytest.warns(UserWarning, match=r"step [23] is skipped") as caught:
        assert manager.restore(state(0)).step == 1
    assert len(caught) == 2
    with pytest.raises(CorruptCheckpoint):
        manager.restore(state(0), step=3)
    (tmp_path / "step-1" / "manifest.json").write_text("{")
    with pytest.warns(UserWarning), pytest.raises(CheckpointError, match="none can be read"):
        manager.restore(state(0))


@pytest.fixture
def decoded(monkeypatch):
    """The files of the manifests that are decoded, in order."""
    files, decode = [], Manifest.decode
    monkeypatch.setattr(Manifest, "decode", lambda data, where: files.append(where) or decode(data, where))
    return files


def test_every_manifest_is_decoded_once(tmp_path, decoded):
    keep = {"every_steps": 1, "keep_last": 3, "keep_best": 1, "metric": "loss", "save_on_sigterm": False}
    with checkpoints.Manager(tmp_path, **keep) as manager:
        run(manager, range(11, 16))
    manifests = [f"{tmp_path}/step-{step}/manifest.json" for step in range(17)]
    assert decoded == []  # before a commit, the leaves are checked one by one
    with checkpoints.Manager(tmp_path, **keep) as manager:
        assert manager.restore(state(0)).metadata == {"batch": 15}
        assert decoded == manifests[15:16]
        run(manager, [16, 17])
        assert manager.steps() == [12, 15, 16, 17]
    assert decoded[1:] == manifests[12:16]


def test_a_corrupt_step_is_not_deleted_and_read_once(tmp_path, decoded):
    with checkpoints.Manager(tmp_path, every_steps=1, save_on_sigterm=False) as manager:
        run(manager, [1, 2])
    (tmp_path / "step-1" / "manifest.json").write_text("{")
    decoded.clear()
    with checkpoints.Manager(tmp_path, every_steps=1, keep_last=1, save_on_sigterm=False) as manager:
        run(manager, [3, 4, 5])
        assert manager.steps() == [1, 5]
    assert decoded.count(f"{tmp_path}/step-1/manifest.json") == 1


def refuse(monkeypatch, module, function, name):
    """Let a function of a module fail for paths that contain a name."""
    original = getattr(module, function)

    def refused(path, *arguments, **options):
        if name in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *arguments, **options)

    monkeypatch.setattr(module, function, refused)


@pytest.mark.parametrize("function", ["rename", "unlink", "rmdir"])
def test_an_old_step_that_cannot_be_deleted_is_a_warning(tmp_path, monkeypatch, function):
    with checkpoints.Manager(tmp_path, every_steps=1, keep_last=1, save_on_sigterm=False) as manager:
        run(manager, [1])
        refuse(monkeypatch, os, function, "step-1")
        started = manager.save(2, state(2))
        started.wait()  # the step is saved
        with pytest.warns(UserWarning, match=r"step 2 is saved, but the old step 1 cannot be .*Permission denied"):
            manager.save(3, state(3))
        monkeypatch.undo()
        run(manager, [4])
        assert manager.restore(state(0)).step == 4
        assert manager.steps() == [4]


def test_a_folder_that_cannot_be_listed_after_a_commit_is_a_warning(tmp_path, monkeypatch):
    def denied(self):
        raise CheckpointError("cannot be listed")

    with checkpoints.Manager(tmp_path, every_steps=1, keep_last=1, save_on_sigterm=False) as manager:
        with monkeypatch.context() as patch:
            patch.setattr(Folder, "children", denied)
            started = manager.save(1, state(1))
            started.wait()
        with pytest.warns(UserWarning, match="step 1 is saved, but no old steps can be deleted: cannot be listed"):
            manager.wait()
        assert manager.steps() == [1]


def test_an_error_of_after_commit_says_that_the_checkpoint_is_saved(tmp_path):
    def fail():
        raise KeyError("name")

    started = checkpoints.save(tmp_path / "one", state(1), after_commit=fail)
    with pytest.raises(CheckpointError, match=r"one is saved, but the function `after_commit` raised KeyError: 'name'"):
        started.wait()
    assert checkpoints.verify(tmp_path / "one") == 12


def test_a_step_with_other_metadata_is_an_error(tmp_path):
    checkpoints.save(tmp_path / "step-1", state(1), metadata={"metrics": {"loss": 1.5}}).wait()
    with pytest.raises(CheckpointError, match="not saved by a Manager"):
        checkpoints.Manager(tmp_path, save_on_sigterm=False).restore(state(0))


def test_sigterm_saves_the_step_and_stops(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with checkpoints.Manager(tmp_path) as manager:
        for step in range(100):
            if step == 7:
                os.kill(os.getpid(), signal.SIGTERM)
            manager.save(step, state(step))
            if manager.stopping:
                break
        assert manager.steps() == [step] == [7]
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_interrupted_saves_left_is_deleted(tmp_path):
    (tmp_path / ".partial-step-4-aaaa" / "arrays").mkdir(parents=True)
    manager = checkpoints.Manager(tmp_path, save_on_sigterm=False)
    assert manager.steps() == [] and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_created_is_an_error_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be created"):
        checkpoints.Manager(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    "arguments",
    [
        {"keep_best": 1},
        {"metric": "loss"},
        {"keep_last": 0},
        {"keep_last": 1.5},
        {"keep_every": "2"},
        {"every_steps": 0},
        {"every_steps": 2.5},
        {"every_steps": "3"},
        {"every_minutes": -1},
        {"every_minutes": "soon"},
        {"every_minutes": math.nan},
        {"processes": [0]},
    ],
)
def test_arguments_that_are_not_valid(arguments):
    with pytest.raises(ValueError, match=r"at least [01], not|needs"):
        checkpoints.Manager("unused", **arguments)


def test_steps_are_integers_from_0_on(tmp_path):
    with checkpoints.Manager(tmp_path, save_on_sigterm=False) as manager:
        for step in (np.int64(4), jnp.int32(5), 0):
            manager.save(step, state(3), force=True)
        with pytest.raises(ValueError, match="numbered from 0 on, not -1"):
            manager.save(-1, state(3), force=True)
        for step in (1.5, "3", None):
            with pytest.raises(TypeError, match=f"a step is an integer, not {step!r}"):
                manager.save(step, state(3), force=True)
        manager.wait()
        assert manager.steps() == [0, 4, 5]
        for step in (7, -1, "4"):
            with pytest.raises(CheckpointError, match=f"has no step {step!r}: the last ones that it has are 0, 4, 5"):
                manager.restore(step=step)
        np.testing.assert_array_equal(manager.restore(step=4).tree["w"], [3, 3, 3])


def test_metrics_are_numbers(tmp_path):
    with checkpoints.Manager(tmp_path, save_on_sigterm=False) as manager:
        for metrics in ({"loss": "low"}, {"loss": jnp.ones(3)}, {"loss": None}, 3):
            with pytest.raises(TypeError, match=r"the metric 'loss' is not a number|metrics are a dict"):
                manager.save(1, state(1), metrics=metrics, force=True)
        manager.save(1, state(1), metrics={"loss": jnp.float32(0.5)}, force=True)
        manager.wait()
        assert manager.restore().metrics == {"loss": 0.5}
