"""One of several processes that map over the devices of all: python pmap_worker.py RANK PROCESSES PORT DEVICES.

Prints its results as one JSON object.
"""

import json
import sys

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax


def main() -> None:
    rank, processes, port, devices = map(int, sys.argv[1:])
    sw.config.update("num_cpu_devices", devices)
    sw.distributed.initialize(f"127.0.0.1:{port}", processes, rank)
    first = rank * devices
    mine = np.arange(first, first + devices, dtype=np.float32)
    report = {}

    share = sw.pmap(lambda x: (x / lax.psum(x, "i"), lax.axis_index("i")), axis_name="i")
    parts, places = share(mine)
    report["parts"], report["places"] = np.asarray(parts).tolist(), np.asarray(places).tolist()
    report["here"] = parts.is_fully_addressable and parts.devices() == set(sw.local_devices())

    report["again"] = np.asarray(share(parts)[0]).tolist()  # a result as an argument

    def turned(x, scale, power, *, shift):
        return lax.ppermute(x * scale**power + shift, "i", [(n, (n + 1) % 8) for n in range(8)]), lax.pmax(x.sum(), "i")

    rows = np.stack([mine, mine + 100])
    step = sw.pmap(turned, "i", in_axes=(1, None), out_axes=(1, None), static_broadcasted_argnums=2)
    found, largest = step(rows, 2.0, 3, shift=mine)
    report["turned"], report["largest"] = np.asarray(found).tolist(), float(largest)

    keys = sw.random.split(sw.random.key(0), 8)[first : first + devices]
    report["normal"] = np.asarray(sw.pmap(sw.random.normal)(keys)).tolist()

    alone = sw.pmap(lambda x: lax.psum(x, "i"), "i", devices=sw.local_devices())
    report["alone"] = np.asarray(alone(mine)).tolist()

    report["errors"] = []
    for call in (lambda: share(np.ones(8)), lambda: sw.grad(lambda x: share(x)[0].sum())(jnp.asarray(mine))):
        try:
            call()
        except (ValueError, NotImplementedError) as error:
            report["errors"].append(f"{type(error).__name__}: {error}")
    print(json.dumps(report), flush=True)
    sw.distributed.shutdown()


if __name__ == "__main__":
    main()
