"""Texts of arrays."""

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P
from shardwise.runtime.array_repr import array_html, array_repr, array_str, device_label, devices_by_shard


def test_the_repr_shows_what_numpy_shows_and_weak_types():
    assert array_repr(jnp.asarray(np.array([1.0, 2.0], np.float32))) == "Array([1., 2.], dtype=float32)"
    assert array_repr(jnp.zeros((0, 3))) == "Array([], shape=(0, 3), dtype=float32)"
    assert array_repr(jnp.asarray(1.0)).endswith("dtype=float32, weak_type=True)")
    x = np.arange(6).reshape(2, 3).astype(np.int32)
    assert array_str(jnp.asarray(x)) == str(x)


def test_large_arrays_are_summarized():
    x = np.arange(2000, dtype=np.int32)
    assert array_str(jnp.asarray(x)) == str(x)


def test_devices_of_each_shard(mesh):
    sharding = sw.NamedSharding(mesh, P("data"))
    shards = devices_by_shard((6, 2), sharding)
    assert list(shards) == [((0, 2), (0, 2)), ((2, 4), (0, 2)), ((4, 6), (0, 2)), ((0, 0), (0, 0))]
    assert [device_label(devices) for devices in shards.values()] == ["CPU 0,1", "CPU 2,3", "CPU 4,5", "CPU 6,7"]


def test_html_has_the_properties_and_the_elements(mesh):
    text = array_html(sw.device_put(np.arange(8, dtype=np.int32), sw.NamedSharding(mesh, P("data"))))
    assert "<th>dtype</th><td>int32</td>" in text
    assert "<pre>[0 1 2 3 4 5 6 7]</pre>" in text
