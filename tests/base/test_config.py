"""The settings: names, values, environment variables, threads, and the document that lists them."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.base.config import FIXED_SETTINGS, SETTINGS, Config, all_threads, cached_by_settings, config
from tests.settings_table import format_settings

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "config.md"


@pytest.fixture(autouse=True)
def unchanged():
    """Check that a test restores all settings."""
    before = {name: getattr(config, name) for name in SETTINGS}
    state = config.state.trace_settings
    yield
    assert {name: getattr(config, name) for name in SETTINGS} == before
    assert config.state.trace_settings is state
    assert not Config._overriding


def test_the_document_has_the_generated_tables():
    text = DOCUMENT.read_text()
    assert text[text.index("## Settings") :] == format_settings()
    head = text[: text.index("## Settings")]
    assert [name for name, setting in SETTINGS.items() if setting.affects_tracing and f"`{name}`" not in head] == []


def test_every_setting_is_an_attribute_with_a_type():
    assert set(Config.__annotations__) - {
        "state",
        "user_contexts",
        "_frozen",
        "_updated",
        "_overriding",
        "_lock",
    } == set(SETTINGS)
    for name in SETTINGS:
        assert (
            config.read(name) == config.read(f"jax_{name}") == getattr(config, name) == getattr(config, f"jax_{name}")
        )


def test_update_applies_to_all_threads_and_override_to_one():
    seen = []

    def look():
        seen.append((config.enable_x64, config.state.trace_settings.values[0]))

    def in_a_thread():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    config.update("jax_enable_x64", True)
    try:
        in_a_thread()
        with config.override("enable_x64", False):
            look()
            in_a_thread()
    finally:
        config.enable_x64 = False  # same as `update`
    in_a_thread()
    assert seen == [(True, True), (False, False), (True, True), (False, False)]


def test_deleting_a_setting_resets_it_to_its_initial_value(monkeypatch):
    config.numpy_rank_promotion = "raise"
    del config.numpy_rank_promotion
    assert config.numpy_rank_promotion == "allow"
    config.jax_transfer_guard = "log"
    config.jax_numpy_rank_promotion = "warn"
    del config.jax_transfer_guard, config.jax_numpy_rank_promotion  # by JAX's names too
    assert (config.transfer_guard_host_to_device, config.numpy_rank_promotion) == ("allow", "allow")
    with monkeypatch.context() as patch:
        patch.setattr(config, "enable_x64", True)
        assert sw.numpy.zeros(1).dtype == "float64"
    assert sw.numpy.zeros(1).dtype == "float32"


def test_overrides_nest_and_end_with_an_error():
    with config.override("numpy_rank_promotion", "warn"):
        with pytest.raises(ZeroDivisionError), config.override("numpy_rank_promotion", "raise"):
            assert config.numpy_rank_promotion == "raise"
            raise ZeroDivisionError
        assert config.numpy_rank_promotion == "warn"


def test_equal_settings_have_the_same_key():
    before = config.state.trace_settings
    with config.override("enable_x64", True):
        wide = config.state.trace_settings
        assert wide is not before
        with config.override("enable_x64", False):
            assert config.state.trace_settings is before
        with config.override("log_compiles", True):
            assert config.state.trace_settings is wide


def test_an_update_from_another_thread_reaches_the_key_of_one_that_overrides():
    """Thread B updates `numpy_rank_promotion` while A overrides `enable_x64`: A's cache key depends on both."""
    with config.override("enable_x64", True):
        thread = threading.Thread(target=config.update, args=("numpy_rank_promotion", "raise"))
        thread.start()
        thread.join()
        try:
            assert "enable_x64=True" in repr(config.state.trace_settings)
            assert "numpy_rank_promotion=raise" in repr(config.state.trace_settings)
        finally:
            config.update("numpy_rank_promotion", "allow")


def test_nan_checks_are_on_while_any_thread_enables_them():
    assert not all_threads.launch_checks
    with config.override("debug_infs", True):
        assert all_threads.launch_checks
    assert not all_threads.launch_checks


def test_cached_by_settings_hits_under_the_same_settings_only():
    calls = []

    @cached_by_settings(maxsize=8)
    def double(x):
        calls.append(x)
        return 2 * x

    assert double(2) == double(2) == 4
    with config.override("enable_x64", True):
        assert double(2) == 4
    assert double(2) == 4
    assert calls == [2, 2]


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [
        ("jax_enable_x46", True, AttributeError, "config has no setting 'jax_enable_x46'. Did you mean 'enable_x64'?"),
        (
            "enable_x64",
            1,
            TypeError,
            "config 'enable_x64' (whether 64-bit dtypes keep their width; otherwise new arrays convert them to 32 "
            "bits) must be a bool, not 1",
        ),
        (
            "jax_numpy_rank_promotion",
            "never",
            ValueError,
            "config 'numpy_rank_promotion' must be one of 'allow', 'warn', 'raise', not 'never'",
        ),
        (
            "jax_threefry_partitionable",
            False,
            NotImplementedError,
            "config 'threefry_partitionable' must be True, not False: random bits never depend on the sharding",
        ),
        (
            "default_device",
            3,
            TypeError,
            "config 'default_device' (the device or the platform for arrays and programs that nothing else places; "
            "None for the first device) must be a device, the name of a platform, or None, not 3",
        ),
    ],
    ids=["name", "type", "choice", "fixed", "device"],
)
def test_errors(name, value, error, text):
    with pytest.raises(error) as caught:
        config.update(name, value)
    assert str(caught.value) == text
    with pytest.raises(error), config.override(name, value):
        pass


# Fixed settings with a value that is not JAX's default.
DIFFERENT_FROM_JAX = {
    "include_full_tracebacks_in_locations",
    "traceback_in_locations_limit",
}


@pytest.mark.parametrize("name", FIXED_SETTINGS)
def test_fixed_settings_accept_their_value(name):
    for value in FIXED_SETTINGS[name][0]:
        config.update(f"jax_{name}", value)
    assert config.read(name) == FIXED_SETTINGS[name][0][0]


def test_values_that_jax_accepts():
    config.update("jax_compilation_cache_dir", None)
    assert config.compilation_cache_dir == ""
    config.update("jax_persistent_cache_min_compile_time_secs", 2)
    assert config.persistent_cache_min_compile_time_secs == 2.0
    config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    with config.override("jax_transfer_guard", "log"):
        assert config.transfer_guard_device_to_device == config.transfer_guard_device_to_host == "log"
        assert config.jax_transfer_guard == "log"
        with config.override("transfer_guard_device_to_host", "allow"):
            assert config.jax_transfer_guard is None  # the three differ


def run(code, **environment):
    given = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=given, check=False
    )


def test_environment_variables_set_initial_values():
    found = run(
        "from shardwise.base.config import config as c;"
        "print(c.enable_x64, c.num_cpu_devices, c.default_matmul_precision, c.numpy_rank_promotion,"
        " c.compilation_cache_max_size, c.persistent_cache_min_compile_time_secs, c.default_device)",
        SHARDWISE_ENABLE_X64="1",
        SHARDWISE_NUM_CPU_DEVICES="3",
        SHARDWISE_DEFAULT_MATMUL_PRECISION="highest",
        SHARDWISE_NUMPY_RANK_PROMOTION="warn",
        SHARDWISE_COMPILATION_CACHE_MAX_SIZE="-1",
        SHARDWISE_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="1.5",
        SHARDWISE_DEFAULT_DEVICE="cpu",
    )
    assert found.stdout.split() == ["True", "3", "highest", "warn", "-1", "1.5", "cpu"], found.stderr


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("SHARDWISE_NUM_CPU_DEVICES", "many", "SHARDWISE_NUM_CPU_DEVICES='many' is not an int from 1 to 2048"),
        ("SHARDWISE_NUM_CPU_DEVICES", "0", "SHARDWISE_NUM_CPU_DEVICES='0' is not an int from 1 to 2048"),
        ("XLA_FLAGS", "--xla_force_host_platform_device_count=x", "--xla_force_host_platform_device_count='x' is not"),
        (
            "SHARDWISE_NUMPY_RANK_PROMOTION",
            "no",
            "SHARDWISE_NUMPY_RANK_PROMOTION='no' is not one of allow, warn, raise",
        ),
    ],
    ids=["number", "none", "flag", "choice"],
)
def test_environment_variables_are_validated(variable, text, message):
    found = run("import shardwise.base.config", **{"JAX_NUM_CPU_DEVICES": "-1", variable: text})
    assert found.returncode and f"ValueError: environment variable {message}" in found.stderr


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, 3),
        ({"XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=5"}, 5),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=3", "SHARDWISE_NUM_CPU_DEVICES": "2"}, 2),
        ({"JAX_NUM_CPU_DEVICES": "1"}, 1),
        ({"JAX_NUM_CPU_DEVICES": "4", "XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, 4),
        ({"JAX_NUM_CPU_DEVICES": "4", "SHARDWISE_NUM_CPU_DEVICES": "2"}, 2),
    ],
    ids=["XLA's flag", "among others", "our own comes first", "JAX's variable", "before the flag", "our own before it"],
)
def test_number_of_virtual_devices(variables, count):
    # "-1" is JAX's default: the variable has no effect
    found = run("import shardwise as sw; print(len(sw.devices()))", **{"JAX_NUM_CPU_DEVICES": "-1", **variables})
    assert found.stdout.split() == [str(count)], found.stderr


@pytest.mark.parametrize("count", [0, -1, 2.0, "4", True, 2049, 10**30], ids=repr)
def test_num_cpu_devices_must_be_a_positive_int(count):
    with pytest.raises(TypeError, match=r"'num_cpu_devices' \(the number of .*\) must be an int from 1 to 2048, not"):
        config.update("num_cpu_devices", count)


def test_frozen_settings_cannot_change_after_the_first_use_of_a_device():
    count = len(sw.devices("cpu"))
    config.update("num_cpu_devices", config.num_cpu_devices)
    with pytest.raises(
        RuntimeError, match=f"cannot change from {count} to {count + 1} after the first use of a device"
    ):
        config.update("num_cpu_devices", count + 1)


def test_code_in_the_document_runs():
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    found = run(code)
    assert found.returncode == 0, found.stderr


def test_names_are_strings():
    with pytest.raises(TypeError, match="the name of a setting must be a string, not 3"):
        config.update(3, 3)


def test_repr_shows_all_settings_and_dir_lists_them():
    lines = repr(config).splitlines()
    assert lines[0] == "config:" and len(lines) == 1 + len(SETTINGS)
    assert "  numpy_rank_promotion = 'allow'" in lines
    with config.override("numpy_rank_promotion", "warn"):
        assert "  numpy_rank_promotion = 'warn'" in repr(config)
    assert {"update", "enable_x64", "jax_enable_x64", "jax_platform_name", "transfer_guard"} <= set(dir(config))


def test_parsing_flags_changes_nothing():
    """Settings are no flags of absl; tests of Flax call it when they are imported."""
    before = repr(sw.config)
    sw.config.parse_flags_with_absl()
    assert repr(sw.config) == before


@pytest.mark.jax
def test_all_settings_of_jax_exist():
    """Programs that set one of them to JAX's default run."""
    jax = pytest.importorskip("jax")
    for name, value in jax.config.values.items():
        short = name.removeprefix("jax_")
        config.read(name)
        if short in FIXED_SETTINGS and short not in DIFFERENT_FROM_JAX:
            assert config.read(name) == getattr(value, "value", value), name


def printed_by(code, **variables):
    """Return what a new process prints after `import shardwise as sw` and `config = sw.config`."""
    unset = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "SHARDWISE_", "XLA_"))}
    code = f"import shardwise as sw\nconfig = sw.config\n{code}"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**unset, **variables}
    )
    return run.stdout.split()


VALUES = "print(config.mesh_axis_types, config.num_cpu_devices, config.in_shardings_mismatch, config.callback_errors)"


def test_jax_compatibility_selects_defaults_and_values_that_are_set_win():
    code = f"""
{VALUES}
config.update("in_shardings_mismatch", "allow")
config.update("jax_compatibility", "exact")
{VALUES}
config.update("jax_compatibility", "extended")
{VALUES}
del config.in_shardings_mismatch
config.jax_compatibility = "exact"
{VALUES}
print(len(sw.devices()))
"""
    extended, exact = "auto 8 warn unchanged", "explicit 1 raise jax"
    expected = f"{extended} explicit 1 allow jax auto 8 allow unchanged {exact} 1"
    assert " ".join(printed_by(code)) == expected
    variables = {"SHARDWISE_JAX_COMPATIBILITY": "exact", "JAX_NUM_CPU_DEVICES": "4"}
    assert " ".join(printed_by(VALUES, **variables)) == "explicit 4 raise jax"


def test_jax_compatibility_cannot_change_after_devices_exist_nor_in_one_thread():
    sw.devices()
    with pytest.raises(RuntimeError, match="'jax_compatibility' cannot change from extended to exact after the first"):
        config.update("jax_compatibility", "exact")
    with pytest.raises(RuntimeError, match="'jax_compatibility' holds for all threads"):
        config.override("jax_compatibility", "extended").__enter__()
    with pytest.raises(ValueError, match="must be one of 'extended', 'exact', not 'jax'"):
        config.update("jax_compatibility", "jax")


def test_types_that_were_inferred_before_the_switch_are_inferred_again():
    code = """
import numpy as np
mesh = sw.sharding.AbstractMesh((4,), ("x",), axis_types=sw.sharding.AxisType.Explicit)
x = sw.ShapeDtypeStruct((8,), np.float32, sharding=sw.NamedSharding(mesh, sw.P("x")))
print(sw.jit(sw.numpy.cumsum).trace(x).out_info.sharding.spec)
config.update("jax_compatibility", "exact")
try:
    sw.jit(sw.numpy.cumsum).trace(x)
except sw.errors.ShardingTypeError as error:
    print(str(error).partition(":")[0])
"""
    assert printed_by(code) == ["P('x')", "cumulative"]
