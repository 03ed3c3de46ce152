"""A training program whose survivors go on after process 1 was killed: shrinking.py RANK PROCESSES PORT FOLDER FAULT.

Process 0 prints the loss of every step. With FAULT `kill`, process 1 kills itself in step 6; the others restore the
last checkpoint onto a smaller mesh, in the same processes.
"""

import os
import signal
import sys

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.errors import PeerFailure
from shardwise.sharding import Mesh, NamedSharding, PartitionSpec

STEPS = 10


@sw.jit
def train_step(w, x, y):
    loss, gradient = sw.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * gradient, loss


def train(folder, processes, fault):
    """Train on the devices of these processes, from the last checkpoint on."""
    devices = [device for device in sw.devices() if device.process_index in processes]
    mesh = Mesh(np.array(devices), ("data",))
    rows, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    rng = np.random.default_rng(0)
    x, y = (
        sw.make_array_from_callback(host.shape, rows, lambda index, host=host: host[index])
        for host in (rng.random((12, 4), np.float32), rng.random(12, np.float32))
    )
    w = sw.make_array_from_callback((4,), whole, lambda index: np.zeros(4, np.float32))
    manager = checkpoints.Manager(folder, every_steps=2, processes=processes, save_on_sigterm=False)
    start = 0
    if manager.latest() is not None:
        found = manager.restore(w)
        start, w = found.step + 1, found.tree
    for step in range(start, STEPS):
        if fault == "kill" and step == 6 and sw.process_index() == 1:
            manager.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        w, loss = train_step(w, x, y)
        manager.save(step, w)
        if sw.process_index() == 0:
            print(f"step {step} loss {float(loss):.6f}", flush=True)
    manager.close()


def main(rank, processes, port, folder, fault):
    sw.config.update("num_cpu_devices", 2)
    sw.distributed.initialize(f"127.0.0.1:{port}", int(processes), int(rank), peer_timeout=10)
    alive = list(range(int(processes)))
    try:
        train(folder, alive, fault)
    except PeerFailure as failure:
        print(f"process {rank} goes on without process {failure.rank}", flush=True)
        alive.remove(failure.rank)
        train(folder, alive, "none")


if __name__ == "__main__":
    main(*sys.argv[1:])
