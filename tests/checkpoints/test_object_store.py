"""Checkpoints on an object store: S3, on a loopback server."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.checkpoints import snapshot
from shardwise.checkpoints.location import location_of
from shardwise.errors import CheckpointError, CheckpointExists, CorruptCheckpoint
from tests.checkpoints.s3_server import s3_server


@pytest.fixture
def objects(monkeypatch):
    with s3_server() as (url, objects):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setattr(snapshot, "LARGEST_PACKED", 100)
        yield objects


def tree(mesh):
    rows = sw.NamedSharding(mesh, sw.P("data", "model"))
    return {"w": sw.device_put(np.arange(96.0).reshape(8, 12), rows), "b": jnp.arange(3), "step": 4}


def test_save_and_restore(objects, mesh):
    saved = tree(mesh)
    checkpoints.save("s3://bucket/run/one", saved, metadata={"a": 1}).wait()
    restored = checkpoints.restore("s3://bucket/run/one", saved)
    np.testing.assert_array_equal(restored["w"], saved["w"])
    np.testing.assert_array_equal(restored["b"], [0, 1, 2])
    assert restored["w"].sharding == saved["w"].sharding
    assert checkpoints.verify("s3://bucket/run/one") == 96 * 4 + 12
    with pytest.raises(CheckpointExists):
        checkpoints.save("s3://bucket/run/one", saved)


def test_nothing_is_seen_before_the_marker_is_written(objects, mesh):
    checkpoints.save("s3://bucket/run/one", tree(mesh)).wait()
    del objects["bucket/run/one/committed"]
    assert location_of("s3://bucket/run").children() == []
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        checkpoints.restore("s3://bucket/run/one")
    checkpoints.save("s3://bucket/run/one", tree(mesh)).wait()
    assert location_of("s3://bucket/run").children() == ["one"]


def test_a_changed_or_deleted_object_is_an_error(objects, mesh):
    checkpoints.save("s3://bucket/run/one", tree(mesh)).wait()
    (key, *_) = (key for key in objects if "/arrays/" in key and not key.endswith("zarr.json"))
    content = objects[key]
    objects[key] = bytes([content[0] ^ 1]) + content[1:]
    with pytest.raises(CorruptCheckpoint, match="'w'"):
        checkpoints.restore("s3://bucket/run/one")
    del objects[key]
    with pytest.raises(CorruptCheckpoint, match="'w'"):
        checkpoints.restore("s3://bucket/run/one")


def test_a_manager_keeps_steps(objects, mesh):
    with checkpoints.Manager("s3://bucket/run", every_steps=1, keep_last=2, save_on_sigterm=False) as manager:
        for step in range(1, 5):
            manager.save(step, tree(mesh), metadata={"batch": step})
        manager.wait()
        assert manager.steps() == [3, 4]
        assert manager.restore(tree(mesh)).metadata == {"batch": 4}
    assert not any("/step-1/" in key or "/step-2/" in key for key in objects)
