"""Cases: snapshots in the memory of other processes, without failures. `test_shrinking.py` has those with failures."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.checkpoints import peer_snapshots
from shardwise.errors import CheckpointMismatch, CheckpointNotFound
from shardwise.sharding import Mesh, NamedSharding
from shardwise.sharding import PartitionSpec as P


def meshes():
    """A mesh over all devices, the same in another order, and one over the devices of two processes."""
    devices = np.array(sw.devices())
    two = np.array([device for device in devices if device.process_index < 2])
    return [
        Mesh(devices.reshape(-1, 2), ("data", "model")),
        Mesh(devices[::-1].reshape(2, -1), ("data", "model")),
        Mesh(two.reshape(-1, 2), ("data", "model")),
    ]


def state(mesh, seed=0):
    """A pytree with sharded, uneven, replicated and narrow arrays, keys, numpy arrays and numbers, and its values."""
    rng = np.random.default_rng(seed)
    values = {
        "sharded": rng.random((8, 6), np.float32),
        "uneven": rng.integers(0, 100, (7, 3)).astype(np.int32),
        "replicated": rng.random(5, np.float32),
        "narrow": rng.random((4, 4)).astype(jnp.bfloat16),
    }
    specs = {"sharded": P("data", "model"), "uneven": P("data"), "replicated": P(), "narrow": P(None, "model")}
    tree = {
        name: sw.make_array_from_callback(
            value.shape, NamedSharding(mesh, specs[name]), lambda index, value=value: value[index]
        )
        for name, value in values.items()
    }
    keys = sw.random.split(sw.random.key(seed), 4)
    tree["keys"] = sw.device_put(keys, NamedSharding(mesh, P()))
    values["keys"] = np.array(sw.random.key_data(keys))
    return {**tree, "host": np.arange(3) + seed, "number": 0.5 + seed}, values


def check(tree, values, seed=0):
    for name, value in values.items():
        array = sw.random.key_data(tree[name]) if name == "keys" else tree[name]
        for shard in array.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), value[shard.index])
    np.testing.assert_array_equal(tree["host"], np.arange(3) + seed)
    assert tree["number"] == 0.5 + seed


def case_states_are_restored_on_other_meshes():
    first, second, two = meshes()
    tree, values = state(first)
    snapshots = checkpoints.PeerSnapshots(every_steps=2)
    assert snapshots.save(4, tree) and not snapshots.save(5, tree)
    snapshots.wait()
    assert snapshots.latest() == 4
    for mesh in (first, second, first):
        like, _ = state(mesh, seed=1)
        restored = snapshots.restore(like)
        assert restored.step == 4
        check(restored.tree, values)
        assert restored.tree["sharded"].sharding == like["sharded"].sharding
    if sw.process_index() < 2:
        like, _ = state(two, seed=1)
        restored = snapshots.restore(like, processes=[0, 1])
        check(restored.tree, values)
    snapshots.close()
    assert snapshots.nbytes == 0


def case_donated_arrays_and_older_snapshots():
    mesh = meshes()[0]
    tree, values = state(mesh)
    snapshots = checkpoints.PeerSnapshots(every_steps=1)
    step = sw.jit(lambda x: x + 1, donate_argnums=0)
    x = tree["sharded"]
    sizes = []
    for number in range(4):
        snapshots.save(number, {"x": x})
        x = step(x)
        snapshots.wait()
        sizes.append(snapshots.nbytes)
    assert sizes[0] == sizes[-1] > 0, sizes
    restored = snapshots.restore({"x": x})
    assert restored.step == 3
    for shard in restored.tree["x"].addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), (values["sharded"] + 1 + 1 + 1)[shard.index])
    snapshots.close()


def case_a_snapshot_that_does_not_arrive_is_dropped():
    first, second, _ = meshes()
    tree, values = state(first)
    snapshots = checkpoints.PeerSnapshots(every_steps=1)
    snapshots.save(0, tree)
    snapshots.wait()
    nbytes, fetch = snapshots.nbytes, peer_snapshots.fetch

    def fail(offer, name, rank):
        if rank == 1:
            raise ConnectionResetError("the partner has closed the connection")
        return fetch(offer, name, rank)

    peer_snapshots.fetch = fail
    try:
        for step in (1, 2):
            snapshots.save(step, {**tree, "number": step})
        assert snapshots.wait() == []
    finally:
        peer_snapshots.fetch = fetch
    assert snapshots.latest() == 0 and snapshots.nbytes == nbytes
    like, _ = state(second, seed=1)
    restored = snapshots.restore(like)
    assert restored.step == snapshots.latest() == 0
    check(restored.tree, values)
    snapshots.close()
    assert snapshots.latest() is None


def case_the_plan_has_the_memory_of_snapshots():
    mesh = meshes()[0]
    specs = {"both": P("data", "model"), "data": P("data"), "model": P(None, "model"), "all": P()}
    values = {name: np.ones((12, 4 << index), np.float32) for index, name in enumerate(specs)}
    tree = {
        name: sw.make_array_from_callback(
            value.shape, NamedSharding(mesh, specs[name]), lambda index, value=value: value[index]
        )
        for name, value in values.items()
    }
    processes, devices = sw.process_count(), len(sw.devices())
    failures = sw.Failures(days=1, trials=1, devices_per_node=devices, processes_per_node=processes)
    goodput = sw.simulate(lambda tree: sw.tree.map(jnp.sin, tree), hardware="h100", failures=failures)(tree).goodput
    snapshots = checkpoints.PeerSnapshots(every_steps=1)
    snapshots.save(0, tree)
    snapshots.wait()
    assert snapshots.nbytes == goodput.snapshot_memory.held
    snapshots.close()


def case_replicated_states_are_not_sent():
    mesh = meshes()[0]
    array = sw.device_put(np.ones((64, 64), np.float32), NamedSharding(mesh, P()))
    snapshots = checkpoints.PeerSnapshots(every_steps=1)
    snapshots.save(0, [array])
    snapshots.wait()
    assert snapshots.nbytes == array.nbytes
    snapshots.close()


def case_other_trees_and_missing_snapshots_are_errors():
    tree, _ = state(meshes()[0])
    snapshots = checkpoints.PeerSnapshots()
    with pytest.raises(CheckpointNotFound, match="none was saved"):
        snapshots.restore(tree)
    assert snapshots.save(0, tree)
    with pytest.raises(CheckpointMismatch, match="'number' is not in `like`"):
        snapshots.restore({name: leaf for name, leaf in tree.items() if name != "number"})
    with pytest.raises(CheckpointMismatch, match="'more' is not in the snapshot"):
        snapshots.restore({**tree, "more": tree["sharded"]})
    snapshots.close()
