"""Manifests that are too large."""

import pytest

from shardwise import checkpoints
from shardwise.errors import CheckpointError


def test_a_manifest_that_is_too_large_to_be_read_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("shardwise.checkpoints.untrusted_json._MOST_VALUES", 100)
    checkpoints.save(tmp_path / "few", {"a": 1}).wait()
    with pytest.raises(CheckpointError, match=r"the manifest of 50 leaves would have .* bytes, too many to be read"):
        checkpoints.save(tmp_path / "many", {str(index): index for index in range(50)}).wait()
    assert not (tmp_path / "many").exists()
