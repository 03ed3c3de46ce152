"""A training loop that continues from its last checkpoint: for tests of restarts and survivors, and the soak."""

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.sharding import Mesh, NamedSharding, PartitionSpec

STEPS = 10


@sw.jit
def train_step(w, x, y):
    loss, gradient = sw.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * gradient, loss


def train(folder, *, steps=STEPS, every_steps=2, processes=None, before_step=lambda step, manager: None, timeout=60):
    """Train a linear model on the devices of some processes, all by default, from the last checkpoint on.

    Process 0 prints the loss of every step, as a hexadecimal number.

    Args:
        folder: the folder of the checkpoints.
        steps: the number of steps.
        every_steps: the number of steps between two checkpoints.
        processes: the numbers of the processes that take part.
        before_step: called before every step with its number and the manager.
        timeout: how many seconds the checkpoints wait for other processes.
    """
    members = range(sw.process_count()) if processes is None else processes
    mesh = Mesh(np.array([device for device in sw.devices() if device.process_index in members]), ("data",))
    rows, replicated = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    rng = np.random.default_rng(0)
    x, y = (
        sw.make_array_from_callback(host.shape, rows, lambda index, host=host: host[index])
        for host in (rng.random((12, 4), np.float32), rng.random(12, np.float32))
    )
    w = sw.make_array_from_callback((4,), replicated, lambda index: np.zeros(4, np.float32))
    manager = checkpoints.Manager(
        folder,
        every_steps=every_steps,
        keep_last=2,
        processes=processes,
        save_on_sigterm=processes is None,
        timeout=timeout,
    )
    start = 0
    if manager.latest() is not None:
        restored = manager.restore(w)
        start, w = restored.step + 1, restored.tree
    for step in range(start, steps):
        before_step(step, manager)
        w, loss = train_step(w, x, y)
        value = float(loss)
        sw.distributed.report_step(step)
        if sw.process_index() == 0:
            print(f"step {step} loss {value.hex()}", flush=True)
        manager.save(step, w)
        if manager.stopping:
            break
    manager.close()  # not after a failure: it would wait for the save that the lost process does not complete
