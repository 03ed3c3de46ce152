"""multihost_utils, in a single process compared with JAX, and in two processes."""

import socket
import subprocess
import sys

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
    specs = {"a": P("model"), "b": None}
    arrays = multihost_utils.host_local_array_to_global_array(DATA, mesh, specs)
    assert arrays["a"].sharding == NamedSharding(mesh, P("model"))
    np.testing.assert_array_equal(arrays["a"], DATA["a"])
    with pytest.raises(ValueError, match="host_local_array_to_global_array: pspecs"):
        multihost_utils.host_local_array_to_global_array(DATA, mesh, {"a": P()})


def test_checks():
    multihost_utils.sync_global_devices("here")
    multihost_utils.assert_equal(DATA)
    with pytest.raises(ValueError, match="one process must be the source, not 0"):
        multihost_utils.broadcast_one_to_all(1, is_source=False)
    with pytest.raises(ValueError, match="tiled=True"):
        multihost_utils.process_allgather(1, tiled=True)


TWO_PROCESSES = """
import sys
import numpy as np
import shardwise as sw
from shardwise.experimental import multihost_utils as utils

rank = int(sys.argv[1])
sw.config.update("num_cpu_devices", 2)
sw.distributed.initialize(f"127.0.0.1:{sys.argv[2]}", 2, rank)
utils.sync_global_devices("start")
own = np.arange(2) + 10 * rank
assert utils.process_allgather(own).tolist() == [[0, 1], [10, 11]]
assert utils.process_allgather(own, tiled=True).tolist() == [0, 1, 10, 11]
assert utils.broadcast_one_to_all({"a": own})["a"].tolist() == [0, 1]
assert utils.broadcast_one_to_all(own, is_source=rank == 1).tolist() == [10, 11]
mesh = sw.sharding.Mesh(np.array(sw.devices()), ("x",))
x = utils.host_local_array_to_global_array(own, mesh, sw.P("x"))
assert x.shape == (4,) and utils.process_allgather(x).tolist() == [0, 1, 10, 11]
try:
    utils.assert_equal(own)
except AssertionError:
    print("they differ", flush=True)
sw.distributed.shutdown()
"""


def test_two_processes():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    workers = [
        subprocess.Popen([sys.executable, "-c", TWO_PROCESSES, str(rank), port], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [worker.communicate(timeout=120)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert all("they differ" in output for output in outputs)
