"""A process that forks children while it is a member of a program: fork_worker.py CHILD RANK PROCESSES PORT.

The children end in some way. The program goes on, and ends normally.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import warnings

import numpy as np

import shardwise as sw
from shardwise import numpy as jnp

warnings.simplefilter("ignore")  # Python warns of forks in processes with threads


def child_status(end):
    """Fork, end the child in some way, and return its exit status."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        assert not sw.distributed.is_initialized()
        end()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def raise_error():
    raise ZeroDivisionError("the exception of a child")


def run_multiprocessing():
    process = multiprocessing.get_context("fork").Process(target=sys.exit, args=(3,))
    process.start()
    process.join(60)
    return process.exitcode


def fork_and_die():
    """Fork a child that outlives this process, and die: the others must notice it although the child runs."""
    if sw.process_index() == 1:
        if os.fork() == 0:
            os.closerange(0, 3)  # the test waits for the end of the output
            signal.alarm(60)
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


# Each returns the exit status of a child.
CHILDREN = {
    "_exit": lambda: child_status(lambda: os._exit(5)),
    "exit": lambda: child_status(lambda: sys.exit(4)),
    "exception": lambda: child_status(raise_error),
    "multiprocessing": run_multiprocessing,
    "subprocess": lambda: subprocess.run([sys.executable, "-c", "raise SystemExit(2)"], check=False).returncode,
    "die": fork_and_die,
}


def main():
    child, *numbers = sys.argv[1:]
    rank, processes, port = map(int, numbers)
    parent = os.getpid()
    sw.config.update("num_cpu_devices", 1)
    sw.distributed.initialize(f"127.0.0.1:{port}", processes, rank)
    mesh = sw.make_mesh((len(sw.devices()),), ("x",))
    x = sw.device_put(np.arange(8.0, dtype=np.float32), sw.NamedSharding(mesh, sw.P("x")))
    step = sw.jit(jnp.sum)
    assert float(step(x)) == 28
    status = CHILDREN[child]()
    assert os.getpid() == parent, "a child ran the program of its parent"
    try:
        values = [float(step(x)) for _ in range(20)]
    except sw.errors.PeerFailure as failure:
        print(json.dumps({"event": "PeerFailure", "rank": failure.rank}), flush=True)
        return
    sw.distributed.shutdown()
    print(json.dumps({"event": "end", "status": status, "values": sorted(set(values))}), flush=True)


if __name__ == "__main__":
    main()
