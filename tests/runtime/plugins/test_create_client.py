"""create_client: libraries that fail to load, and what is passed to a plugin."""

import glob
import re
from pathlib import Path

import numpy as np
import pytest

from shardwise.base._jaxlib import cpu_client
from shardwise.errors import PlatformError
from shardwise.runtime.plugins import create_client as module
from shardwise.runtime.plugins.create_client import create_client, is_loaded, load, node_options
from shardwise.runtime.plugins.gpu_vendor import GpuVendor
from shardwise.runtime.plugins.plugin import Plugin


def some_library():
    """Return the path of a shared library that is no plugin."""
    return glob.glob(str(Path(np.__file__).parent / "_core" / "_multiarray_tests*"))[0]


@pytest.mark.parametrize("kind", ["missing", "text", "other library"])
def test_a_library_that_cannot_be_loaded_is_a_typed_error(tmp_path, kind):
    text = tmp_path / "text.so"
    text.write_text("This is not a shared library, although it is longer than the header of one would be.")
    library, cause = {
        "missing": (str(tmp_path / "missing.so"), "No such file or directory"),
        "text": (str(text), "invalid ELF header"),
        "other library": (some_library(), "GetPjrtApi not found"),
    }[kind]
    plugin = Plugin(f"broken {kind}", "a test", library)
    for attempt in (load, create_client):
        with pytest.raises(PlatformError, match=cause) as raised:
            attempt(plugin)
        assert raised.value.platform == plugin.name
        assert str(raised.value).count("cannot be used") == 1
        assert re.search(rf"{re.escape(library)}, from a test\) cannot be used", str(raised.value))
    assert not is_loaded(plugin.name)


def test_a_factory_creates_the_client():
    assert len(create_client(Plugin("mine", "a test", factory=lambda: cpu_client(3))).devices()) == 3


@pytest.mark.parametrize(
    ("factory", "cause"), [(lambda: None, "it has no devices"), (lambda: 1 / 0, "division by zero")]
)
def test_a_factory_that_fails_is_a_typed_error(factory, cause):
    with pytest.raises(PlatformError, match=f"'mine' .from a test. cannot be used: {cause}"):
        create_client(Plugin("mine", "a test", factory=factory))


@pytest.fixture
def calls(monkeypatch):
    """Record the calls of jaxlib and of the registration of kernels, with a CPU client in place of a plugin's."""
    calls = []

    def record(name, result):
        return lambda *arguments: (calls.append((name, *arguments)), result)[1]

    monkeypatch.setattr(module, "_apis", {})
    monkeypatch.setattr(module, "load_plugin", record("load", "api"))
    monkeypatch.setattr(module, "load_plugin_api", record("load api", None))
    monkeypatch.setattr(module, "register_kernels", record("kernels", None))
    monkeypatch.setattr(module, "plugin_client", record("client", cpu_client(1)))
    monkeypatch.setattr(GpuVendor, "default_options", lambda self: {"allocator": "bfc", "own": 0})
    return calls


def test_kernels_of_gpus_are_registered_between_the_library_and_the_client(calls):
    library = "/lib/xla_cuda_plugin.so"
    create_client(Plugin("renamed", "a test", library, lambda: {"own": 1, "node_id": 7}), {"node_id": 2}, "store")
    (_, vendor, *rest) = calls.pop(1)
    assert (vendor.name, *rest) == ("cuda", library, "api")
    options = {"allocator": "bfc", "own": 1, "node_id": 2}
    assert calls == [("load", "renamed", library), ("client", "renamed", options, "store")]


def test_other_plugins_get_their_own_options_only(calls):
    plugin = Plugin("mine", "a test", "/lib/mine.so", {"own": 1})
    create_client(plugin)
    create_client(plugin)  # the library is loaded once
    assert calls == [("load", "mine", "/lib/mine.so"), *[("client", "mine", {"own": 1}, None)] * 2]
    assert is_loaded("mine")


def test_a_plugin_may_have_an_api_in_place_of_a_library(calls):
    plugin = Plugin("mine", "a test", api="theirs")
    assert load(plugin) == "theirs" and calls == [("load api", "mine", "theirs")]


@pytest.mark.parametrize(
    ("name", "library", "passed"),
    [
        ("tpu", "/lib/libtpu.so", ()),
        ("renamed", "/lib/xla_cuda_plugin.so", ("node_id", "num_nodes", "visible_devices")),
        ("mine", "/lib/mine.so", ("node_id", "num_nodes")),
    ],
)
def test_options_of_a_process_in_a_cluster(name, library, passed):
    options = {"node_id": 1, "num_nodes": 2, "visible_devices": [1]}
    assert tuple(node_options(Plugin(name, "a test", library), options)) == passed
