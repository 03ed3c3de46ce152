"""The time of a transfer between two processes of a pipeline, measured without anything else to run."""

import time
from typing import NamedTuple, final

import shardwise as jax
from shardwise.compiler.ir.types import ArrayType
from shardwise.parallel.mpmd.transfers import Transfers
from shardwise.runtime.connect_channels import connect_channels
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

_ROUND_TRIPS = 8


@final
class TransferTimes(NamedTuple):
    """The seconds of a transfer.

    Attributes:
        latency: from the call that sends an array until the array is on the other device.
        core: the CPU time of each of the two processes, which tasks on the same core do not have.
    """

    latency: float
    core: float


@final
class TimedTransfer:
    """An array that two processes send to each other.

    Args:
        meshes: the mesh of each process.
        x: the array, a numpy array.
    """

    def __init__(self, meshes, x):
        self._shardings = [NamedSharding(mesh, P()) for mesh in meshes]
        self._x = jax.device_put(x, self._shardings[jax.process_index()])
        self._types = [ArrayType(x.shape, x.dtype)]
        self._channels = connect_channels("TimedTransfer", [0, 1])
        self._rounds = 0

    def measure(self):
        """Send the array to and fro, and return the times of one transfer. Both processes call this."""
        here = jax.process_index()
        own, other = self._shardings[here], self._shardings[1 - here]
        transfers = Transfers(self._channels, self._rounds)
        self._rounds += 1
        start, busy = time.perf_counter(), time.process_time()
        for index in range(_ROUND_TRIPS):
            if here == 0:
                transfers.send(f"there{index}", [self._x], [other])
            tag = ("back" if here == 0 else "there") + str(index)
            jax.block_until_ready(transfers.receive(tag, self._types, [other], [own]))
            if here == 1:
                transfers.send(f"back{index}", [self._x], [other])
        transferred = 2 * _ROUND_TRIPS
        return TransferTimes((time.perf_counter() - start) / transferred, (time.process_time() - busy) / transferred)
