"""Discovery: the environment variable, the namespace package, entry points, and libtpu."""

import json

import pytest

from shardwise.runtime.plugins import discovery
from shardwise.runtime.plugins.discovery import VARIABLE, gpu_plugin, plugin_modules, plugins_of_variable, tpu_plugin
from tests.runtime.plugins.installed import add_distribution, add_package


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed packages."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_variable_lists_names_and_paths(monkeypatch, tmp_path):
    config = tmp_path / "mine.json"
    config.write_text(json.dumps({"library_path": "/lib/mine.so", "create_options": {"level": 3}}))
    monkeypatch.setenv(VARIABLE, f"first:/lib/first.so,mine:{config}")
    first, mine = plugins_of_variable()
    assert (first.name, first.library, first.resolved_options()) == ("first", "/lib/first.so", {})
    assert (mine.name, mine.library, mine.resolved_options()) == ("mine", "/lib/mine.so", {"level": 3})
    assert first.origin == VARIABLE
    monkeypatch.delenv(VARIABLE)
    assert list(plugins_of_variable()) == []


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (None, "No such file"),
        ("nonsense", "Expecting value"),
        ("[]", 'the field "library_path" is missing'),
        ('{"library_path": "/lib/a.so", "create_options": [1]}', 'the field "create_options" must be an object'),
    ],
    ids=["missing", "not JSON", "no library", "options"],
)
def test_options_that_cannot_be_read_are_a_warning(monkeypatch, tmp_path, contents, message):
    path = tmp_path / "options.json"
    if contents is not None:
        path.write_text(contents)
    monkeypatch.setenv(VARIABLE, f"mine:{path},good:/lib/good.so")
    with pytest.warns(UserWarning, match=f"{VARIABLE}: the options of 'mine' cannot be read from .*{message}"):
        assert [plugin.name for plugin in plugins_of_variable()] == ["good"]


@pytest.mark.parametrize("entry", ["mine", "mine:", ":/lib/mine.so"])
def test_a_malformed_entry_is_a_warning(monkeypatch, entry):
    monkeypatch.setenv(VARIABLE, f"{entry},good:/lib/good.so")
    with pytest.warns(UserWarning, match=f"entry '{entry}', which is not of the form name:path"):
        assert [plugin.name for plugin in plugins_of_variable()] == ["good"]


def test_modules_are_found_in_the_namespace_and_by_entry_points(site):
    add_package(site, "jax_plugins", "one")
    (site / "jax_plugins" / "two.py").touch()
    add_distribution(site, "jax-one", "[jax_plugins]\none = jax_plugins.one\n")
    add_distribution(site, "maker", "[console_scripts]\nrun = a:b\n[jax_plugins]\nthree = maker.plugin\n")
    add_distribution(site, "unrelated", "[console_scripts]\njax_plugins = a:b\n")
    assert plugin_modules() == {
        "jax_plugins.one": "the package jax_plugins",
        "jax_plugins.two": "the package jax_plugins",
        "maker.plugin": "the entry point 'three' of maker",
    }


def test_metadata_are_parsed_only_if_a_distribution_has_an_entry_point(site, monkeypatch):
    add_distribution(site, "unrelated", "[console_scripts]\nrun = a:b\n")
    monkeypatch.setattr(discovery, "_metadata", None)
    assert plugin_modules() == {}
    add_distribution(site, "maker", "[jax_plugins]\nthree = maker.plugin\n")
    with pytest.raises(AttributeError):
        plugin_modules()


@pytest.mark.parametrize(
    ("names", "library", "name"),
    [
        (("jax_plugins", "xla_cuda12"), "xla_cuda_plugin.so", "cuda"),
        (("jax_plugins", "xla_rocm7"), "xla_rocm_plugin.so", "rocm"),
        (("elsewhere",), "xla_cuda_plugin.so", "cuda"),
    ],
    ids=["cuda", "rocm", "another package"],
)
def test_gpu_libraries_are_found_beside_their_modules_without_running_these(site, names, library, name):
    folder = add_package(site, *names, library=library)
    plugin = gpu_plugin(".".join(names), "a test")
    assert (plugin.name, plugin.library, plugin.priority) == (name, str(folder / library), 500)


def test_other_modules_have_no_gpu_library(site):
    add_package(site, "jax_plugins", "metal", library="libmetal.dylib")
    assert gpu_plugin("jax_plugins.metal", "a test") is None
    assert gpu_plugin("jax_plugins.absent", "a test") is None


def test_tpus(site, monkeypatch):
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(discovery, "_has_tpu", lambda: True)
    assert tpu_plugin() is None
    folder = add_package(site, "libtpu", library="libtpu.so")
    plugin = tpu_plugin()
    assert (plugin.name, plugin.library, plugin.priority) == ("tpu", str(folder / "libtpu.so"), 300)
    monkeypatch.setattr(discovery, "_has_tpu", lambda: False)
    assert tpu_plugin().priority == 0  # no default where there is no TPU
    monkeypatch.setenv("TPU_LIBRARY_PATH", "/lib/other.so")
    assert (tpu_plugin().library, tpu_plugin().origin) == ("/lib/other.so", "TPU_LIBRARY_PATH")
