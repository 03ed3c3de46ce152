"""A program of the launcher's tests that saves checkpoints on all processes: `saving.py FAULT FOLDER`.

In step 2, process 1 does FAULT before it saves: `stop` stops it, `sleep` sleeps. `skip` omits the save.
"""

import os
import signal
import sys
import time

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
        is_faulty = sw.process_index() == 1 and step == 2
        if is_faulty and fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if is_faulty and fault == "sleep":
            time.sleep(600)
        if not (is_faulty and fault == "skip"):
            manager.save(step, {"x": x}, force=True)
        manager.wait()
        print(f"saved {step}")
        sw.distributed.report_step(step)
    manager.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
