"""multihost_utils in a single process, compared with JAX; tests/multi_process runs it in several."""

import numpy as np
import pytest

import shardwise as sw
from shardwise.experimental import multihost_utils
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

DATA = {"a": np.arange(6).reshape(2, 3), "b": (np.float32(2),)}


@pytest.mark.jax
def test_same_as_jax():
    jax = pytest.importorskip("jax")
    pytest.importorskip("jax.experimental.multihost_utils")
    theirs = jax.experimental.multihost_utils
    for ours, expected in (
        (multihost_utils.process_allgather(DATA), theirs.process_allgather(DATA)),
        (multihost_utils.process_allgather(DATA["a"], tiled=True), theirs.process_allgather(DATA["a"], tiled=True)),
        (multihost_utils.broadcast_one_to_all(DATA), theirs.broadcast_one_to_all(DATA)),
    ):
        for mine, other in zip(sw.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(mine, other)


def test_arrays_of_all_processes(mesh):
    specs = {"a": P("model"), "b": P()}
    arrays = multihost_utils.host_local_array_to_global_array(DATA, mesh, specs)
    assert arrays["a"].sharding == NamedSharding(mesh, P("model"))
    np.testing.assert_array_equal(arrays["a"], DATA["a"])
    with pytest.raises(ValueError, match="host_local_array_to_global_array: pspecs"):
        multihost_utils.host_local_array_to_global_array(DATA, mesh, {"a": P()})
    for function in (
        multihost_utils.host_local_array_to_global_array,
        multihost_utils.global_array_to_host_local_array,
    ):
        with pytest.raises(ValueError, match="pspecs cannot hold None"):
            function(DATA, mesh, None)
    assert multihost_utils.host_local_array_to_global_array(arrays, mesh, specs)["a"].shape == (2, 3)
    back = multihost_utils.global_array_to_host_local_array(arrays, mesh, specs)
    assert back["a"] is arrays["a"]


def test_checks():
    multihost_utils.sync_global_devices("here")
    multihost_utils.assert_equal(DATA)
    with pytest.raises(ValueError, match="one process must be the source, not 0"):
        multihost_utils.broadcast_one_to_all(1, is_source=False)
    assert multihost_utils.process_allgather(1, tiled=True).tolist() == [1]
    assert not multihost_utils.reached_preemption_sync_point(3)
    with (
        pytest.raises(RuntimeError, match=r"needs distributed\.initialize first"),
        multihost_utils.live_devices(sw.devices()),
    ):
        pass
