"""Clients: which platform is the default, and what the names of platforms mean."""

from types import SimpleNamespace

import pytest

import shardwise as sw
from shardwise.compiler.shardings.mesh import AbsentDevice
from shardwise.errors import DeviceMismatchError, PlatformError
from shardwise.runtime import client as module
from shardwise.runtime.client import _Clients, canonical_lowering_platform, default_lowering_platform, lowering_platform
from tests.runtime.plugins.fakes import fake_client, fake_plugin, registry_of


@pytest.fixture
def clients_with(monkeypatch):
    """Return a function that creates clients in a process with these plugins and this value of `platforms`."""

    def create(*plugins, platforms=""):
        monkeypatch.setattr(module, "plugins", registry_of(*plugins))
        monkeypatch.setattr(
            module, "config", SimpleNamespace(platforms=platforms, num_cpu_devices=1, target_platform="")
        )
        monkeypatch.setattr(module, "_on_first_use", lambda: None)
        monkeypatch.setattr(module, "cpu_client", lambda devices: fake_client("cpu", devices))
        return _Clients()

    return create


def test_the_plugin_with_the_highest_priority_is_the_default(clients_with):
    clients = clients_with(fake_plugin("low", 10), fake_plugin("high", 20), fake_plugin("never", 0))
    assert clients.get().platform == "high"
    assert list(clients.by_platform) == ["high"]  # others are created when they are asked for
    assert clients.get("low").platform == "low" and clients.get("cpu").platform == "cpu"
    assert clients.get().platform == "high"


def test_without_plugins_the_cpu_is_the_default(clients_with):
    assert clients_with().get().platform == "cpu"
    assert clients_with(fake_plugin("never", 0)).get().platform == "cpu"


def test_a_plugin_that_fails_is_a_warning_and_the_next_one_is_the_default(clients_with):
    clients = clients_with(fake_plugin("high", 20, broken=True), fake_plugin("low", 10))
    with pytest.warns(UserWarning, match=r"'high' \(from a test\) cannot be used: no driver.*run on other platforms"):
        assert clients.get().platform == "low"
    with pytest.raises(PlatformError, match=r"'high' .*no driver") as raised:
        clients.get("high")
    assert raised.value.platform == "high"


def test_a_requested_platform_that_fails_is_an_error(clients_with):
    clients = clients_with(fake_plugin("high", 20, broken=True), fake_plugin("low", 10), platforms="high,low")
    for _ in range(2):
        with pytest.raises(PlatformError, match=r"'high' .*no driver"):
            clients.get()


@pytest.mark.parametrize(
    ("platforms", "default"), [("low, high", "low"), ("cpu", "cpu"), (" high ", "high"), (",", "high")]
)
def test_platforms_select_and_order(clients_with, platforms, default):
    assert clients_with(fake_plugin("low", 10), fake_plugin("high", 20), platforms=platforms).get().platform == default


@pytest.mark.parametrize("name", ["cuda", "rocm"])
def test_gpu_means_the_gpus_of_any_vendor(clients_with, name):
    clients = clients_with(fake_plugin(name, 500), platforms="gpu")
    assert clients.get() is clients.get("gpu") is clients.get(name)
    assert list(clients.by_platform) == [name]


def test_the_platform_of_a_client_in_use_is_its_name_too(clients_with):
    """`devices(default_backend())` are the default devices, also if a plugin has another name than its devices."""
    clients = clients_with(fake_plugin("renamed", 600, platform="cuda"), fake_plugin("cuda", 500))
    default = clients.get()
    assert default.platform == "gpu" and clients.get("gpu") is default
    assert clients.get("cuda") is not default


def test_unknown_platforms_list_the_known_ones(clients_with):
    clients = clients_with(fake_plugin("low", 10), fake_plugin("high", 20))
    with pytest.raises(
        PlatformError, match=r"'abacus' is not supported: .* installed. Platforms of .*: cpu, high, low\."
    ):
        clients.get("abacus")
    with pytest.raises(
        PlatformError, match=r"installed; pip install 'shardwise\[cuda12\]' installs that of NVIDIA GPUs\."
    ):
        clients.get("gpu")


def test_platforms_of_lowering():
    for name in ("cuda", "rocm", "tpu", "METAL"):
        assert lowering_platform(fake_client(name).devices()[0]) == name.lower()
    assert lowering_platform(AbsentDevice(0)) == "cpu" == default_lowering_platform()
    assert (canonical_lowering_platform("gpu"), canonical_lowering_platform("tpu")) == ("cuda", "tpu")
    with sw.config.override("target_platform", "gpu"):
        assert default_lowering_platform() == "cuda"


def test_dropped_clients_are_not_current():
    clients, client = _Clients(), fake_client("cpu")
    clients.set("cpu", client)
    clients.check_current(client)
    clients.forget()
    assert not clients.exist
    with pytest.raises(DeviceMismatchError, match=r"in the function that `checkpoints\.recover` calls"):
        clients.check_current(client)
