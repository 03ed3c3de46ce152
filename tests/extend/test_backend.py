"""extend.backend: clients, devices and compile options."""

from functools import lru_cache

import numpy as np
import pytest

import shardwise as sw
from shardwise.base._jaxlib import cpu_client
from shardwise.errors import PlatformError, UnsupportedError
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


def test_platforms_cannot_be_removed():
    with pytest.raises(UnsupportedError, match=r"Call `clear_caches\(\)`"):
        backend.clear_backends()


def test_a_platform_is_added_by_a_factory():
    backend.register_backend_factory("of a factory", lambda: cpu_client(3))
    device = sw.devices("of a factory")[2]
    assert sw.local_device_count("of a factory") == 3 and sw.default_backend() == "cpu"  # its priority is 0
    x = sw.device_put(np.arange(4.0, dtype=np.float32), device)
    assert sw.jit(lambda x: x @ x)(x).devices() == {device}
    assert float(sw.grad(lambda x: (x * x).sum())(x)[3]) == 6.0
    with pytest.raises(PlatformError, match="the platform 'of a factory' is in use already"):
        backend.register_backend_factory("of a factory", lambda: None)


@pytest.mark.parametrize("factory", [lambda: None, lambda: 1 / 0], ids=["none", "exception"])
def test_a_factory_that_fails(factory):
    backend.register_backend_factory("broken", factory)
    with pytest.raises(
        PlatformError, match=r"the PJRT plugin 'broken' \(from register_backend_factory\) cannot be used"
    ):
        sw.devices("broken")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "'mine' needs either library_path or c_api"),
        ({"library_path": "/a.so", "c_api": 1}, ValueError, "'mine' needs either library_path or c_api"),
        (
            {"library_path": "/a.so", "factory": lambda: None, "options": {}},
            ValueError,
            "'mine' has a factory, to which options are not passed",
        ),
        (
            {"library_path": "/no/a.so"},
            PlatformError,
            r"'mine' \(/no/a.so, from register_plugin\) cannot be used: .*No such",
        ),
    ],
    ids=["nothing", "both", "factory and options", "missing"],
)
def test_errors_of_register_plugin(arguments, error, message):
    with pytest.raises(error, match=message):
        backend.register_plugin("mine", **arguments)


def test_the_name_of_the_cpu_is_taken():
    with pytest.raises(PlatformError, match="the platform 'cpu' is in use already"):
        backend.register_plugin("cpu", library_path="/a.so")
