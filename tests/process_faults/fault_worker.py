"""One of several processes, of which the last one has a fault.

python fault_worker.py FAULT RANK PROCESSES PORT DEVICES TIMEOUT

Prints events as JSON objects with the time. With port 0, the coordinator's address comes from the environment.
"""

import json
import os
import signal
import sys
import time

import numpy as np

import shardwise as sw
from shardwise import numpy as jnp
from shardwise.errors import PeerFailure, ProgramMismatch
from shardwise.runtime.cluster import cluster

FAULT_STEP = 5


def say(event, **data):
    print(json.dumps({"event": event, "time": time.time(), **data}), flush=True)


def sleep_for_ever():
    while True:
        time.sleep(1)


def report_exception(number, frame):
    """Report an exception, as a process does that ends, but stay: XLA's programs in the others wait for this one."""
    cluster.member.report_exception(RuntimeError("the program ends"))


# Reads of an array that wait for other processes, also if they read a shard of this process only.
READS = {
    "the whole array": lambda x: np.asarray(sw.jit(jnp.sum)(x)),
    "the data of a shard": lambda x: np.asarray(x.addressable_shards[0].data),
    "an element of a shard": lambda x: x.addressable_data(0)[0].item(),
    "a shard by DLPack": lambda x: np.from_dlpack(x.addressable_data(0)),
    "the pointer of a shard": lambda x: x.addressable_data(0).unsafe_buffer_pointer(),
    "a program on a shard": lambda x: float(jnp.sum(sw.jit(lambda y: y * 2)(x.addressable_data(0)))),
    "a shard on another device": lambda x: np.asarray(sw.device_put(x.addressable_data(0), sw.local_devices()[-1])),
    "a shard in another process": lambda x: sw.device_put(x, sw.local_devices()[0]).block_until_ready(),
    "the text of an array": str,
    "several arrays": lambda x: sw.block_until_ready([x, x.addressable_data(0)]),
}


def read_in_vain(x):
    """Read an array that is never computed, in every way."""
    say("waiting")
    for name, read in READS.items():
        try:
            read(x)
            say(name, rank=None)
        except PeerFailure as failure:
            say(name, rank=failure.rank, reason=failure.reason)


def train(fault, mesh):
    """Run steps with a collective each. The fault happens at FAULT_STEP in the process that has it."""
    x = sw.device_put(np.arange(8.0, dtype=np.float32), sw.NamedSharding(mesh, sw.P("x")))
    step = sw.jit(lambda x: x / (1 + jnp.sum(x)))
    other = sw.jit(lambda x: x * (1 + jnp.sum(x)))
    for function in (step, other):  # compared on all processes
        function(x).block_until_ready()
    for index in range(1_000_000):
        if index == FAULT_STEP:
            signal.signal(signal.SIGUSR1, report_exception)
            say("fault step", step=index)
            if fault in ("sleep", "reads"):
                sleep_for_ever()
            elif fault == "reads peer":
                read_in_vain(step(x))
            elif fault == "exception":
                raise ZeroDivisionError("the exception of one process")
            elif fault == "exit":
                os._exit(0)
            elif fault == "return" or fault.startswith("end"):
                return
            elif fault == "op":
                x = sw.jit(lambda x: x - jnp.sum(x))(x)
            elif fault == "shape":
                y = sw.device_put(np.arange(16.0, dtype=np.float32), sw.NamedSharding(mesh, sw.P("x")))
                float(jnp.sum(sw.jit(lambda x: x / 2)(y)))
            elif fault == "order":
                x = other(x)
        if fault == "skip" and index == FAULT_STEP:
            continue
        x = (sw.jit(lambda x: x + jnp.sum(x)) if index == FAULT_STEP and fault in ("op peer", "op") else step)(x)
        if index % 2:  # otherwise the launch waits
            x.block_until_ready()
        if "order" not in fault:
            sw.distributed.report_step(index)
        if index == FAULT_STEP:
            say("running", step=index)


def main():
    fault, *numbers = sys.argv[1:6]
    rank, processes, port, devices = map(int, numbers)
    timeout = float(sys.argv[6])
    sw.config.update("num_cpu_devices", devices)
    address = f"127.0.0.1:{port}" if port else None
    arguments = (address, processes, rank) if port else ()
    sw.distributed.initialize(*arguments, peer_timeout=timeout, initialization_timeout=300)
    say("joined", rank=rank)
    mesh = sw.make_mesh((processes * devices,), ("x",))
    own = fault if rank == processes - 1 else f"{fault} peer"
    try:
        train(own, mesh)
    except PeerFailure as failure:
        say(
            "PeerFailure",
            rank=failure.rank,
            step=failure.step,
            text=str(failure),
            reason=failure.reason,
            detail=failure.detail,
        )
        raise
    except ProgramMismatch as mismatch:
        say("ProgramMismatch", text=str(mismatch))
        raise
    say("end")


if __name__ == "__main__":
    main()
