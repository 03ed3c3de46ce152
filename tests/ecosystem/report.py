"""What a program of this folder prints, and its mesh. It runs on Shardwise and on JAX, over 8 devices or on one."""

import atexit
import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

_sizes = (4, 2) if os.environ["ECOSYSTEM_DEVICES"] == "8" else (1, 1)
mesh = jax.make_mesh(_sizes, ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def shard(x, *axes):
    """Put an array on the mesh, sharded along these axes."""
    return jax.device_put(x, NamedSharding(mesh, P(*axes)))


def spec_text(x):
    """Return an array's spec without mesh axes of size 1 and trailing Nones, neither of which affects the layout.

    JAX may return an output with or without an axis of size 1, depending on the shardings of the arguments.
    """
    sizes = x.sharding.mesh.shape
    entries = [(entry,) if isinstance(entry, str) else entry or () for entry in x.sharding.spec]
    spec = [tuple(axis for axis in axes if sizes[axis] > 1) for axes in entries]
    while spec and not spec[-1]:
        spec.pop()
    return str(spec)


def explain(function, *args):
    """Check on Shardwise that the plan of a jitted function explains its collectives, each by a line of the program."""
    if not hasattr(jax, "explain"):
        return
    with redirect_stdout(io.StringIO()):  # programs print results alone
        plan = jax.explain(function, advise=False)(*args)
    assert plan.collectives or mesh.size == 1, plan
    program = Path(sys.argv[0]).name
    for collective in plan.collectives:
        assert collective.reason or not collective.inserted, collective  # those of callbacks are the program's own
        assert str(collective.source).startswith(program), collective


def report(name, value):
    """Print a result as one line of JSON: numbers, or a text."""
    if not isinstance(value, str) and not (isinstance(value, list) and value and isinstance(value[0], str)):
        value = np.asarray(value, dtype=float).tolist()
    print(json.dumps([name, value]), flush=True)


@atexit.register
def report_placeholders():
    """Report on Shardwise the names of JAX that a library used and Shardwise lacks, even if it caught the error."""
    unsupported = sys.modules.get("shardwise.base.unsupported")
    if unsupported is not None and unsupported.used_placeholders():
        report("used placeholders", unsupported.used_placeholders())
