"""The registry: precedence, order, and the modules of plugins, which are written for jax, in processes of their own."""

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

from shardwise.base._jaxlib import cpu_client
from shardwise.errors import PlatformError
from shardwise.runtime.plugins import create_client, registry
from shardwise.runtime.plugins.plugin import Plugin
from shardwise.runtime.plugins.registry import _Plugins
from tests.runtime.plugins.installed import add_distribution, add_module


@pytest.fixture
def install(monkeypatch):
    """Return a function that creates a registry in an environment with these plugins, each from a source of its own."""

    def create(variable=(), modules=(), tpu=None):
        monkeypatch.setattr(registry, "plugins_of_variable", lambda: iter(variable))
        monkeypatch.setattr(registry, "plugin_modules", lambda: {plugin.origin: "a test" for plugin in modules})
        beside = {plugin.origin: plugin for plugin in modules}
        monkeypatch.setattr(registry, "gpu_plugin", lambda module, origin: beside[module])
        monkeypatch.setattr(registry, "tpu_plugin", lambda: tpu)
        return _Plugins()

    return create


def test_plugins_are_ordered_by_priority(install):
    low, high, never = (Plugin(f"p{number}", "m", f"/{number}.so", priority=number) for number in (10, 20, 0))
    tpu = Plugin("tpu", "libtpu", "/libtpu.so", priority=15)
    plugins = install([low, never, high], tpu=tpu)
    assert plugins.names() == ["p20", "tpu", "p10", "p0"]
    assert list(plugins.defaults()) == [high, tpu, low]
    assert plugins.get("p0") is never and plugins.get("absent") is None


def test_the_variable_precedes_modules_with_a_warning(install):
    ours, theirs = Plugin("cuda", "variable", "/ours.so"), Plugin("cuda", "module", "/theirs.so")
    plugins = install([ours], [theirs])
    message = r"two PJRT plugins have the name 'cuda': .*/ours.so.* is used, and .*/theirs.so.* is not. Uninstall one"
    with pytest.warns(UserWarning, match=message):
        assert plugins.get("cuda") is ours


def test_the_same_library_from_two_places_is_one_plugin(install, tmp_path):
    library, link = tmp_path / "cuda.so", tmp_path / "link.so"
    library.touch()
    link.symlink_to(library)
    first = Plugin("cuda", "variable", str(library))
    plugins = install([first], [Plugin("cuda", "module", str(link))])
    assert plugins.get("cuda") is first and plugins.names() == ["cuda"]


def test_a_registered_plugin_replaces_an_installed_one(install):
    plugins = install([Plugin("mine", "variable", "/installed.so")])
    plugins.get("mine")
    ours = Plugin("mine", "register_backend_factory", factory=lambda: cpu_client(1))
    assert plugins.register(ours) is None and plugins.get("mine") is ours


def test_a_plugin_that_was_registered_before_the_search_stays(install):
    plugins = install([Plugin("mine", "variable", "/installed.so")])
    ours = Plugin("mine", "register_backend_factory", factory=lambda: cpu_client(1))
    plugins.register(ours)
    assert plugins.get("mine") is ours  # without a warning


def test_a_module_gets_the_api_of_the_same_library_under_its_name(install, monkeypatch):
    """It registers kernels with it."""
    named = Plugin("mine", "variable", "/mine.so")
    plugins = install([named])
    plugins.get("mine")
    monkeypatch.setattr(create_client, "_apis", {"mine": "api"})
    plugins._module_origin = "a module"
    assert plugins.register(Plugin("mine", "a module", "/mine.so")) == "api"
    with pytest.warns(UserWarning, match="two PJRT plugins have the name 'mine'"):
        assert plugins.register(Plugin("mine", "a module", "/other.so")) is None
    assert plugins.get("mine") is named


def test_a_plugin_that_is_loaded_stays(install, monkeypatch):
    loaded = Plugin("mine", "variable", "/installed.so")
    plugins = install([loaded])
    plugins.get("mine")
    monkeypatch.setattr(create_client, "_apis", {"mine": "api"})
    with pytest.raises(PlatformError, match=r"cannot be registered: .*/installed.so.* is loaded already. Register it"):
        plugins.register(Plugin("mine", "a test", "/other.so"))
    assert plugins.get("mine") is loaded


def test_a_library_that_cannot_be_loaded_is_not_registered(install):
    plugins = install()
    with pytest.raises(PlatformError, match=r"/nowhere.so, from a test\) cannot be used: .* No such file"):
        plugins.register(Plugin("mine", "a test", "/nowhere.so"))
    assert plugins.names() == []


def test_a_failure_is_reported_once_and_not_tried_again(install):
    broken, other = Plugin("broken", "a test", "/b.so"), Plugin("other", "a test", "/o.so")
    plugins = install([broken, other])
    with pytest.warns(UserWarning, match=r"'broken' .*cannot be used: rust.*programs run on other platforms") as warned:
        plugins.report(broken.error("rust"))
        plugins.report(broken.error("rust"))
    assert len(warned) == 1
    assert list(plugins.defaults()) == [other] and plugins.get("broken") is broken


# Programs in processes of their own, in which packages are installed in a folder.


def run(program, site, **variables):
    """Run a program where `site` is a folder of installed packages; return what it prints, with its warnings."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path]), **variables}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    process = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=environment)
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout.strip(), process.stderr


REGISTERS = """
    import jax._src.xla_bridge as xb
    from jax._src.lib import xla_client

    def initialize():
        xb.register_backend_factory("mine", lambda: xla_client.make_cpu_client(num_devices=3), priority=700)
"""
USES = """
    import sys
    import shardwise as sw
    if "as_jax" in sys.argv:
        sw.as_jax()
    print(len(sw.devices()), len(sw.devices("mine")), sw.local_device_count("mine"), sw.default_backend(), sep=",")
    print(*sw.extend.backend.backends(), float(sw.jit(lambda x: x * 2)(4.0)))
    print([name for name in sys.modules if name == "jax" or name.startswith(("jax.", "jax_plugins."))])
    print(any(finder.__class__.__name__ == "_Finder" for finder in sys.meta_path))
"""


def test_a_module_written_for_jax_registers_with_shardwise(tmp_path):
    """Neither the real jax nor the stand-in is imported afterwards, and the plugin is the default by its priority."""
    add_module(tmp_path, "jax_plugins.mine", REGISTERS)
    printed, errors = run(USES, tmp_path)
    assert printed.splitlines() == ["3,3,3,cpu", "mine 8.0", "['jax._src.sharding_impls']", "False"]
    assert "Warning" not in errors


def test_a_module_of_an_entry_point(tmp_path):
    add_module(tmp_path, "maker.plugin", REGISTERS)
    (tmp_path / "maker" / "__init__.py").touch()
    add_distribution(tmp_path, "maker", "[jax_plugins]\nmine = maker.plugin\n")
    printed, errors = run(USES, tmp_path)
    assert printed.splitlines()[:2] == ["3,3,3,cpu", "mine 8.0"]
    assert "Warning" not in errors


@pytest.mark.slow
def test_platforms_select_and_order(tmp_path):
    add_module(tmp_path, "jax_plugins.mine", REGISTERS)
    program = "import shardwise as sw; print(len(sw.devices()), *sw.extend.backend.backends())"
    assert run(program, tmp_path, SHARDWISE_PLATFORMS="cpu")[0] == "8 cpu"
    assert run(program, tmp_path, JAX_PLATFORMS="mine,cpu")[0] == "3 mine"


@pytest.mark.slow
@pytest.mark.jax
def test_the_real_jax_finds_the_module_afterwards(tmp_path):
    """It imports the module again, which registers with it."""
    add_module(tmp_path, "jax_plugins.mine", REGISTERS)
    program = """
        import shardwise as sw
        print(len(sw.devices()))
        import jax
        print(jax.__file__ != sw.__file__, len(jax.devices("mine")))
    """
    assert run(program, tmp_path)[0].split() == ["3", "True", "3"]


@pytest.mark.slow
@pytest.mark.jax
def test_if_the_real_jax_is_imported_there_is_a_warning(tmp_path):
    assert find_spec("jax") is not None
    add_module(tmp_path, "jax_plugins.mine", REGISTERS)
    printed, errors = run("import jax, shardwise as sw; print(len(sw.devices()))", tmp_path)
    assert printed == "8"
    assert (
        "jax_plugins.mine, the package jax_plugins) failed to initialize: RuntimeError: it is written for jax" in errors
    )
    assert "Call `shardwise.as_jax()` at the start of the program" in errors


@pytest.mark.slow
def test_under_as_jax_the_modules_stay(tmp_path):
    add_module(tmp_path, "jax_plugins.mine", REGISTERS)
    program = "import sys, shardwise as sw; sw.as_jax(); print(len(sw.devices()), 'jax_plugins.mine' in sys.modules)"
    assert run(program, tmp_path)[0] == "3 True"


FAILURES = {
    "library": (
        "from jax._src.xla_bridge import register_plugin as register\n"
        "def initialize(): register('broken', library_path='/no/broken.so')",
        "the PJRT plugin 'broken' (/no/broken.so, from jax_plugins.broken, the package jax_plugins) cannot be used",
    ),
    "import": ("import absent_library", "ModuleNotFoundError: No module named 'absent_library'"),
    "no initialize": ("", "AttributeError: module 'jax_plugins.broken' has no attribute 'initialize'"),
    "exception": ("def initialize(): 1 / 0", "ZeroDivisionError: division by zero"),
    "private name": (
        "from jax._src import nothing",
        "ImportError: jax._src has no attribute 'nothing' in JAX",
    ),
}


@pytest.mark.table(default=2)
@pytest.mark.parametrize("kind", FAILURES)
def test_a_module_that_fails_is_one_warning_and_the_program_continues(tmp_path, kind):
    code, message = FAILURES[kind]
    add_module(tmp_path, "jax_plugins.broken", code)
    printed, errors = run("import shardwise as sw; print(len(sw.devices()), sw.default_backend())", tmp_path)
    assert printed == "8 cpu"
    assert message in errors and errors.count("UserWarning") == 1
    assert "PJRT_NAMES_AND_LIBRARY_PATHS=name:path" in errors or kind == "library"


def test_a_broken_library_is_a_typed_error_if_its_platform_was_requested(tmp_path):
    program = """
        import shardwise as sw
        try:
            sw.devices()
        except sw.errors.PlatformError as error:
            print(error.platform, error)
    """
    library = tmp_path / "broken.so"
    library.write_text("not a library, although it is as long as the header of one")
    variables = {"PJRT_NAMES_AND_LIBRARY_PATHS": f"mine:{library}"}
    printed, errors = run(program, tmp_path, JAX_PLATFORMS="mine", **variables)
    assert printed.startswith(f"mine the PJRT plugin 'mine' ({library}, from PJRT_NAMES_AND_LIBRARY_PATHS) cannot be")
    assert "Warning" not in errors
    printed, errors = run("import shardwise as sw; print(len(sw.devices()))", tmp_path, **variables)
    assert printed == "8" and errors.count("UserWarning") == 1 and "programs run on other platforms" in errors
