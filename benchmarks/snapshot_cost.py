"""What snapshots in memory cost: on the GPT of the demo, and on a state of 1 GB.

shardwise launch -n 4 --devices-per-process 2 benchmarks/snapshot_cost.py [--case demo gigabyte] [--seconds 30]

For each case, process 0 prints how long `save` takes after the step has been computed, how long until the copies are
complete in all processes, how much longer the steps take meanwhile, and from these the interval at which snapshots cost
1% of the time. Then it trains without snapshots and with them, at the interval that `PeerSnapshots` chooses, in turn,
and prints the share of the steps per second that is kept.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import shardwise as sw
from shardwise.checkpoints import PeerSnapshots

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
ARRAYS, ROWS, COLUMNS = 16, 4096, 4096  # of the state of 1 GB, in float32
BATCH = 256
SNAPSHOTS, ROUNDS = 5, 3

Step = Callable[[Any, Any], tuple[Any, Any]]


def demo(mesh_devices: np.ndarray[Any, Any]) -> tuple[Step, Any, Iterator[Any]]:
    """Return the step, the state and the batches of the GPT of `examples/gpt.py`."""
    sys.path.insert(0, str(EXAMPLES))
    gpt = importlib.import_module("gpt")
    mesh = sw.sharding.Mesh(mesh_devices.reshape(-1, 2), ("data", "model"))
    return gpt.train_step, gpt.init_state(mesh), gpt.batches(mesh)


def gigabyte(mesh_devices: np.ndarray[Any, Any]) -> tuple[Step, Any, Iterator[Any]]:
    """Return a step that multiplies by 16 weights of 64 MiB, which are sharded over all devices, as in FSDP."""
    sharding = sw.NamedSharding(sw.sharding.Mesh(mesh_devices, ("data",)), sw.P("data"))
    rng = np.random.default_rng(0)
    values = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32) / np.sqrt(ROWS)
    state = [
        sw.make_array_from_callback(values.shape, sharding, lambda index: values[index].copy()) for _ in range(ARRAYS)
    ]
    batch = rng.normal(size=(BATCH, ROWS)).astype(np.float32)
    x = sw.make_array_from_callback(batch.shape, sharding, lambda index: batch[index])

    def loss(weights: Any, x: Any) -> Any:
        for weight in weights:
            x = sw.numpy.tanh(x @ weight)
        return sw.numpy.mean(x * x)

    def step(weights: Any, x: Any) -> tuple[Any, Any]:
        value, gradients = sw.value_and_grad(loss)(weights, x)
        return [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients, strict=True)], value

    def batches() -> Iterator[Any]:
        while True:
            yield x

    return sw.jit(step, donate_argnums=0), state, batches()


CASES = {"demo": demo, "gigabyte": gigabyte}


class Training:
    """A training run whose steps are timed."""

    def __init__(self, step: Step, state: Any, batches: Iterator[Any]):
        self._step, self.state, self._batches = step, state, batches
        self.number = 0

    def run_step(self, snapshots: PeerSnapshots | None = None, force: bool = False) -> tuple[float, float]:
        """Do one step and save it. Return the seconds until it was computed, and those of `save`."""
        start = time.perf_counter()
        self.state, loss = self._step(self.state, next(self._batches))
        sw.block_until_ready((self.state, loss))
        computed = time.perf_counter()
        if snapshots is not None:
            snapshots.save(self.number, self.state, force=force)
        self.number += 1
        return computed - start, time.perf_counter() - computed


def measure(name: str, seconds: float) -> None:
    """Measure one case, and print it in process 0."""
    training = Training(*CASES[name](np.array(sw.devices())))
    nbytes = sum(leaf.nbytes for leaf in sw.tree.leaves(training.state))
    for _ in range(3):
        training.run_step()
    own = median(training.run_step()[0] for _ in range(10))
    step = float(sw.experimental.multihost_utils.process_allgather(np.array(own)).max())  # all do the same steps
    snapshots = PeerSnapshots(every_steps=1 << 30)
    blocked, complete, slower = [], [], []
    for _ in range(SNAPSHOTS):
        start = time.perf_counter()
        seconds_of_step, seconds_of_save = training.run_step(snapshots, force=True)
        number, count, busy = training.number - 1, 0, 0.0
        while not is_complete(snapshots, number):
            busy += training.run_step()[0]
            count += 1
        blocked.append(seconds_of_save)
        complete.append(time.perf_counter() - start - seconds_of_step)
        slower.append(max(0.0, busy - count * step))
    cost = median(blocked) + median(slower)
    report(
        f"{name}: state {nbytes / 1e6:.1f} MB, {snapshots.nbytes / 1e6:.1f} MB of snapshots in this process, steps of "
        f"{1e3 * step:.1f} ms\n"
        f"  save: {1e3 * median(blocked):.1f} ms; complete after {1e3 * median(complete):.0f} ms, in which steps took "
        f"{1e3 * median(slower):.1f} ms longer\n"
        f"  1% of the time: a snapshot every {max(1, round(cost / (0.01 * step)))} steps"
    )
    snapshots.close()
    rates: dict[bool, list[float]] = {False: [], True: []}
    count = max(10, int(seconds / (2 * ROUNDS) / step))
    saved = PeerSnapshots()
    for _ in range(ROUNDS):
        for has_snapshots, each in rates.items():
            start = time.perf_counter()
            for _ in range(count):
                training.run_step(saved if has_snapshots else None)
            saved.wait()
            each.append(count / (time.perf_counter() - start))
    saved.close()
    kept = median(with_snapshots / without for without, with_snapshots in zip(*rates.values(), strict=True))
    report(f"  with snapshots at the chosen interval: {kept:.1%} of the steps per second without them")


def is_complete(snapshots: PeerSnapshots, step: int) -> bool:
    """Return whether a snapshot is complete, the same in all processes: they must do the same steps."""
    own = np.array(snapshots.latest() == step)
    return bool(sw.experimental.multihost_utils.process_allgather(own).all())


def report(text: str) -> None:
    if sw.process_index() == 0:
        print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of snapshots in memory.")
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=30, help="the time to train with and without snapshots")
    options = parser.parse_args()
    sw.distributed.initialize()
    for name in options.case:
        measure(name, options.seconds)
    sw.distributed.shutdown()


if __name__ == "__main__":
    main()
