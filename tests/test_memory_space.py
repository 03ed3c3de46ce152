"""memory.Space: device_put changes the memory of an array, and nothing else."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.memory import Space


def test_arrays_move_between_memories_with_their_sharding():
    mesh = sw.make_mesh((4,), ("x",))
    rows = sw.NamedSharding(mesh, sw.P("x"))
    x = sw.device_put(np.arange(8.0, dtype=np.float32), rows)
    on_host = sw.device_put(x, Space.Host)
    assert on_host.sharding == rows.with_memory_kind("pinned_host")
    assert sw.device_put(on_host, Space.Device).sharding == rows
    assert sw.device_put(on_host, Space.Any).sharding == on_host.sharding
    np.testing.assert_array_equal(on_host, np.arange(8))


def test_pytrees_and_traced_functions():
    pair = sw.device_put((np.ones(2), jnp.ones(3)), (Space.Host, Space.Device))
    assert [x.sharding.memory_kind for x in pair] == ["pinned_host", sw.devices()[0].default_memory().kind]
    moved = sw.jit(lambda x: sw.device_put(sw.device_put(x, Space.Host) * 2, Space.Device) + 1)
    np.testing.assert_array_equal(moved(jnp.arange(3.0)), [1, 3, 5])
    assert sw.jit(lambda x: sw.device_put(x, Space.Host))(jnp.ones(2)).sharding.memory_kind == "pinned_host"


@pytest.mark.jax
def test_members_like_jax():
    jax = pytest.importorskip("jax")
    assert [repr(space) for space in Space] == [repr(space) for space in jax.memory.Space]
