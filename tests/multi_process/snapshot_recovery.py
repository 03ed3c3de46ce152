"""A training program that continues from peers' memory: snapshot_recovery.py RANK PROCESSES PORT FAULT.

FAULT is `none`, or the ranks that are killed in step 6, separated by commas; with `1;2`, process 2 dies when it has
noticed the death of process 1. The parameters are sharded, so that each process alone has some of them. The others
continue on a smaller mesh, without any file, from a snapshot that is taken every two steps.
"""

import os
import signal
import sys
import time

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.errors import CheckpointNotFound, PeerFailure
from shardwise.sharding import Mesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

STEPS, FAULT_STEP, FEATURES, PEER_TIMEOUT = 10, 6, 24, 100


def create(mesh, seed=0):
    """Return the data, replicated, and the parameters with their momentum, sharded."""
    rng = np.random.default_rng(seed)

    def place(value, spec):
        return sw.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda index: value[index])

    data = place(rng.random((16, FEATURES), np.float32), P()), place(rng.random(16, np.float32), P())
    return data, {name: place(np.zeros(FEATURES, np.float32), P("data")) for name in ("weights", "momentum")}


@sw.jit
def train_step(state, x, y):
    loss, gradient = sw.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(state["weights"])
    momentum = 0.9 * state["momentum"] + gradient
    return {"weights": state["weights"] - 0.02 * momentum, "momentum": momentum}, loss


def main(rank, processes, port, fault):
    sw.config.update("num_cpu_devices", 2)
    sw.distributed.initialize(f"127.0.0.1:{port}", int(processes), int(rank), peer_timeout=PEER_TIMEOUT)
    first, _, later = fault.partition(";")
    alive = list(range(int(processes)))
    snapshots = checkpoints.PeerSnapshots(every_steps=2)
    failed_at = None
    while True:
        try:
            mesh = Mesh(np.array([each for each in sw.devices() if each.process_index in alive]), ("data",))
            (x, y), state = create(mesh)
            start = 0
            if failed_at is not None:
                restored = snapshots.restore(state, processes=alive)
                start, state = restored.step + 1, restored.tree
                print(f"process {rank} continues after step {restored.step}", flush=True)
            for step in range(start, STEPS):
                if step == FAULT_STEP and failed_at is None and rank in first.split(","):
                    snapshots.wait()
                    os.kill(os.getpid(), signal.SIGKILL)
                state, loss = train_step(state, x, y)
                value = float(loss)
                if failed_at is not None:
                    print(f"recovered in {time.monotonic() - failed_at:.3f} s", flush=True)
                    failed_at = None
                    first = ""
                print(f"step {step} loss {value.hex()}", flush=True)
                snapshots.save(step, state)
            break
        except PeerFailure as failure:
            failed_at = time.monotonic()
            print(f"process {rank} noticed the failure of process {failure.rank}", flush=True)
            # A process that is killed in the same step may have noticed the first death before.
            if rank in first.split(",") or rank in later.split(","):
                os.kill(os.getpid(), signal.SIGKILL)
            alive.remove(failure.rank)
        except CheckpointNotFound as error:
            print(f"lost: {error}", flush=True)
            break
    snapshots.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
