"""Runs that continue from an earlier step: the steps after it are set aside, and nothing is deleted."""

import warnings
from contextlib import suppress

import numpy as np
import pytest

import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.errors import CheckpointError, CheckpointExists, CheckpointNotFound, CorruptCheckpoint


def state(value):
    return {"w": jnp.full(3, value)}


def open_manager(folder, **arguments):
    return checkpoints.Manager(folder, every_steps=10, save_on_sigterm=False, **arguments)


def run(manager, steps, value=0):
    for step in steps:
        manager.save(step, state(step + value), force=True)
    manager.wait()


def values(manager):
    return {step: int(manager.restore(step=step).tree["w"][0]) for step in manager.steps()}


def flip_bit(folder):
    """Change a bit of the elements of a checkpoint; its manifest is valid."""
    (path,) = (path for path in (folder / "packs").rglob("*") if path.is_file() and path.name != "zarr.json")
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def break_manifest(folder):
    (folder / "manifest.json").write_text("{")


def delete_manifest(folder):
    (folder / "manifest.json").unlink()


def train(folder, stop, **arguments):
    """Run the loop of docs/checkpoints.md until a step, and return the step that it began with."""
    with open_manager(folder, **arguments) as manager, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        start, tree = 0, state(0)
        if manager.latest() is not None:
            restored = manager.restore(tree)
            start, tree = restored.step + 1, restored.tree
        for step in range(start, stop):
            tree = {"w": tree["w"] + 1}
            manager.save(step, tree)
    return start


@pytest.mark.parametrize("damage", [flip_bit, break_manifest, delete_manifest])
@pytest.mark.parametrize("keep", [{}, {"keep_last": 1}])
def test_the_documented_loop_goes_on_after_a_corrupt_step(tmp_path, damage, keep):
    train(tmp_path, 31, **keep)
    if keep:
        train(tmp_path, 41, keep_last=2)
        last = 40
    else:
        last = 30
    damage(tmp_path / f"step-{last}")
    assert train(tmp_path, 51, **keep) == last - 9
    with open_manager(tmp_path) as manager:
        assert manager.latest() == 50
        assert values(manager)[50] == 51
    (aside,) = tmp_path.glob("corrupt-*")
    assert aside.name.startswith(f"corrupt-step-{last}-")
    with pytest.raises((CorruptCheckpoint, CheckpointNotFound)):
        checkpoints.restore(aside)
    assert train(tmp_path, 52, **keep) == 51


def test_every_restart_replaces_the_step_that_is_corrupt_then(tmp_path):
    train(tmp_path, 31)
    for _ in range(3):
        flip_bit(tmp_path / "step-30")
        assert train(tmp_path, 31) == 21
    assert len(list(tmp_path.glob("corrupt-step-30-*"))) == 3
    checkpoints.verify(tmp_path / "step-30")


def test_a_corrupt_step_does_not_count_as_one_that_is_kept(tmp_path):
    with open_manager(tmp_path, keep_last=2) as manager:
        run(manager, [10, 20])
    flip_bit(tmp_path / "step-20")
    with open_manager(tmp_path, keep_last=1) as manager:
        with pytest.warns(UserWarning, match="step 20 is skipped"):
            assert manager.restore(state(0)).step == 10
        run(manager, [15])
        assert values(manager) == {15: 15}


def test_a_good_step_is_never_replaced(tmp_path):
    with open_manager(tmp_path) as manager:
        run(manager, [10, 20])
        flip_bit(tmp_path / "step-20")
        with pytest.warns(UserWarning, match="step 20 is skipped"):
            manager.restore(state(0))
        (tmp_path / "step-20").rename(tmp_path / "elsewhere")
        with open_manager(tmp_path) as other:
            run(other, [20], value=100)
        manager.save(20, state(7))
        with pytest.raises(CheckpointExists, match="another writer saved it"):
            manager.wait()
        assert values(manager) == {10: 10, 20: 120}
        with pytest.raises(CheckpointExists):
            manager.save(10, state(7))


def test_steps_are_set_aside_by_the_next_save_if_one_fails(tmp_path, monkeypatch):
    with open_manager(tmp_path) as manager:
        run(manager, [10, 20])
        flip_bit(tmp_path / "step-20")
        with pytest.warns(UserWarning, match="step 20 is skipped"):
            manager.restore(state(0))

        def fail(*arguments):
            raise CheckpointError("disk")

        with monkeypatch.context() as patch:
            patch.setattr(checkpoints.Save, "_write_manifest", fail)
            manager.save(20, state(7))
            with suppress(CheckpointError):
                manager.wait()
        run(manager, [20], value=100)
        assert values(manager) == {10: 10, 20: 120}


@pytest.mark.parametrize("keep", [{"keep_last": 2}, {"keep_last": 1}, {"keep_every": 10, "keep_last": 1}, {}])
def test_new_steps_are_kept_after_going_back(tmp_path, keep):
    with open_manager(tmp_path) as manager:
        run(manager, [10, 20, 30])
    with open_manager(tmp_path, **keep) as manager:
        np.testing.assert_array_equal(manager.restore(state(0), step=10).tree["w"], [10] * 3)
        assert manager.steps() == [10, 20, 30]  # until a step is saved
        for step in (11, 20, 25):
            run(manager, [step], value=100)
            assert manager.latest() == step
            assert manager.restore(state(0)).tree["w"].tolist() == [step + 100] * 3
        expected = {10: 10, 11: 111, 20: 120, 25: 125}
        if keep == {"keep_last": 2}:
            expected = {20: 120, 25: 125}
        elif keep == {"keep_last": 1}:
            expected = {25: 125}
        elif keep:
            expected = {10: 10, 20: 120, 25: 125}
        assert values(manager) == expected
    aside = sorted(tmp_path.glob("abandoned-step-*"))
    assert [path.name.rpartition("-")[0] for path in aside] == ["abandoned-step-20", "abandoned-step-30"]
    assert [checkpoints.restore(path)["w"].tolist() for path in aside] == [[20] * 3, [30] * 3]


def test_a_restart_after_going_back_restores_the_new_steps(tmp_path):
    with open_manager(tmp_path) as manager:
        run(manager, [10, 20, 30])
        manager.restore(state(0), step=10)
        run(manager, [15], value=100)
    with open_manager(tmp_path) as manager:
        assert manager.restore(state(0)).tree["w"].tolist() == [115] * 3


def test_a_step_after_all_others_sets_none_aside(tmp_path):
    with open_manager(tmp_path, keep_last=2) as manager:
        run(manager, [20, 30])
        manager.restore(state(0), step=20)  # to look at it
        run(manager, [40])
        assert values(manager) == {30: 30, 40: 40}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-30", "step-40"]


def test_a_step_is_never_pruned_by_its_own_save(tmp_path):
    with open_manager(tmp_path, keep_last=2) as manager:
        run(manager, [20, 30])
        run(manager, [5])
        assert values(manager) == {5: 5, 20: 20, 30: 30}


@pytest.mark.slow
@pytest.mark.parametrize("store", ["s3", pytest.param("gs", marks=pytest.mark.slow)], indirect=True)
def test_steps_on_object_stores_are_set_aside(store):
    url = f"{store.url}/run"
    with open_manager(url) as manager:
        run(manager, [10, 20, 30])
        manager.restore(state(0), step=10)
        run(manager, [15, 20], value=100)
        assert values(manager) == {10: 10, 15: 115, 20: 120}
    before = set(store)
    assert sum("/set-aside-abandoned-" in key for key in before) == 2
    with open_manager(url, keep_last=1) as manager:
        assert set(store) == before  # opening deletes none of them
        run(manager, [40])
        assert values(manager) == {40: 40}
    for key in (key for key in before if "/set-aside-" in key):
        folder, token = key.rpartition("/")[0], store[key].decode()
        assert any(each.startswith(f"{folder}/{token}/") for each in store)


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_a_corrupt_step_on_an_object_store_is_replaced(store):
    url = f"{store.url}/run"
    with open_manager(url) as manager:
        run(manager, [10, 20])
    store["run/step-20/committed"] = b"../step-10"
    with open_manager(url) as manager:
        with pytest.warns(UserWarning, match="step 20 is skipped"):
            assert manager.restore(state(0)).step == 10
        run(manager, [20], value=100)
        assert values(manager) == {10: 10, 20: 120}
