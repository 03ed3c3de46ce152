"""A training program whose survivors go on after process 1 was killed: shrinking.py RANK PROCESSES PORT FOLDER FAULT.

With FAULT `kill`, process 1 kills itself in step 6; the others restore the last checkpoint onto a smaller mesh, in the
same processes.
"""

import os
import signal
import sys

import shardwise as sw
from shardwise.errors import PeerFailure
from tests.multi_process.resumable import train


def main(rank, processes, port, folder, fault):
    sw.config.update("num_cpu_devices", 2)
    sw.distributed.initialize(f"127.0.0.1:{port}", int(processes), int(rank), peer_timeout=60)
    alive = list(range(int(processes)))

    def before_step(step, manager):
        if fault == "kill" and step == 6 and sw.process_index() == 1:
            manager.wait()
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        train(folder, processes=alive, before_step=before_step)
    except PeerFailure as failure:
        print(f"process {rank} goes on without process {failure.rank}", flush=True)
        alive.remove(failure.rank)
        train(folder, processes=alive)


if __name__ == "__main__":
    main(*sys.argv[1:])
