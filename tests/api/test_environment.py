"""Caches, live arrays, processes, environment info and error classes."""

import logging

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def is_live(array):
    return any(found is array for found in sw.live_arrays())


def test_live_arrays(mesh):
    one, spread = jnp.ones(3), sw.device_put(np.ones(8, np.float32), NamedSharding(mesh, P("data")))
    assert is_live(one) and is_live(spread)
    one.delete()
    assert not is_live(one) and is_live(spread)
    assert len(sw.live_arrays("cpu")) == len(sw.live_arrays())
    count = len(sw.live_arrays())
    del spread
    assert len(sw.live_arrays()) == count - 1


def test_clear_caches_forces_recompilation(caplog):
    unhashable = {"x": None}
    functions = [sw.jit(lambda x: x + 1), sw.jit(lambda x: x + 2, in_shardings=(unhashable["x"],))]
    x = jnp.arange(5.0)
    runs = [*functions, lambda x: x * x, jnp.sort]

    def compiled():
        caplog.clear()
        with sw.log_compiles(True), caplog.at_level(logging.WARNING, "shardwise"):
            for run in runs:
                run(x)
        return len(caplog.records)

    compiled()
    assert compiled() == 0
    sw.clear_caches()
    assert compiled() == len(runs)
    assert compiled() == 0
    functions[0].clear_cache()
    assert compiled() == 1


def test_copy_to_host_async_ignores_other_leaves():
    x = jnp.ones(3)
    found = sw.copy_to_host_async({"x": x, "name": "loss", "n": 3})
    assert found["x"] is x and found["name"] == "loss" and found["n"] == 3


def test_effects_barrier_waits_for_effects():
    seen = []

    @sw.jit
    def f(x):
        sw.debug.callback(seen.append, x)
        return x

    f(1.0)
    sw.effects_barrier()
    assert [float(x) for x in seen] == [1.0]


def test_processes_are_numbered():
    assert sw.process_indices() == [0] == sw.process_indices("cpu")


def test_environment_info_lists_versions_devices_and_changed_settings(capsys):
    with sw.log_compiles(True):
        text = sw.print_environment_info(return_string=True)
    lines = text.splitlines()
    assert any(line.startswith("jaxlib: 0.") for line in lines)
    assert f"devices: {sw.device_count()} of cpu (cpu), {sw.local_device_count()} local" in lines
    assert "config log_compiles: True" in lines
    assert any(line.startswith("XLA_FLAGS=") for line in lines)
    assert sw.print_environment_info() is None
    assert "config log_compiles" not in capsys.readouterr().out


def test_error_classes_match_jax():
    errors = sw.errors
    assert issubclass(errors.JaxRuntimeError, RuntimeError)
    assert issubclass(errors.OutOfMemoryError, errors.JaxRuntimeError)
    assert issubclass(errors.ConcretizationTypeError, errors.JAXTypeError)
    assert issubclass(errors.UnexpectedTracerError, errors.JAXTypeError)
    assert issubclass(errors.NonConcreteBooleanIndexError, errors.JAXIndexError)
    with pytest.raises(errors.JAXTypeError):
        sw.jit(bool)(jnp.ones(()))


def test_names_for_annotations():
    def f(x: sw.typing.ArrayLike, dtype: sw.typing.DTypeLike) -> sw.Array:
        return jnp.asarray(x, dtype)

    assert f(1, "float32").dtype == np.float32
    assert isinstance(jnp.ones(1), sw.typing.ArrayLike) and isinstance(2.0, sw.typing.ArrayLike)
    assert sw.float0 == sw.dtypes.float0 and sw.jacobian is sw.jacrev
