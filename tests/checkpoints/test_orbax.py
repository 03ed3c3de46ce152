"""Orbax's checkpoints are read. Those in `orbax/` were written by Orbax 0.12.8, in each of its formats:

PyTreeCheckpointHandler(use_ocdbt=..., use_zarr3=...), and StandardCheckpointer for `standard`
"""

import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from shardwise import checkpoints
from shardwise.errors import CheckpointError, CorruptCheckpoint

FOLDER = Path(__file__).parent / "orbax"


def check(tree):
    np.testing.assert_array_equal(tree["params"]["w"], np.arange(12, dtype=np.float32).reshape(3, 4))
    first, second = tree["params"]["b"]
    assert first.dtype == ml_dtypes.bfloat16 and second.dtype == np.int64
    np.testing.assert_array_equal(first.astype(float), [1, 1])
    np.testing.assert_array_equal(second, [0, 1, 2])
    assert tree["step"] == 7 and tree["n"] is None and tree["name"] == "x"


@pytest.mark.parametrize("name", ["zarr3_ocdbt", "zarr2_ocdbt", "zarr2"])
def test_every_format_is_read_and_imported(name, tmp_path):
    check(checkpoints.read_orbax(FOLDER / name))
    checkpoints.import_orbax(FOLDER / name, tmp_path / "one").wait()
    check(checkpoints.restore(tmp_path / "one"))


@pytest.mark.parametrize("name", ["zarr3_ocdbt", "zarr2"])
def test_paths_may_have_spaces_and_other_characters(name, tmp_path):
    copied = shutil.copytree(FOLDER / name, tmp_path / "ünï code%20 #1?")
    check(checkpoints.read_orbax(copied))


def test_the_only_item_of_a_checkpoint_is_found(tmp_path):
    shutil.copytree(FOLDER / "standard", tmp_path / "5" / "default")
    tree = checkpoints.read_orbax(tmp_path / "5")
    assert tree["step"] == 7
    np.testing.assert_array_equal(tree["params"]["w"], np.arange(12, dtype=np.float32).reshape(3, 4))
    shutil.copytree(FOLDER / "standard", tmp_path / "5" / "other")
    with pytest.raises(CheckpointError, match="several items, default, other"):
        checkpoints.read_orbax(tmp_path / "5")


def test_broken_checkpoints_are_errors(tmp_path):
    with pytest.raises(CheckpointError, match="no Orbax checkpoint"):
        checkpoints.read_orbax(tmp_path)
    copied = shutil.copytree(FOLDER / "zarr2", tmp_path / "one")
    (copied / "params.w" / "0.0").unlink()
    with pytest.raises(CorruptCheckpoint, match="'params/w'"):
        checkpoints.read_orbax(copied)
    (copied / "_METADATA").write_text("{")
    with pytest.raises(CorruptCheckpoint, match="not JSON"):
        checkpoints.read_orbax(copied)
