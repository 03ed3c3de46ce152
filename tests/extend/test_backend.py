"""extend.backend: clients, devices and compile options."""

from functools import lru_cache

import pytest

import shardwise as sw
from shardwise.errors import UnsupportedError
from shardwise.extend import backend


def test_clients_and_devices():
    client = backend.get_backend("cpu")
    assert backend.backends()["cpu"] is client and backend.get_backend(client) is client
    assert client.local_devices()[0] == sw.devices("cpu")[0]
    with sw.default_device(sw.devices("cpu")[1]):
        assert backend.get_default_device() == sw.devices("cpu")[1]
    with pytest.raises(RuntimeError, match="the platform 'abacus' is not supported"):
        backend.get_backend("abacus")


def test_compile_options():
    options = backend.get_compile_options(2, 1, [1, 0], {"xla_cpu_enable_fast_math": "true"})
    assert (options.num_replicas, options.num_partitions) == (2, 1)
    assert options.device_assignment.replica_count() == 2
    text = sw.jit(lambda x: x + 1).lower(1.0).as_text()
    client = backend.get_backend("cpu")
    assert client.compile_and_load(text, client.local_devices()[:1], backend.get_compile_options(1, 1)) is not None


def test_caches_are_cleared():
    cached = lru_cache(lambda x: x)
    backend.register_backend_cache(cached, "a test")
    cached(1)
    backend.clear_in_memory_compilation_cache()
    assert cached.cache_info().currsize == 0


def test_platforms_cannot_be_added_or_removed():
    with pytest.raises(UnsupportedError, match="the platform 'mine' cannot be added"):
        backend.register_backend_factory("mine", lambda: None, priority=1)
    with pytest.raises(UnsupportedError, match=r"Call `clear_caches\(\)`"):
        backend.clear_backends()
