"""How the time of planning grows with the number of layers and of devices.

A training step of a transformer, data × tensor parallel, is lowered from the Python function to the text for XLA.
Arguments are ShapeDtypeStructs on an abstract mesh, so that any number of devices is possible. JAX partitions inside
XLA, for real devices, so the rows compare with the smaller program or mesh instead. Planning is single-threaded: its
CPU time is measured, which load on the machine hardly disturbs.
"""

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import process_time
from typing import Any

import shardwise as sw
from benchmarks.row import Case, Row
from benchmarks.transformer import KINDS, Model, workload
from benchmarks.workload import no_pin
from shardwise.sharding import AbstractMesh, NamedSharding, PartitionSpec

LAYERS = (12, 24, 48, 96)
FEW: tuple[int, ...] = (4, 2)
MANY: tuple[int, ...] = (512, 8)
DEVICES_BAR = 1.5
LINEAR_BAR = 1.25  # time per layer, relative to the smaller model; linear growth is 1


def cases(quick: bool) -> list[Case]:
    rounds = 1 if quick else 3
    layers = (1, 2) if quick else LAYERS
    return [
        *[Case(f"{count} layers", partial(of_layers, layers[0], count, rounds)) for count in layers[1:]],
        Case("devices", partial(of_devices, layers[0], rounds)),
    ]


def of_layers(few: int, many: int, rounds: int) -> list[Row]:
    """Compare the time per layer in a longer and in a shorter model."""
    growth = time_ratio(lowering(many, FEW), lowering(few, FEW), rounds) * few / many
    return [Row(f"trace + lower per layer, {many} layers / {few} layers", "growth", growth, 1.0, LINEAR_BAR)]


def of_devices(layers: int, rounds: int) -> list[Row]:
    """Compare the time on a larger and on a smaller mesh."""
    growth = time_ratio(lowering(layers, MANY), lowering(layers, FEW), rounds)
    name = f"trace + lower of {layers} layers, 4,096 devices / 8 devices"
    return [Row(name, "growth", growth, 1.0, DEVICES_BAR)]


def time_ratio(large: Callable[[], Any], small: Callable[[], Any], rounds: int) -> float:
    """Return the ratio of the best CPU times, measured in alternation; a first call of `small` is not counted."""
    small()
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for call, seconds in zip((large, small), times, strict=True):
            gc.collect()
            start = process_time()
            call()
            seconds.append(process_time() - start)
    return min(times[0]) / min(times[1])


def lowering(layers: int, sizes: tuple[int, ...]) -> Callable[[], Any]:
    """Return a call that lowers a new function to the text for XLA, on a mesh of these sizes."""
    parallel = KINDS["data × tensor"]
    mesh = AbstractMesh(sizes, parallel.mesh[1])
    model = Model(layers, batch=1024, width=64, heads=8, hidden=128)
    work = workload("", model, replace(parallel, mesh=(sizes, parallel.mesh[1])))

    def abstract_argument(value: Any, *spec: Any) -> Any:
        return sw.ShapeDtypeStruct(value.shape, value.dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))

    arguments = work.arguments(abstract_argument)
    return lambda: sw.jit(work.program(sw, no_pin)).lower(*arguments)
