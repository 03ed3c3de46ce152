"""A program of the launcher's tests that saves checkpoints on all processes: `saving.py FAULT FOLDER`.

In step 2, process 1 does FAULT before it saves: it is stopped by `stop`.
"""

import os
import signal
import sys

import numpy as np

import shardwise as sw
from shardwise.checkpoints import Manager
from shardwise.sharding import NamedSharding, PartitionSpec

STEPS = 4


def main(fault: str, folder: str) -> None:
    mesh = sw.make_mesh((len(sw.devices()),), ("x",))
    x = sw.device_put(np.ones(len(sw.devices()), np.float32), NamedSharding(mesh, PartitionSpec("x")))
    manager = Manager(folder, save_on_sigterm=False)
    for step in range(STEPS):
        if sw.process_index() == 1 and step == 2 and fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        manager.save(step, {"x": x}, force=True)
        manager.wait()
        print(f"saved {step}")
        sw.distributed.report_step(step)
    manager.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
