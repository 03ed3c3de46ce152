"""A program of two processes for `shardwise doctor`: it adds numbers over all devices."""

import numpy as np

import shardwise as sw
from shardwise.sharding import NamedSharding, PartitionSpec


def main() -> None:
    """Add one number per device over all processes, and compare with numpy."""
    sw.config.update("platforms", "cpu")
    sw.distributed.initialize()
    count = len(sw.devices())
    numbers = np.arange(count, dtype=np.float32)
    mesh = sw.make_mesh((count,), ("device",), devices=sw.devices())
    total = sw.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))(
        sw.device_put(numbers, NamedSharding(mesh, PartitionSpec("device")))
    )
    if float(total) != numbers.sum():
        raise ValueError(f"the sum over {count} devices is {float(total)}, not {numbers.sum()}")
    print(f"{count} devices", flush=True)
    sw.distributed.shutdown()


if __name__ == "__main__":
    main()
