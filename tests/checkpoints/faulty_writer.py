"""A process that saves checkpoints until it is killed.

python -m tests.checkpoints.faulty_writer FOLDER FIRST_STEP COUNT

Step n holds arrays that `state(n)` returns. The process prints each step when its save has returned.
"""

import sys

import numpy as np

import shardwise as sw
from shardwise import checkpoints


def state(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {"large": rng.random((800, 800), np.float32), "small": rng.integers(0, 99, 7)}


def main(folder: str, first: int, count: int) -> None:
    mesh = sw.make_mesh((4,), ("rows",))
    rows = sw.NamedSharding(mesh, sw.P("rows"))
    with checkpoints.Manager(folder, every_steps=1, save_on_sigterm=False) as manager:
        for step in range(first, first + count):
            tree = state(step)
            manager.save(step, {"large": sw.device_put(tree["large"], rows), "small": tree["small"]})
            print(step, flush=True)


if __name__ == "__main__":
    sw.config.update("num_cpu_devices", 4)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
