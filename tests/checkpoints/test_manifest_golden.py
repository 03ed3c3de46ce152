"""Checkpoints that earlier versions of the format wrote stay readable."""

import pytest

import shardwise as sw
from shardwise import checkpoints
from shardwise.checkpoints.manifest import FORMAT_VERSION, Chunked
from tests.checkpoints.test_save_restore import assert_same
from tests.checkpoints.write_golden import FOLDER, golden_tree

VERSIONS = sorted(FOLDER.iterdir())


def test_there_is_one_for_every_version():
    assert [path.name for path in VERSIONS] == [f"version-{index}" for index in range(1, FORMAT_VERSION + 1)]


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.name)
def test_golden_checkpoints_are_read(path):
    tree = golden_tree()
    sw.tree.map(assert_same, checkpoints.restore(path, tree), tree, is_leaf=lambda x: x is None)
    manifest = checkpoints.read_manifest(path)
    assert manifest.metadata == {"note": "golden"}
    assert isinstance(manifest.leaves["large"].storage, Chunked)
    assert isinstance(manifest.leaves["small/0"].storage, tuple)
    assert checkpoints.verify(path) == manifest.nbytes
