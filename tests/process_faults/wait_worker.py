"""One of several processes that wait for each other in some way, of which one has a fault meanwhile.

python wait_worker.py WAIT FAULT RANK PROCESSES PORT TIMEOUT VICTIM

The victim prints an event, and has the fault while the others wait for it. With the fault `coordinator`, it kills the
coordinator and waits, too. The others print the `PeerFailure` that ends their wait, and then compute something alone.
"""

import json
import os
import signal
import sys
import threading
import time
from functools import partial
from types import SimpleNamespace

import numpy as np

import shardwise as sw
from shardwise import numpy as jnp
from shardwise.errors import PeerFailure
from shardwise.experimental import multihost_utils
from shardwise.runtime import cluster as cluster_module


def say(event, **data):
    print(json.dumps({"event": event, **data}), flush=True)


def have_fault(fault):
    """Have the fault: sleep, stop, die, or raise an exception."""
    say("fault")
    if fault == "coordinator":
        os.kill(cluster_module.cluster._coordinator._process.pid, signal.SIGKILL)
        return
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "exit":
        os._exit(0)
    elif fault == "exception":
        raise ZeroDivisionError("the exception of one process")
    time.sleep(1000)


def global_array():
    mesh = sw.make_mesh((len(sw.devices()),), ("x",))
    return sw.device_put(np.arange(8.0, dtype=np.float32), sw.NamedSharding(mesh, sw.P("x")))


def callback(x):
    return sw.pure_callback(lambda y: y, sw.ShapeDtypeStruct((), np.float32), jnp.sum(x))


# Each is a function that prepares a wait, and returns the one that waits.
WAITS = {
    "read": lambda x, step: lambda: np.asarray(jnp.sum(step(x))),
    "launches": lambda x, step: partial(launch_often, x, step),
    "comparison": lambda x, step: lambda: sw.jit(lambda x: x - jnp.sum(x))(x).block_until_ready(),
    "allgather": lambda x, step: lambda: multihost_utils.process_allgather(np.arange(3)),
    "barrier": lambda x, step: lambda: multihost_utils.sync_global_devices("here"),
    "broadcast": lambda x, step: lambda: multihost_utils.broadcast_one_to_all(np.arange(3)),
    "callback": lambda x, step: lambda: np.asarray(sw.jit(callback)(x)),
    "live devices": lambda x, step: wait_for_live_devices,
    "shutdown": lambda x, step: sw.distributed.shutdown,
    "exit": lambda x, step: lambda: None,
    "sleep": lambda x, step: partial(sleep_until_failure, x, step),
}


def launch_often(x, step):
    for _ in range(200):
        x = step(x)
    x.block_until_ready()


def sleep_until_failure(x, step):
    """Wait for nobody: the next launch raises the failure."""
    for _ in range(2000):
        time.sleep(0.05)
        if cluster_module.cluster.member.failures:
            break
    step(x)


def wait_for_live_devices():
    with multihost_utils.live_devices(sw.devices()):
        pass


def inject(point, fault):
    """Have the fault at a point of `initialize` after the rendezvous."""
    if point == "in connect":
        make_store = cluster_module.cluster_store

        def cluster_store(*arguments):
            threading.Timer(0.3, have_fault, (fault,)).start()
            return SimpleNamespace(connect=lambda: time.sleep(1000), store=make_store(*arguments))

        cluster_module.cluster_store = cluster_store
        return
    # The calls that wait for other processes, in order: of `connect`, of the clients, and after them.
    calls = {"before connect": 1, "before clients": 2, "in clients": 2}[point]
    wait_for_processes = type(cluster_module.cluster).wait_for_processes
    count = 0

    def wait(self, call, *arguments):
        nonlocal count
        count += 1
        if count == calls and point == "in clients":
            return wait_for_processes(self, lambda: have_fault(fault), *arguments)
        if count == calls:
            have_fault(fault)
        return wait_for_processes(self, call, *arguments)

    type(cluster_module.cluster).wait_for_processes = wait


def main():
    wait, fault, *numbers = sys.argv[1:]
    rank, processes, port, timeout, victim = map(int, numbers)
    sw.config.update("num_cpu_devices", 1)
    is_victim = rank == victim
    if is_victim and wait not in WAITS:
        inject(wait, fault)
    try:
        sw.distributed.initialize(f"127.0.0.1:{port}", processes, rank, peer_timeout=timeout)
        if wait in WAITS:
            x = global_array()
            step = sw.jit(lambda x: x / (1 + jnp.sum(x)))
            step(x).block_until_ready()
            call = WAITS[wait](x, step)
            if is_victim:
                have_fault(fault)
            say("waiting")
            call()
        say("end")
    except PeerFailure as failure:
        say("PeerFailure", rank=failure.rank, reason=failure.reason, detail=failure.detail)
        say("alone", sum=float(jnp.sum(jnp.arange(4.0))))
        if fault == "coordinator" or wait not in WAITS:
            time.sleep(2)  # XLA would abort this process meanwhile


if __name__ == "__main__":
    main()
