"""A training program whose survivors go on after processes were killed: shrinking.py RANK PROCESSES PORT FOLDER FAULT.

FAULT is `none`, or the ranks that are killed in step 6, separated by commas. With `1,3`, both die at the same
time; with `1;3`, process 3 dies when it has noticed the death of process 1. The others restore the last checkpoint
onto a smaller mesh, in the same processes.
"""

import os
import signal
import sys
import time
from pathlib import Path

import shardwise as sw
from shardwise.errors import PeerFailure
from tests.multi_process.resumable import train

FAULT_STEP = 6


def meet(folder, rank, ranks):
    """Wait until all of these processes are here, so that they die at the same time."""
    (Path(f"{folder}.{rank}")).touch()
    deadline = time.monotonic() + 60
    while not all(Path(f"{folder}.{other}").exists() for other in ranks) and time.monotonic() < deadline:
        time.sleep(0.001)


def main(rank, processes, port, folder, fault):
    sw.config.update("num_cpu_devices", 2)
    sw.distributed.initialize(f"127.0.0.1:{port}", int(processes), int(rank), peer_timeout=60)
    first, _, later = fault.partition(";")
    alive = list(range(int(processes)))

    def before_step(step, manager):
        if step != FAULT_STEP:
            return
        if rank in first.split(","):
            manager.wait()
            meet(folder, rank, first.split(","))
            os.kill(os.getpid(), signal.SIGKILL)

    while True:
        try:
            train(folder, processes=alive, before_step=before_step)
            break
        except PeerFailure as failure:
            print(f"process {rank} goes on without process {failure.rank}", flush=True)
            if rank in later.split(","):
                os.kill(os.getpid(), signal.SIGKILL)
            alive.remove(failure.rank)


if __name__ == "__main__":
    main(*sys.argv[1:])
