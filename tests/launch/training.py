"""A program of the launcher's tests that uses the devices of all processes: `training.py train FAULT`."""

import os
import signal
import sys
import time

import numpy as np

import shardwise as sw
from shardwise.sharding import NamedSharding, PartitionSpec

RANK = int(os.environ["SHARDWISE_PROCESS_ID"])


def train(name):
    """Add numbers over all processes in every step. In step 3, process 1 does `name`: fail, exit, kill, sleep, stop."""
    sw.distributed.initialize()
    mesh = sw.make_mesh((len(sw.devices()),), ("x",), devices=sw.devices())
    x = sw.device_put(np.ones(len(sw.devices()), np.float32), NamedSharding(mesh, PartitionSpec("x")))
    total = sw.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))
    for step in range(6):
        if RANK == 1 and step == 3 and int(os.environ["SHARDWISE_RESTART_COUNT"]) == 0:
            if name == "fail":
                raise ValueError("one rank only")
            if name == "exit":
                os._exit(0)
            if name == "sleep":
                time.sleep(600)
            if name == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if name == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        print(f"step {step}: {float(total(x))}")
        sw.distributed.report_step(step)


def exit_before_initialize():
    """Process 1 ends with exit code 0, while the others wait for it in `initialize`."""
    if RANK != 1:
        sw.distributed.initialize()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
