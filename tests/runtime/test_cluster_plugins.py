"""The platform of the processes of a cluster, with fake plugins."""

from types import SimpleNamespace

import pytest

from shardwise.errors import PlatformError
from shardwise.runtime import client as client_module
from shardwise.runtime import cluster as module
from tests.runtime.plugins.fakes import fake_client, fake_plugin, registry_of


@pytest.fixture
def create_clients(monkeypatch):
    """Return a function that creates the clients of process 1 of 2, and returns these and the options of plugins."""

    def create(*plugins, platforms="", devices=None):
        registry, passed = registry_of(*plugins), []
        settings = SimpleNamespace(platforms=platforms, num_cpu_devices=1, target_platform="", enable_x64=False)
        clients = client_module._Clients()
        for each in (module, client_module):
            monkeypatch.setattr(each, "plugins", registry)
            monkeypatch.setattr(each, "config", settings)
        monkeypatch.setattr(module, "clients", clients)
        monkeypatch.setattr(client_module, "_on_first_use", lambda: None)
        monkeypatch.setattr(module, "cluster_cpu_client", lambda *arguments: fake_client("cpu"))

        def create_client(plugin, options, store):
            passed.append((plugin.name, options, store))
            return client_module.create_client(plugin)

        monkeypatch.setattr(module, "create_client", create_client)
        cluster = module._Cluster()
        cluster._store, cluster._create_collectives = "store", lambda member: None
        cluster.wait_for_processes = lambda call, ranks, point: call()
        cluster._create_clients(SimpleNamespace(rank=1, num_processes=2, local_host="host"), devices, None)
        return clients, passed

    return create


def test_the_plugin_with_the_highest_priority_is_the_default(create_clients):
    clients, passed = create_clients(fake_plugin("low", 10), fake_plugin("high", 20), devices=[3])
    assert clients.get().platform == "high" and set(clients.by_platform) == {"cpu", "high"}
    assert passed == [("high", {"node_id": 1, "num_nodes": 2}, "store")]


def test_without_plugins_the_cpu_is_the_default(create_clients):
    clients, passed = create_clients()
    assert clients.get().platform == "cpu" and passed == []


def test_the_cpu_may_be_requested(create_clients):
    clients, passed = create_clients(fake_plugin("high", 20), platforms="cpu")
    assert clients.get().platform == "cpu" and passed == []


def test_a_plugin_that_fails_is_a_warning_unless_it_was_requested(create_clients):
    plugins = fake_plugin("high", 20, broken=True), fake_plugin("low", 10)
    with pytest.warns(UserWarning, match=r"'high' .* cannot be used: no driver"):
        clients, _ = create_clients(*plugins)
    assert clients.get().platform == "low"
    with pytest.raises(PlatformError, match=r"'high' .* cannot be used: no driver"):
        create_clients(*plugins, platforms="high")


def test_processes_must_have_the_same_plugins(create_clients):
    create_clients(fake_plugin("low", 10), fake_plugin("high", 20))
    assert module._requirements()["the PJRT plugins"] == "high, low"
    create_clients(fake_plugin("low", 10), fake_plugin("high", 20), platforms="low")
    assert module._requirements()["the PJRT plugins"] == "low"
    create_clients(fake_plugin("low", 10), platforms="cpu")
    assert module._requirements()["the PJRT plugins"] == ""
