"""Train the transformer of `transformer.py` on a 4×2 mesh over all processes, and compare with one process.

    shardwise launch -n 2 --devices-per-process 4 examples/transformer_processes.py

Every process runs this program, and the mesh has the devices of all of them. Afterwards each process trains the same
model alone, on one of its own devices. `make demo-processes` runs it.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import transformer

import shardwise as sw
from shardwise.sharding import NamedSharding

STEPS = 60


def main(steps=STEPS, losses_file=None):
    start_time = time.perf_counter()
    sw.distributed.initialize()
    is_first = sw.process_index() == 0
    mesh = sw.make_mesh((4, 2), ("data", "model"), devices=sw.devices())
    state = transformer.initial_state(transformer.initial_params())
    sharded = transformer.shard(mesh, state)
    if is_first:
        processes = ", ".join(str(device.process_index) for device in mesh.devices.flat)
        print(f"mesh {mesh.abstract}; the processes of its devices: {processes}")

    def show(loss):
        show.step += 1
        sw.distributed.report_step(show.step)
        if is_first and show.step % 10 == 0:
            print(f"step {show.step}: loss {loss:.4f}")

    show.step = 0
    _, losses = transformer.train(sharded, steps, NamedSharding(mesh, transformer.BATCHES), show)
    alone = sw.device_put(state, sw.local_devices()[0])
    _, expected = transformer.train(alone, steps, sw.local_devices()[0])
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    difference = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    print(
        f"loss {losses[0]:.4f} → {losses[-1]:.4f}; every loss equals that of one process alone "
        f"(largest difference: {difference:.1e}); {time.perf_counter() - start_time:.0f} s"
    )
    if losses_file is not None and is_first:
        losses_file.write_text(json.dumps(losses))
    sw.distributed.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small transformer on several processes, and on one.")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--losses", type=Path, help="a file for the losses, as JSON")
    options = parser.parse_args()
    main(options.steps, options.losses)
