"""One process of several that real JAX connects: runs a planned step, and prints its plan and its results as JSON."""

import json
import sys

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding

from shardwise import inside_jax
from tests.inside_jax.steps import SHAPES, SPECS, step


def main(rank, count, port):
    jax.config.update("jax_num_cpu_devices", 8 // count)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", count, rank)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    rng = np.random.default_rng(0)
    args = []
    for shape, spec in zip(SHAPES, SPECS, strict=True):
        value = rng.normal(size=shape).astype(np.float32)
        args.append(jax.make_array_from_callback(shape, NamedSharding(mesh, spec), lambda index, x=value: x[index]))
    planned = inside_jax.jit(step)
    module = planned.lower(*args).as_text()
    results = planned(*args)
    sums = [float(jax.jit(lambda x: abs(x).sum())(x)) for x in results]
    print(json.dumps({"module": module, "sums": sums, "loss": float(results[2])}), flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
