"""Schedules of MPMD pipelines for real: two processes that compute, each on one core, compared with the simulator.

    python -m benchmarks.pinned_stages [--rounds 5] [--microbatches 4] [--width 512]

Each process is pinned to a core of its own. A round measures the programs of all stages, in both processes at the same
time, and then a step of each schedule; every other round runs the schedules in reverse order. Of all times, the minimum
over the rounds counts, so other programs on the machine need to pause only now and then. The first process prints the
measured and the simulated time of a step, both ratios to 1F1B, and the CPU time and the page faults of a step in the
process that has most of them.

The parameters are on their devices. glibc keeps freed memory (`ALLOCATOR`): by default it returns some of it to the
system in every task, and the next task faults the pages again. The separate programs of zb-h1 then fault 23 MB per
microbatch, six times as much as those of 1F1B, which no time of a program that runs alone contains.

A transfer takes CPU time of both processes, on the cores of their tasks. It is measured too. The simulator counts it as
a part of the tasks that send or receive, and the rest of the transfer's latency as time between the tasks.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

import shardwise as jax
import shardwise.numpy as jnp
from benchmarks.stage_times import StageTimes, TimedStage
from benchmarks.transfer_times import TimedTransfer, TransferTimes
from shardwise.experimental.multihost_utils import process_allgather, sync_global_devices
from shardwise.parallel import TaskTimes, mpmd_pipeline, simulate_schedule, task_schedule
from shardwise.sharding import Mesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

RANKS, LAYERS, ROWS = 2, 16, 512  # rows per microbatch
BASE = "1f1b"
STAGES = {BASE: 2, "zb-h1": 2, "zb-v": 4}  # the number of stages of each schedule
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
_BOUND = 0.1


def layers(weights, x):
    """Apply the layers of a stage."""
    for w in weights:
        x = jnp.tanh(x @ w)
    return x


def last_layers(weights, x):
    """Apply the layers of the last stage, and return a loss."""
    return jnp.mean(layers(weights, x) ** 2)


def pin_to_core(rank):
    """Let all threads of this process run on one core, which no other process of the launch uses."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < RANKS:
        sys.exit(f"pinned_stages needs {RANKS} cores; this process may use {len(cores)}")
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {cores[rank]})


def ranks_of(count):
    """Return the rank of each of so many stages."""
    schedule = task_schedule("zb-v" if count > RANKS else BASE, RANKS, 1)
    return [schedule.rank_of[stage, 0] for stage in range(count)]


def task_times(measured, transfer, separate):
    """Return the times of tasks, with separate input and weight gradients or with one backward pass.

    A stage sends to and receives from its neighbours on another rank: results in its forward pass, and cotangents in
    its backward pass.
    """
    sent = [float(before != after) for before, after in pairwise(ranks_of(len(measured)))]
    core = [transfer.core * (before + after) for before, after in zip([0.0, *sent], [*sent, 0.0], strict=True)]
    forward = [each.forward + more for each, more in zip(measured, core, strict=True)]
    between = max(0.0, transfer.latency - 2 * transfer.core)
    if separate:
        inputs = [each.input + more for each, more in zip(measured, core, strict=True)]
        return TaskTimes(forward, inputs, [each.weight for each in measured], between)
    return TaskTimes(forward, 0.0, [each.backward + more for each, more in zip(measured, core, strict=True)], between)


def worker(rounds, microbatches, width):
    rank = jax.process_index()
    pin_to_core(rank)
    rng = np.random.default_rng(0)
    matrices = (rng.normal(size=(LAYERS, width, width)) / np.sqrt(width)).astype(np.float32)
    batch = rng.normal(size=(ROWS * microbatches, width)).astype(np.float32)
    meshes = [Mesh(np.array([device]), ("data",)) for device in jax.devices()]
    functions, params, timed, steps = {}, {}, {}, {}
    for count in dict.fromkeys(STAGES.values()):
        functions[count] = [*[layers] * (count - 1), last_layers]
        params[count] = [list(part) for part in np.split(matrices, count)]
        timed[count] = [
            TimedStage(function, part, batch[:ROWS], is_first=stage == 0)
            for stage, (function, part) in enumerate(zip(functions[count], params[count], strict=True))
        ]
    samples = {count: [] for count in timed}
    measured = {name: [] for name in STAGES}
    usage = {name: [] for name in STAGES}

    def placed(count):
        """Return the parameters of the stages, each on the mesh of its rank."""
        return [
            jax.device_put(part, NamedSharding(meshes[home], P()))
            for part, home in zip(params[count], ranks_of(count), strict=True)
        ]

    def run(name):
        loss, gradients = steps[name]()
        jax.block_until_ready((loss, [leaf for part in gradients for leaf in part]))

    def measure_stages(count):
        """Measure the stages of this process; the other one measures its own at the same time."""
        own = [stage for stage, home in enumerate(ranks_of(count)) if home == rank]
        times = np.zeros((count, len(StageTimes._fields)), np.float32)
        for stage in own:
            times[stage] = timed[count][stage].measure()
        return np.sum(process_allgather(times), axis=0)

    timed_transfer, transfers = TimedTransfer(meshes, batch[:ROWS]), []

    def calibrate():
        for count, each in samples.items():
            each.append(measure_stages(count))
        transfers.append(np.mean(process_allgather(np.array(timed_transfer.measure(), np.float32)), axis=0))

    for count in timed:
        measure_stages(count)  # compiles
    for _ in range(rounds):
        calibrate()
    schedules = {
        name: task_schedule(
            name, RANKS, microbatches, times=shortest_times(samples[count], transfers, separate=name != BASE)
        )
        for name, count in STAGES.items()
    }
    on_meshes = {count: placed(count) for count in timed}
    for name, count in STAGES.items():
        train = mpmd_pipeline(functions[count], meshes, microbatches, schedules[name])
        steps[name] = partial(train.value_and_grad, on_meshes[count], batch)
        run(name)  # compiles
    for index in range(rounds):
        calibrate()
        for name in STAGES if index % 2 == 0 else reversed(STAGES):
            sync_global_devices("start")
            start, before = time.perf_counter(), cpu_usage()
            run(name)
            used = cpu_usage() - before
            sync_global_devices("end")  # the step ends with the last process
            measured[name].append(time.perf_counter() - start)
            usage[name].append(np.max(process_allgather(used), axis=0))
    if rank == 0:
        report(schedules, samples, transfers, measured, usage, microbatches)


def shortest_times(samples, transfers, separate):
    """Return the times of tasks from the shortest times of programs and transfers."""
    measured = [StageTimes(*row) for row in np.min(samples, axis=0).tolist()]
    return task_times(measured, TransferTimes(*np.min(transfers, axis=0).tolist()), separate)


def cpu_usage():
    """Return the CPU time of this process in seconds, and the number of its page faults."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return np.array([usage.ru_utime + usage.ru_stime, usage.ru_minflt])


def report(schedules, samples, transfers, measured, usage, microbatches):
    """Print the times of tasks, and the measured and the simulated time of each schedule."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{RANKS} processes on a core each, {microbatches} microbatches, load of the machine {load}")
    latency, core = 1e3 * np.min(transfers, axis=0)
    print(f"  transfer: {latency:.2f} ms, of which {core:.2f} ms are CPU time of each process")
    simulated, shortest = {}, {name: min(each) for name, each in measured.items()}
    for name, count in STAGES.items():
        times = [StageTimes(*row) for row in np.min(samples[count], axis=0).tolist()]
        tasks = shortest_times(samples[count], transfers, separate=name != BASE)
        simulated[name] = simulate_schedule(schedules[name], tasks).total
        for stage, each in enumerate(times if name in (BASE, "zb-v") else ()):
            text = ", ".join(f"{field} {1e3 * getattr(each, field):.1f} ms" for field in StageTimes._fields)
            print(f"  stage {stage} of {count}: {text}")
    for name in STAGES:
        ratio, predicted = shortest[name] / shortest[BASE], simulated[name] / simulated[BASE]
        middle = np.median(np.divide(measured[name], measured[BASE]))
        verdict = "within" if abs(ratio / predicted - 1) <= _BOUND else "not within"
        print(
            f"{name:6} step {shortest[name]:.3f} s, simulated {simulated[name]:.3f} s; of the time of {BASE} "
            f"{ratio:.3f} (median of rounds {middle:.3f}), simulated {predicted:.3f}: {verdict} {100 * _BOUND:.0f}%"
        )
        seconds, faults = np.median(usage[name], axis=0)
        print(f"       CPU time of a step {seconds:.3f} s, {faults:.0f} page faults (medians)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.rounds, arguments.microbatches, arguments.width)
        return
    launch = [sys.executable, "-m", "shardwise", "launch", "-n", str(RANKS), "--devices-per-process", "1"]
    command = [*launch, "-m", "benchmarks.pinned_stages", *sys.argv[1:], "--worker"]
    sys.exit(subprocess.run(command, env={**ALLOCATOR, **os.environ}, check=False).returncode)


if __name__ == "__main__":
    main()
