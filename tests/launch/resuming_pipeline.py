"""A pipeline of separate programs under the launcher: resuming_pipeline.py FOLDER FAULT, as for resuming.py.

Each of two processes has one stage. After a restart both continue from the last checkpoint.
"""

import os
import signal
import sys

import numpy as np

import shardwise as sw
from shardwise import P, checkpoints
from shardwise.parallel import mpmd_pipeline
from shardwise.sharding import Mesh, NamedSharding
from tests.parallel.mpmd.language_model import batch, stages_and_params

STEPS, MICROBATCHES = 8, 4


@sw.jit
def update(params, gradients):
    return sw.tree_util.tree_map(lambda w, g: w - 0.1 * g, params, gradients)


def main(folder: str, fault: str) -> None:
    sw.distributed.initialize()
    stages, params = stages_and_params([2, 1])
    meshes = [Mesh(np.array([d for d in sw.devices() if d.process_index == rank]), ("data",)) for rank in range(2)]
    pipeline = mpmd_pipeline(stages, meshes, MICROBATCHES, "zb-h1", spec=P("data"))
    placed = [
        sw.tree_util.tree_map(lambda leaf, mesh=mesh: sw.device_put(leaf, NamedSharding(mesh, P())), part)
        for part, mesh in zip(params, meshes, strict=True)
    ]
    manager = checkpoints.Manager(folder, every_steps=2, keep_last=2)
    start = 0
    if manager.latest() is not None:
        restored = manager.restore(placed)
        start, placed = restored.step + 1, restored.tree
    for step in range(start, STEPS):
        first_life = int(os.environ["SHARDWISE_RESTART_COUNT"]) == 0
        if fault == "kill" and step == 5 and first_life and sw.process_index() == 1:
            manager.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        loss, gradients = pipeline.value_and_grad(placed, *batch(step))
        if sw.process_index() == 0:
            print(f"step {step} loss {float(loss).hex()}", flush=True)
        placed = [update(*pair) for pair in zip(placed, gradients, strict=True)]
        manager.save(step, placed)
    manager.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
