"""One of several processes that train the demo's MLP together: python cluster_worker.py RANK PROCESSES PORT DEVICES.

Prints its results as one JSON object.
"""

import json
import sys

import numpy as np

import shardwise as sw
from examples import mlp


def main() -> None:
    rank, processes, port, devices = map(int, sys.argv[1:])
    sw.config.update("num_cpu_devices", devices)
    sw.distributed.initialize(f"127.0.0.1:{port}", processes, rank)
    mesh = sw.make_mesh((4, 2), ("data", "model"))
    params, x, y = mlp.shard(mesh, mlp.initial_params(), *mlp.batch())
    params, losses = mlp.train(params, x, y, steps=5)
    report = {
        "devices": [device.id for device in sw.devices()],
        "local": [device.id for device in sw.local_devices()],
        "losses": losses,
        "addressable": x.is_fully_addressable,
        "rows": sorted({(s.index[0].start, s.index[0].stop) for s in x.addressable_shards}),
        "w1": {str(s.index): np.asarray(s.data).tolist() for s in params["w1"].addressable_shards},
        "error": "",
    }
    try:
        np.asarray(x)
    except RuntimeError as error:
        report["error"] = str(error)
    print(json.dumps(report), flush=True)
    sw.distributed.shutdown()


if __name__ == "__main__":
    main()
