"""Train the GPT of `gpt.py` on the devices of several processes, and compare with one process.

    shardwise launch -n 2 --devices-per-process 4 examples/gpt_processes.py

Every process runs this program, and the mesh has the devices of all of them. Only `distributed.initialize` is new: the
model, the shardings, the checkpoints and the progress are those of `gpt.py`. Afterwards each process trains the same
model alone, on one of its own devices. With `--max-restarts`, the launcher starts all processes again after a failure,
and they continue from the latest checkpoint. `make demo-processes` runs it.
"""

import gpt
import numpy as np
from training_run import Run

import shardwise as sw

TOLERANCE = 1e-4  # of losses, relative: sums over devices have another order


def train_alone(steps):
    """Return the losses of the same training on one device of this process."""
    mesh = sw.make_mesh((1, 1), ("data", "model"), devices=sw.local_devices()[:1])
    state, losses = gpt.init_state(mesh), []
    for _, tokens in zip(range(steps), gpt.batches(mesh), strict=False):
        state, loss = gpt.train_step(state, tokens)
        losses.append(float(loss))
    return losses


def main(arguments=None):
    sw.distributed.initialize()
    run = Run.from_command_line("gpt_processes", __doc__, arguments, axes=("data", "model"), steps=60)
    processes = ", ".join(str(device.process_index) for device in run.mesh.devices.flat)
    run.print(f"the processes of the devices of mesh {run.mesh.abstract}: {processes}")
    state = gpt.init_state(run.mesh)
    _, losses = run.train(gpt.train_step, state, gpt.batches(run.mesh), items=gpt.BATCH * gpt.LENGTH)
    expected = train_alone(len(losses))
    np.testing.assert_allclose(losses, expected, rtol=TOLERANCE)
    difference = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    print(f"every loss equals that of one process alone (largest difference: {difference:.1e})", flush=True)
    sw.distributed.shutdown()


if __name__ == "__main__":
    main()
