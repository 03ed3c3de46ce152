"""LAPACK on several virtual devices: BLAS starts no threads of its own, and no program hangs on a busy machine."""

import os
import subprocess
import sys

import pytest

DEVICES = """
import shardwise as sw
sw.config.update("num_cpu_devices", {devices})
"""

BLAS_THREADS = """
import numpy as np
import scipy.linalg.cython_lapack
import shardwise.numpy as jnp
from shardwise.base.blas_threads import blas_libraries
before = [library.num_threads for library in blas_libraries()]
np.asarray(jnp.linalg.cholesky(jnp.eye(3)))
print(before, [library.num_threads for library in blas_libraries()])
"""

# The gradient of a Cholesky factor of a sharded matrix, and independent decompositions of batches of matrices.
CHOLESKY = """
import numpy as np
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding, PartitionSpec as P
rows = NamedSharding(sw.make_mesh((8,), ("data",)), P("data"))
x = sw.device_put(np.random.default_rng(0).normal(size=(48, 48)).astype(np.float32), rows)
step = sw.jit(sw.grad(lambda x: jnp.linalg.cholesky(x @ x.T + 4 * jnp.eye(48)).sum()))
results = [step(x) for _ in range(200)]
print(all(np.array_equal(result, results[0]) for result in results))
"""

BATCHES = """
import numpy as np
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding, PartitionSpec as P
rows = NamedSharding(sw.make_mesh((8,), ("data",)), P("data"))
x = sw.device_put(np.random.default_rng(0).normal(size=(8, 12, 16, 48, 48)).astype(np.float32), rows)
step = sw.jit(lambda x: sum(jnp.linalg.qr(jnp.sin(x[:, i]))[1].sum() for i in range(12)))
results = [step(x) for _ in range({calls})]
print(all(np.array_equal(result, results[0]) for result in results))
"""

BUSY = "from time import monotonic\nend = monotonic() + 600\nwhile monotonic() < end: pass"


def run(script, devices=8, seconds=120):
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "4"}
    command = [sys.executable, "-c", DEVICES.format(devices=devices) + script]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=seconds, check=True
    ).stdout.strip()


def test_blas_runs_in_the_calling_thread_if_there_are_several_devices():
    assert run(BLAS_THREADS).endswith(" [1]")


def test_blas_keeps_its_threads_on_one_device():
    before, after = run(BLAS_THREADS, devices=1).split(" ")
    assert before == after


def test_independent_decompositions_of_batches_do_not_hang():
    assert run(BATCHES.format(calls=2)) == "True"


@pytest.fixture
def busy_machine():
    """Four processes that compute all the time."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(4)]
    yield
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("script", [CHOLESKY, BATCHES.format(calls=20)], ids=["cholesky", "batches"])
@pytest.mark.parametrize("attempt", range(20))
def test_lapack_on_a_busy_machine(busy_machine, script, attempt):
    assert run(script, seconds=300) == "True"
