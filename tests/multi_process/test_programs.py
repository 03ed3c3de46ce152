"""Programs on meshes that span processes, and multihost_utils: see `program_cases`."""

import pytest

from tests.multi_process.cluster import cases, check_case, run_cases, run_processes

MODULE = "tests.multi_process.program_cases"


@pytest.mark.parametrize("case", cases(MODULE))
def test_on_two_processes(case):
    check_case(run_cases(MODULE, 2, 2)[case])


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(MODULE))
def test_on_four_processes(case):
    check_case(run_cases(MODULE, 4, 2)[case])


AS_JAX = """
import sys
import shardwise
shardwise.as_jax()
import jax
from jax.experimental import multihost_utils
import numpy as np
rank, port = int(sys.argv[1]), sys.argv[2]
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
mesh = jax.make_mesh((4,), ("x",))
x = jax.device_put(np.arange(8.0), jax.NamedSharding(mesh, jax.P("x")))
total = jax.jit(lambda x: (x**2).sum())(x)
assert isinstance(total, shardwise.Array) and float(total) == 140
assert multihost_utils.process_allgather(np.array([rank]), tiled=True).tolist() == [0, 1]
jax.distributed.shutdown()
"""


@pytest.mark.slow
def test_import_of_jax_means_this_package_in_every_process(tmp_path):
    script = tmp_path / "as_jax.py"
    script.write_text(AS_JAX)
    run_processes(lambda rank, port: [str(script), str(rank), str(port)], 2)
