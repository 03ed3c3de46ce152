"""A process that restores its shards of an array: restore_memory.py RANK PROCESSES PORT FOLDER MEMORY_LIMIT.

It prints how much the peak of its memory grows, and the bytes of its shards.
"""

import re
import sys
from pathlib import Path

import numpy as np

import shardwise as sw
from shardwise import checkpoints
from shardwise.sharding import NamedSharding, PartitionSpec

SHAPE = (16384, 4096)
DEVICES = 16  # of all processes


def peak_bytes():
    """Return the most memory that this process had. `getrusage` would count that of the process which started it."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


def main(rank, processes, port, folder, memory_limit):
    sw.config.update("num_cpu_devices", DEVICES // int(processes))
    sw.distributed.initialize(f"127.0.0.1:{port}", int(processes), int(rank))
    rows = NamedSharding(sw.make_mesh((DEVICES,), ("rows",)), PartitionSpec("rows"))
    like = {"large": sw.ShapeDtypeStruct(SHAPE, np.float32, sharding=rows)}
    small = {"small": sw.ShapeDtypeStruct((16,), np.float32, sharding=rows)}
    checkpoints.restore(folder, small, only="small")  # loads TensorStore and the runtime
    before = peak_bytes()
    restored = checkpoints.restore(folder, like, only="large", memory_limit=int(memory_limit))["large"]
    after = peak_bytes()
    print("RESULT", after - before, sum(shard.data.nbytes for shard in restored.addressable_shards), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
