"""A training program that survives: resuming.py FOLDER FAULT. FAULT is `none` or `kill`, of process 1 in step 6.

It prints the loss of every step. After a restart it continues from the last checkpoint.
"""

import os
import signal
import sys

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.sharding import NamedSharding, PartitionSpec


def main(folder: str, fault: str) -> None:
    sw.distributed.initialize()
    mesh = sw.make_mesh((sw.device_count(),), ("data",))
    rows, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    rng = np.random.default_rng(0)
    features, targets = rng.random((8, 4), np.float32), rng.random(8, np.float32)
    x, y = (
        sw.make_array_from_callback(host.shape, rows, lambda index, host=host: host[index])
        for host in (features, targets)
    )

    @sw.jit
    def train_step(w, x, y):
        loss, gradient = sw.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        return w - 0.1 * gradient, loss

    w = sw.device_put(jnp.zeros(4), whole)
    with checkpoints.Manager(folder, every_steps=2, keep_last=2) as manager:
        start = 0
        if manager.latest() is not None:
            found = manager.restore(w)
            start, w = found.step + 1, found.tree
        for step in range(start, 10):
            first_life = int(os.environ["SHARDWISE_RESTART_COUNT"]) == 0
            if fault == "kill" and step == 6 and first_life and sw.process_index() == 1:
                manager.wait()
                os.kill(os.getpid(), signal.SIGKILL)
            w, loss = train_step(w, x, y)
            manager.save(step, w)
            if sw.process_index() == 0:
                print(f"step {step} loss {float(loss).hex()}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
