"""Stores of the compilation cache: an object store on loopback. `test_compilation_cache.py` tests folders."""

import os
import subprocess
import sys

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.base import object_store
from shardwise.base.config import config
from shardwise.base.object_store import ObjectStore
from shardwise.runtime import cache_stores, executable
from shardwise.runtime.cache_stores import Bucket, cache_store
from tests.checkpoints.object_server import S3Handler, object_server

VARIABLES = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
URL = "s3://bucket/cache"
KEYS = ["a" * 64, "b" * 64, "c" * 64]
X = np.arange(8, dtype=np.float32)


@pytest.fixture
def objects(monkeypatch):
    """The objects of an S3 server by bucket and key."""
    with object_server(S3Handler) as (url, objects):
        for name, value in {**VARIABLES, "AWS_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(name, value)
        yield objects


@pytest.fixture
def enabled(objects):
    """The same objects, with the cache enabled."""
    cache_store.cache_clear()
    config.update("compilation_cache_dir", URL)
    config.update("compilation_cache_key", "secret")
    yield objects
    config.update("compilation_cache_dir", "")
    config.update("compilation_cache_key", "")
    cache_store.cache_clear()


@pytest.fixture
def compilations(monkeypatch):
    seen = []
    compile_text = executable.compile_text
    monkeypatch.setattr(executable, "compile_text", lambda text, *rest: seen.append(text) or compile_text(text, *rest))
    return seen


def function():
    return sw.jit(lambda x: jnp.tanh(x) * 3 + 1)


def bucket():
    return Bucket(ObjectStore.from_url(URL))


def test_a_program_is_compiled_once(enabled, compilations):
    first = function()(X)
    assert sum(key.endswith(".executable") for key in enabled) == len(compilations) > 0
    before = len(compilations)
    np.testing.assert_array_equal(function()(X), first)
    assert len(compilations) == before


@pytest.mark.slow
def test_another_process_loads_the_entry(enabled, compilations):
    function()(X)
    script = (
        "import sys, numpy as np, shardwise as sw, shardwise.numpy as jnp\n"
        "events = []\n"
        "sw.monitoring.register_event_listener(lambda event, **_: events.append(event.rsplit('/', 1)[1]))\n"
        "sw.jit(lambda x: jnp.tanh(x) * 3 + 1)(np.arange(8, dtype=np.float32))\n"
        "print(*(event for event in events if event.startswith('cache_')))\n"
    )
    settings = {"SHARDWISE_COMPILATION_CACHE_DIR": URL, "SHARDWISE_COMPILATION_CACHE_KEY": "secret"}
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert set(run.stdout.split()) == {"cache_hits"}


def test_an_entry_with_another_key_is_compiled_again(enabled, compilations, caplog):
    first = function()(X)
    count = len(compilations)
    config.update("compilation_cache_key", "another secret")
    np.testing.assert_array_equal(function()(X), first)
    assert len(compilations) == 2 * count
    assert f"damaged or has another key, which is compiled again: {URL}/" in caplog.text


def test_without_a_key_an_object_store_is_not_used(objects, caplog, compilations):
    config.update("compilation_cache_dir", URL)
    try:
        function()(X)
    finally:
        config.update("compilation_cache_dir", "")
        cache_store.cache_clear()
    assert objects == {} and len(compilations) > 0
    assert "Set compilation_cache_key to a secret" in caplog.text


@pytest.mark.parametrize(("url", "text"), [("ftp://x/y", "must begin with s3:// or gs://"), ("s3://", "no bucket")])
def test_a_wrong_url_is_logged(url, text, caplog):
    assert cache_store(url, True) is None
    assert text in caplog.text


def test_an_unreachable_store_is_asked_once(enabled, monkeypatch, caplog, compilations):
    monkeypatch.setattr(object_store, "_RETRIES", {"max_retries": 1, "initial_delay": "1ms"})
    with object_server(S3Handler) as (unused, _):
        pass
    monkeypatch.setenv("AWS_ENDPOINT_URL", unused)
    events = []
    listener = lambda event, **_: events.append(event)  # noqa: E731
    sw.monitoring.register_event_listener(listener)
    try:
        function()(X)
        assert caplog.text.count("the compilation cache is not used any more") == 1
        before = caplog.text
        sw.jit(lambda x: jnp.tanh(x) * 11)(X)
    finally:
        sw.monitoring.unregister_event_listener(listener)
    assert caplog.text == before and enabled == {}
    assert "/jax/compilation_cache/cache_misses" in events and "/shardwise/compilation_cache/written" not in events


def test_the_least_recently_used_entries_are_evicted(objects, monkeypatch):
    store, now = bucket(), [1_000_000.0]
    monkeypatch.setattr(cache_stores.time, "time", lambda: now[0])
    for key in KEYS:
        store.write(key, b"x" * 100)
        now[0] += 10
    now[0] += 100_000
    store.record_use(KEYS[0])
    store.evict(200)
    assert [store.read(key) is not None for key in KEYS] == [True, False, True]
    store.evict(100)
    assert [store.read(key) is not None for key in KEYS] == [True, False, False]
    assert len(objects) == 2  # the entry and the record of its use


def test_a_use_is_recorded_once_a_day(objects, monkeypatch):
    store, now = bucket(), [1_000_000.0]
    monkeypatch.setattr(cache_stores.time, "time", lambda: now[0])
    store.write(KEYS[0], b"x")
    written = set(objects)
    now[0] += 3600
    store.record_use(KEYS[0])
    assert set(objects) == written
    now[0] += 24 * 3600
    store.record_use(KEYS[0])
    assert set(objects) != written and len(objects) == len(written)


def test_objects_of_others_are_left_alone(objects):
    store = bucket()
    objects["bucket/cache/uses/../notes"] = objects["bucket/cache/uses/readme"] = b"text"
    store.write(KEYS[0], b"x" * 100)
    store.evict(0)
    assert sorted(objects) == ["bucket/cache/uses/../notes", "bucket/cache/uses/readme"]
