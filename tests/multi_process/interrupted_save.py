"""A program whose save of step 2 fails in one process: interrupted_save.py RANK PROCESSES PORT FOLDER FAULT VICTIM.

FAULT `kill` kills process VICTIM with SIGKILL while step 2 is being written; `store error` makes its files too large
for the file system; `stop` stops it before the save, and `stop writing` while it writes; `sleep` lets its main thread
sleep before the save; `skip` lets it save step 3 instead. Every other process prints the error of the save and the
steps, as JSON, and kills a victim that is stopped or sleeps.
"""

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np

import shardwise as sw
from shardwise import checkpoints
from shardwise.checkpoints.save import Save
from shardwise.errors import CheckpointError, PeerFailure
from shardwise.sharding import NamedSharding, PartitionSpec

ROWS = 600  # per process; the shard of a process is larger than 1 MiB, so that it has files of its own


def kill_during_the_save():
    """Kill this process when its first block is written, in the background."""
    Save._finish = lambda self, *block: os.kill(os.getpid(), signal.SIGKILL)


def stop_during_the_save():
    """Stop this process when its first block is written, in the background."""
    Save._finish = lambda self, *block: stop()


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def sleep():
    time.sleep(600)


def fail_to_write():
    """Let every file of this process that is larger than 64 KiB be an error of the file system."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))


def allow_to_write():
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def main(rank, processes, port, folder, fault, victim):
    sw.config.update("num_cpu_devices", 1)
    sw.distributed.initialize(f"127.0.0.1:{port}", int(processes), int(rank), peer_timeout=10)
    rows = NamedSharding(sw.make_mesh((int(processes),), ("rows",)), PartitionSpec("rows"))
    shape = (ROWS * int(processes), ROWS)
    x = sw.make_array_from_callback(shape, rows, lambda index: np.full(shape, 3, np.float32)[index])
    manager = checkpoints.Manager(folder, every_steps=1, save_on_sigterm=False)
    manager.save(1, x)
    manager.wait()
    pid = Path(f"{folder}.pid")
    faults = {
        "kill": kill_during_the_save,
        "store error": fail_to_write,
        "stop": stop,
        "stop writing": stop_during_the_save,
        "sleep": sleep,
        "skip": lambda: None,
    }
    if rank == victim:
        pid.write_text(str(os.getpid()))
        faults[fault]()
    error = None
    try:
        manager.save(3 if fault == "skip" and rank == victim else 2, x)
        manager.wait()
    except (CheckpointError, PeerFailure) as failure:
        error = failure
    steps = manager.steps()
    if fault == "store error":
        allow_to_write()
        manager.save(3, x)  # the run goes on
        manager.wait()
        steps += manager.steps()
    if rank != victim and fault in ("stop", "stop writing", "sleep"):
        os.kill(int(pid.read_text()), signal.SIGKILL)
    print("RESULT", json.dumps([type(error).__name__, str(error), steps]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
