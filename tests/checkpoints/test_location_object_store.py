"""Checkpoints on object stores: S3 and Google Cloud Storage, on loopback servers."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.base import object_store
from shardwise.checkpoints.location import location_of
from shardwise.errors import CheckpointError, CheckpointExists, CorruptCheckpoint
from tests.checkpoints.object_server import S3Handler, object_server


def tree(mesh):
    rows = sw.NamedSharding(mesh, sw.P("data", "model"))
    return {"w": sw.device_put(np.arange(96.0).reshape(8, 12), rows), "b": jnp.arange(3), "step": 4}


def test_save_and_restore(store, mesh):
    saved = tree(mesh)
    checkpoints.save(f"{store.url}/run/one", saved, metadata={"a": 1}).wait()
    restored = checkpoints.restore(f"{store.url}/run/one", saved)
    np.testing.assert_array_equal(restored["w"], saved["w"])
    np.testing.assert_array_equal(restored["b"], [0, 1, 2])
    assert restored["w"].sharding == saved["w"].sharding
    assert checkpoints.verify(f"{store.url}/run/one") == 96 * 4 + 12
    with pytest.raises(CheckpointExists):
        checkpoints.save(f"{store.url}/run/one", saved)


def test_nothing_is_seen_before_the_marker_is_written(store, mesh):
    checkpoints.save(f"{store.url}/run/one", tree(mesh)).wait()
    del store["run/one/committed"]
    assert location_of(f"{store.url}/run").children() == []
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        checkpoints.restore(f"{store.url}/run/one")
    checkpoints.save(f"{store.url}/run/one", tree(mesh)).wait()
    assert location_of(f"{store.url}/run").children() == ["one"]


def test_a_changed_or_deleted_object_is_an_error(store, mesh):
    checkpoints.save(f"{store.url}/run/one", tree(mesh)).wait()
    (key, *_) = (key for key in store if "/arrays/" in key and not key.endswith("zarr.json"))
    content = store[key]
    store[key] = bytes([content[0] ^ 1]) + content[1:]
    with pytest.raises(CorruptCheckpoint, match="'w'"):
        checkpoints.restore(f"{store.url}/run/one")
    del store[key]
    with pytest.raises(CorruptCheckpoint, match="'w'"):
        checkpoints.restore(f"{store.url}/run/one")


def test_an_object_of_another_shard_is_an_error(store, mesh):
    checkpoints.save(f"{store.url}/run/one", tree(mesh)).wait()
    first, second = sorted(key for key in store if "/arrays/" in key and not key.endswith("zarr.json"))[:2]
    store[first], store[second] = store[second], store[first]
    for read in (checkpoints.restore, checkpoints.verify):
        with pytest.raises(CorruptCheckpoint, match=r"'w', .*the file arrays/\d/c/0/0 does not belong there"):
            read(f"{store.url}/run/one")


def test_a_manager_keeps_steps(store, mesh):
    with checkpoints.Manager(f"{store.url}/run", every_steps=1, keep_last=2, save_on_sigterm=False) as manager:
        for step in range(1, 5):
            manager.save(step, tree(mesh), metadata={"batch": step})
        manager.wait()
        assert manager.steps() == [3, 4]
        assert manager.restore(tree(mesh)).metadata == {"batch": 4}
    assert not any("/step-1/" in key or "/step-2/" in key for key in store)


def test_of_two_writers_the_second_is_refused(store, mesh):
    one = location_of(f"{store.url}/run/one")
    first, second = (one.begin(token * 16) for token in "ab")
    one.commit(first)
    with pytest.raises(CheckpointExists, match="another writer saved it"):
        one.commit(second)
    assert store["run/one/committed"] == b"a" * 16


@pytest.mark.parametrize("store", ["s3"], indirect=True)
@pytest.mark.parametrize("marker", [b"../two/" + b"a" * 16, b"", b"\xff\x00", b"a" * 15, b"A" * 16, b"/etc"])
def test_a_forged_marker_is_an_error(store, mesh, marker):
    store["run/one/committed"] = marker
    with pytest.raises(CorruptCheckpoint, match="run/one/committed does not name the files of a checkpoint"):
        checkpoints.restore(f"{store.url}/run/one")


@pytest.mark.parametrize(
    ("url", "driver", "bucket", "path"),
    [
        ("s3://bucket", "s3", "bucket", ""),
        ("s3://bucket/run", "s3", "bucket", "run/"),
        ("gs://bucket/", "gcs", "bucket", ""),
        ("gs://my-bucket/a/b//", "gcs", "my-bucket", "a/b/"),
        ("gs://bucket/100%25 #1?x", "gcs", "bucket", "100%25 #1?x/"),  # keys are not quoted
    ],
)
def test_urls_name_buckets_and_prefixes(monkeypatch, url, driver, bucket, path):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    prefix = location_of(url)
    assert prefix.kvstore() == {"driver": driver, "bucket": bucket, "path": path}
    assert str(prefix) == url.rstrip("/")
    assert prefix.child("step-1").kvstore()["path"] == f"{path}step-1/"


@pytest.mark.parametrize("url", ["s3://", "gs:///", "gs://"])
def test_a_url_without_a_bucket_is_an_error(url):
    with pytest.raises(CheckpointError, match=r"names no bucket: write (s3|gs)://bucket/name"):
        location_of(url)


def test_an_unreachable_store_is_an_error(store, monkeypatch):
    monkeypatch.setattr(object_store, "_RETRIES", {"max_retries": 1, "initial_delay": "1ms"})
    with object_server(S3Handler) as (unused, _):
        pass
    monkeypatch.setenv(store.endpoint_variable, unused)
    with pytest.raises(CheckpointError, match=r"://bucket/run cannot be written: "):
        checkpoints.Manager(f"{store.url}/run", every_steps=1, save_on_sigterm=False)
    with pytest.raises(CheckpointError, match=r"://bucket/run/one cannot be read: "):
        checkpoints.restore(f"{store.url}/run/one")
    with pytest.raises(CheckpointError, match=r"://bucket/run cannot be listed: "):
        location_of(f"{store.url}/run").children()
