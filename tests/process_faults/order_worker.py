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


def wait_for_file(folder):
    """Wait until the other process has made its launches."""
    end = time.monotonic() + 60
    while not os.path.exists(os.path.join(folder, "launched")) and time.monotonic() < end:
        time.sleep(0.01)


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
    increment = sw.jit(lambda x: x + 1)
    for function in (total, large_total, printed, increment):
        sw.block_until_ready(function(x))
    print("ready", flush=True)
    if mode == "alike":
        for _ in range(200):
            assert (float(total(x)), float(large_total(x))) == (28, 2800)
        return
    if mode == "read behind":  # process 0 reads a value while process 1 has launched nothing else yet
        first = total(x)
        if rank == 0:
            second = total(x)
            print("right", float(first), flush=True)
            wait_for_file(sys.argv[4])
            print("wrong", float(second), flush=True)
        else:
            time.sleep(1)
            large_total(x).block_until_ready()
            open(os.path.join(sys.argv[4], "launched"), "w").close()
            time.sleep(1)
        return
    if mode == "more launches":  # in process 0, which reads no value
        if rank == 0:
            total(x)
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
    elif mode == "read far behind":  # process 1 is further ahead than the launches that it reports
        sw.block_until_ready((first, second))
        if rank == 1:
            for _ in range(400):
                x = increment(x)
            open(os.path.join(sys.argv[4], "launched"), "w").close()
            time.sleep(1)
        else:
            wait_for_file(sys.argv[4])
            print("wrong", float(first), flush=True)
    elif mode == "computed":
        first.block_until_ready()
        print("wrong", float(first.addressable_shards[0].data + 1), flush=True)
    elif mode == "local callback":
        sw.jit(lambda x: sw.debug.callback(lambda x: print("wrong", x, flush=True), x))(first.addressable_data(0))
    elif mode == "shutdown":
        sw.block_until_ready((first, second))
        try:
            sw.distributed.shutdown()
        except sw.errors.ProgramMismatch as error:
            print(error, file=sys.stderr)
        print("wrong", float(first), flush=True)
    elif mode == "caught at shutdown":
        try:
            sw.distributed.shutdown()
        except sw.errors.ProgramMismatch as error:
            print(error, file=sys.stderr)
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
