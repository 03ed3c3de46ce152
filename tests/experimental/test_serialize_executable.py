"""Compiled functions run from their bytes, in another process too."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.experimental.serialize_executable import deserialize_and_load, serialize

LOAD = """
import pickle, sys
import numpy as np
import shardwise as sw
from shardwise.experimental.serialize_executable import deserialize_and_load

sw.config.update("num_cpu_devices", 8)
compiled = deserialize_and_load(*pickle.load(open(sys.argv[1], "rb")))
rows = sw.NamedSharding(sw.make_mesh((4,), ("x",)), sw.P("x"))
x = sw.device_put(np.arange(8, dtype=np.float32).reshape(4, 2), rows)
print(compiled({"w": np.ones((2, 2), np.float32)}, x=x)["y"].tolist())
"""


def arguments():
    rows = sw.NamedSharding(sw.make_mesh((4,), ("x",)), sw.P("x"))
    return {"w": np.ones((2, 2), np.float32)}, sw.device_put(np.arange(8, dtype=np.float32).reshape(4, 2), rows)


def compiled():
    weights, x = arguments()
    return sw.jit(lambda params, x: {"y": x @ params["w"] + x.sum()}).lower(weights, x=x).compile()


def test_a_loaded_function_is_like_the_compiled_one():
    original = compiled()
    loaded = deserialize_and_load(*serialize(original))
    weights, x = arguments()
    np.testing.assert_array_equal(loaded(weights, x=x)["y"], original(weights, x=x)["y"])
    assert loaded(weights, x=x)["y"].sharding == original(weights, x=x)["y"].sharding
    assert loaded.input_shardings == original.input_shardings and repr(loaded) == repr(original)
    with pytest.raises(TypeError, match="was compiled for"):
        loaded(weights, x=x.astype(int))


def test_another_process_loads_it(tmp_path):
    (tmp_path / "payload").write_bytes(pickle.dumps(serialize(compiled())))
    command = [sys.executable, "-c", LOAD, str(tmp_path / "payload")]
    process = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr[-2000:]
    weights, x = arguments()
    assert process.stdout.strip() == str((np.asarray(x) @ weights["w"] + np.asarray(x).sum()).tolist())


def test_donated_keys_and_explicit_shardings():
    mesh = sw.make_mesh((4,), ("x",), axis_types=(sw.sharding.AxisType.Explicit,))
    x = sw.device_put(np.arange(4.0, dtype=np.float32), sw.NamedSharding(mesh, sw.P("x")))
    key = sw.random.key(0)
    function = sw.jit(lambda key, x: x + sw.random.uniform(key), donate_argnums=1)
    expected = np.arange(4) + float(sw.random.uniform(key))
    loaded = deserialize_and_load(*serialize(function.lower(key, x).compile()))
    np.testing.assert_allclose(loaded(key, x), expected, rtol=1e-6)
    assert x.is_deleted()


@pytest.mark.parametrize("spec", [None, sw.P("x")])
def test_arrays_that_the_function_closes_over(spec):
    array = jnp.arange(4.0)
    if spec is not None:
        array = sw.device_put(array, sw.NamedSharding(sw.make_mesh((4,), ("x",)), spec))
    compiled = sw.jit(lambda x: x + array).lower(1.0).compile()
    payload, *structures = serialize(compiled)
    loaded = deserialize_and_load(payload, *structures)
    np.testing.assert_array_equal(loaded(2.0), np.arange(4) + 2)
    assert loaded(2.0).sharding == compiled(2.0).sharding


def test_what_cannot_be_serialized():
    key = sw.random.key(0)
    with pytest.raises(NotImplementedError, match="closes over PRNG keys: pass them as arguments"):
        serialize(sw.jit(lambda x: x + sw.random.uniform(key)).lower(1.0).compile())
    hosted = lambda x: sw.pure_callback(np.sin, x, x)  # noqa: E731
    with pytest.raises(ValueError, match="calls host functions"):
        serialize(sw.jit(hosted).lower(jnp.float32(1)).compile())


def test_missing_devices_and_other_versions():
    payload, in_tree, out_tree = serialize(compiled())
    with pytest.raises(ValueError, match=r"for the device with id \d, and there are \[0\]"):
        deserialize_and_load(payload, in_tree, out_tree, execution_devices=sw.devices()[:1])
    version = sw.extend.backend.get_backend().platform_version.encode()
    other = payload.replace(version, b"x" * len(version))
    with pytest.raises(ValueError, match=r"was compiled with .*xxx.*Compile it again"):
        deserialize_and_load(other, in_tree, out_tree)
