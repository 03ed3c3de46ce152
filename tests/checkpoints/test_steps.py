"""Names of steps: only a name that its number has is one."""

import shutil

import pytest

import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.checkpoints.steps import parse_step, step_name

OTHERS = [
    "step-007",
    "step-00",
    "step-٣",
    "step-\uff13",
    "step-७",
    "step-1_0",
    "step-+1",
    "step--1",
    "step- 1",
    "step-1 ",
    "step-1\n",
    "step-",
    "Step-1",
    "xstep-1",
    "step-1e3",
    "corrupt-step-1-00000000",
]


@pytest.mark.parametrize("step", [0, 1, 7, 10, 2**63, 10**40])
def test_names_of_steps_are_read_back(step):
    assert parse_step(step_name(step)) == step


@pytest.mark.parametrize("name", OTHERS)
def test_other_names_are_not_steps(name):
    assert parse_step(name) is None


def test_folders_with_other_names_are_neither_listed_nor_restored_nor_deleted(tmp_path):
    with checkpoints.Manager(tmp_path, every_steps=1, keep_last=1, save_on_sigterm=False) as manager:
        manager.save(1, {"w": jnp.ones(3)})
        manager.wait()
        for name in OTHERS:
            shutil.copytree(tmp_path / "step-1", tmp_path / name)
        assert manager.steps() == [1]
        assert manager.restore().step == 1
        manager.save(2, {"w": jnp.ones(3)})
        manager.wait()
        assert manager.steps() == [2]
    assert {entry.name for entry in tmp_path.iterdir()} == {"step-2", *OTHERS}
