"""Schedules of MPMD pipelines for real: four processes whose stages sleep, compared with the simulator.

    python -m benchmarks.sleeping_stages [--task-ms 100] [--steps 3]

Sleeping stages need no cores, so the machine may have fewer cores than processes, and be busy. The first process prints
for each schedule the measured and the simulated time of a step, and how much faster than 1F1B it is. The times of tasks
are measured in each process first, before the pipelines run: the time to sleep, and of the launch.
"""

import argparse
import statistics
import subprocess
import sys
import time
from functools import partial

import numpy as np

import shardwise as jax
import shardwise.numpy as jnp
from benchmarks.stage_times import TimedStage
from shardwise.experimental.multihost_utils import sync_global_devices
from shardwise.parallel import TaskTimes, mpmd_pipeline, simulate_schedule, task_schedule
from shardwise.sharding import Mesh

RANKS, MICROBATCHES = 4, 8
WIDTH = 64
SCHEDULES = ("1f1b", "zb-h1", "zb-v")


def sleeping(seconds, x):
    """Return `x` after a sleep, as a part of a compiled program."""

    def sleep(x):
        time.sleep(seconds)
        return x

    return jax.pure_callback(sleep, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def make_stage(forward, input, weight):
    """Return a stage whose forward pass, input gradient and weight gradient sleep."""

    @jax.custom_vjp
    def stage(w, x):
        return sleeping(forward, x) * w

    def stage_forward(w, x):
        return stage(w, x), w

    def stage_backward(w, cotangent):
        x_cotangent = sleeping(input, cotangent) * w
        return sleeping(weight, x_cotangent).sum(), x_cotangent  # one after the other, as in one program

    stage.defvjp(stage_forward, stage_backward)
    return stage


def make_stages(count, seconds):
    stage = make_stage(seconds, seconds, seconds)
    return [*[stage] * (count - 1), lambda w, x: stage(w, x).mean()]


def worker(seconds, steps):
    meshes = [Mesh(np.array([device]), ("data",)) for device in jax.devices()]
    batch = np.ones((MICROBATCHES * 2, WIDTH), np.float32)
    trained, simulated, measured = {}, {}, {}
    for name in SCHEDULES:
        chunks = 2 if name == "zb-v" else 1
        stages = make_stages(RANKS * chunks, seconds / chunks)
        stage = TimedStage(stages[0], np.float32(1), np.ones(WIDTH, np.float32))
        forward, input, weight, _ = np.median([stage.measure() for _ in range(6)][1:], axis=0).tolist()
        # Nothing needs the input gradient of the first stage, so its weight gradient contains both sleeps.
        later = len(stages) - 1
        times = TaskTimes(forward, [0.0, *[input] * later], [input + weight, *[weight] * later])
        schedule = task_schedule(name, RANKS, MICROBATCHES)  # the same in all processes
        simulated[name] = simulate_schedule(schedule, times).total
        train = mpmd_pipeline(stages, meshes, MICROBATCHES, schedule)
        params = [jnp.float32(1.0)] * len(stages)
        trained[name] = partial(train.value_and_grad, params, batch)
        trained[name]()  # compiles
        measured[name] = []
    for _ in range(steps):
        for name, run in trained.items():
            sync_global_devices("start")
            start = time.perf_counter()
            run()  # waits for the tasks of this process, because programs with callbacks do
            sync_global_devices("end")  # the step ends with the last process
            measured[name].append(time.perf_counter() - start)
    if jax.process_index() == 0:
        base, simulated_base = statistics.median(measured["1f1b"]), simulated["1f1b"]
        print(f"{RANKS} processes, {MICROBATCHES} microbatches, tasks of {seconds * 1000:.0f} ms")
        for name in SCHEDULES:
            time_of_step = statistics.median(measured[name])
            print(
                f"{name:6} step {time_of_step:.3f} s, simulated {simulated[name]:.3f} s; faster than 1f1b "
                f"{base / time_of_step:.3f} times, simulated {simulated_base / simulated[name]:.3f} times"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task-ms", type=float, default=100)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.task_ms / 1000, arguments.steps)
        return
    launch = [sys.executable, "-m", "shardwise", "launch", "-n", str(RANKS), "--devices-per-process", "1"]
    command = [*launch, "-m", "benchmarks.sleeping_stages", *sys.argv[1:], "--worker"]
    sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
