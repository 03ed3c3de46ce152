"""One of two processes that launch two programs in opposite orders, or use different host values.

python order_worker.py MODE RANK PORT [FOLDER]

Prints the values that it reads. Both programs have run before on both processes, so only their order differs.
"""

import os
import sys
import time

import numpy as np

import shardwise as sw
from shardwise import numpy as jnp


def product_with(captured):
    return sw.jit(lambda x: jnp.sum(x * captured))


VALUES = {
    "scalar": lambda x, different: sw.jit(lambda x, y: jnp.sum(x * y))(x, 2.0 + different),
    "numpy": lambda x, different: sw.jit(lambda x, y: jnp.sum(x * y))(x, np.full(8, 2.0 + different, np.float32)),
    "captured": lambda x, different: product_with(jnp.arange(8.0) + different)(x),
    "key": lambda x, different: sw.jit(lambda x, key: x.sum() + sw.random.normal(key))(x, sw.random.key(different)),
}


def main():
    mode, rank, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sw.config.update("num_cpu_devices", 2)
    sw.distributed.initialize(f"127.0.0.1:{port}", 2, rank, peer_timeout=60)
    mesh = sw.make_mesh((4,), ("x",))
    x = sw.device_put(np.arange(8.0, dtype=np.float32), sw.NamedSharding(mesh, sw.P("x")))
    if mode in VALUES:
        sw.config.update("debug_process_values", True)
        print("right", float(VALUES[mode](x, 0)), flush=True)
        print("wrong", float(VALUES[mode](x, rank)), flush=True)
        return
    total, large_total = sw.jit(jnp.sum), sw.jit(lambda x: jnp.sum(100 * x))
    printed = sw.jit(lambda x: sw.debug.print("called {}", x.sum()))
    for function in (total, large_total, printed):
        sw.block_until_ready(function(x))
    print("ready", flush=True)
    if mode == "alike":
        for _ in range(200):
            assert (float(total(x)), float(large_total(x))) == (28, 2800)
        return
    if rank == 0:
        first, second = total(x), large_total(x)
    else:
        second, first = large_total(x), total(x)
    if mode == "read" or (mode == "read in one" and rank == 0):
        print("wrong", float(first), float(second), flush=True)
    elif mode == "read in one":
        first.block_until_ready()
        time.sleep(1)
    elif mode == "shards":
        print("wrong", np.asarray(first.addressable_shards[0].data), flush=True)
    elif mode == "save":
        sw.checkpoints.save(os.path.join(sys.argv[4], "step-1"), {"x": first}).wait()
        print("wrong", flush=True)
    elif mode == "callback":
        printed(first[None])
        print("wrong", flush=True)
    # In the mode "exit", no value is read.


if __name__ == "__main__":
    main()
