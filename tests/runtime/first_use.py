"""Launched programs that do not call `distributed.initialize`: `first_use.py NAME ARGUMENT ...`."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np

import shardwise as sw
from shardwise.processes.environment import PROCESS_ID
from shardwise.sharding import NamedSharding, PartitionSpec

USE = "import shardwise as sw; print(f'child: {len(sw.devices())} devices, {sw.process_count()} processes')"


def total():
    """Return the number of devices of all processes, added on these devices."""
    mesh = sw.make_mesh((len(sw.devices()),), ("x",))
    x = sw.device_put(np.ones(len(sw.devices()), np.float32), NamedSharding(mesh, PartitionSpec("x")))
    return float(x.sum())


def join():
    """Use the devices of all processes, first by two threads at once; then call `initialize`, too late."""
    assert not sw.distributed.is_initialized()
    counts = []
    threads = [threading.Thread(target=lambda: counts.append(sw.process_count())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"rank {sw.process_index()} of {counts}: {total()}, {sw.distributed.is_initialized()}")
    try:
        sw.distributed.initialize()
    except RuntimeError as error:
        print(error)


def initialize_first():
    """Call `initialize` at the start, with an argument."""
    sw.distributed.initialize(heartbeat_timeout_seconds=50)
    print(f"rank {sw.process_index()} of {sw.process_count()}: {total()}")


def start_children():
    """Start processes that inherit the launcher's variables: before the first use of a device, and after it."""
    for options in ({}, {"start_new_session": True}):
        child = subprocess.run([sys.executable, "-c", USE], capture_output=True, text=True, check=True, **options)
        print(child.stdout, child.stderr)
    print(f"{total()} devices")
    child = subprocess.run([sys.executable, "-c", USE], capture_output=True, text=True, check=True)
    print(child.stdout)


def fork():
    """Fork children that end, or fail, as the program would: they must not leave or fail in its place."""
    print(f"{total()} devices")
    for ends in (lambda: sys.exit(3), lambda: 1 / 0):
        pid = os.fork()
        if not pid:
            ends()
        _, status = os.waitpid(pid, 0)
        print(f"child: exit code {os.waitstatus_to_exitcode(status)}")
    print(f"{total()} devices still")


def fork_during_join():
    """Fork a child that uses a device while another thread waits for process 1 in the first use of a device."""
    if os.environ[PROCESS_ID] == "1":
        time.sleep(5)
    else:
        threading.Thread(target=sw.process_count).start()
        time.sleep(2)
        pid = os.fork()
        if not pid:
            signal.alarm(60)  # ends a child that waits for ever
            print(f"child: {sw.device_count()} devices", flush=True)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print(f"child: exit code {os.waitstatus_to_exitcode(status)}")
    print(f"{total()} devices")


def compute_on_the_host():
    """Use no device: import the package only."""
    print(f"sum {np.arange(3).sum()}")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
