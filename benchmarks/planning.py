"""How planning grows: with the number of layers, and with the number of devices. Ours beside ourselves.

A training step of a transformer, data × tensor parallel, from the Python function to the text that XLA gets. Arguments
are shapes and layouts on a mesh without devices, so that there may be any number of them. JAX plans inside XLA, for
devices that it has; there is nothing to put beside these rows but the smaller program or the smaller mesh. One thread
does all of it: its CPU time counts, which others on the machine disturb little.
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
from benchmarks.workload import unpinned
from shardwise.sharding import AbstractMesh, NamedSharding, PartitionSpec

LAYERS = (12, 24, 48, 96)
FEW: tuple[int, ...] = (4, 2)
MANY: tuple[int, ...] = (512, 8)
DEVICES_BAR = 1.5
LINEAR_BAR = 1.25  # beside the growth of a layer, which is 1 where planning is linear


def cases(quick: bool) -> list[Case]:
    rounds = 1 if quick else 3
    layers = (1, 2) if quick else LAYERS
    return [
        *[Case(f"{count} layers", partial(of_layers, layers[0], count, rounds)) for count in layers[1:]],
        Case("devices", partial(of_devices, layers[0], rounds)),
    ]


def of_layers(few: int, many: int, rounds: int) -> list[Row]:
    """How much longer a layer takes in the longer model."""
    growth = compared(lowering(many, FEW), lowering(few, FEW), rounds) * few / many
    return [Row(f"trace + lower of a layer, of {many} to of {few}", "growth", growth, 1.0, LINEAR_BAR)]


def of_devices(layers: int, rounds: int) -> list[Row]:
    """How much longer it takes for more devices."""
    growth = compared(lowering(layers, MANY), lowering(layers, FEW), rounds)
    name = f"trace + lower of {layers} layers, for 4,096 devices to for 8"
    return [Row(name, "growth", growth, 1.0, DEVICES_BAR)]


def compared(large: Callable[[], Any], small: Callable[[], Any], rounds: int) -> float:
    """The ratio of their best times, taken in turns; a first call of the small one does not count."""
    small()
    found: list[list[float]] = [[], []]
    for _ in range(rounds):
        for call, seconds in zip((large, small), found, strict=True):
            gc.collect()
            start = process_time()
            call()
            seconds.append(process_time() - start)
    return min(found[0]) / min(found[1])


def lowering(layers: int, sizes: tuple[int, ...]) -> Callable[[], Any]:
    """From a function that no cache has seen to the text that XLA gets, on a mesh of these sizes."""
    parallel = KINDS["data × tensor"]
    mesh = AbstractMesh(sizes, parallel.mesh[1])
    model = Model(layers, batch=1024, width=64, heads=8, hidden=128)
    planned = workload("", model, replace(parallel, mesh=(sizes, parallel.mesh[1])))

    def placed(value: Any, *spec: Any) -> Any:
        return sw.ShapeDtypeStruct(value.shape, value.dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))

    arguments = planned.arguments(placed)
    return lambda: sw.jit(planned.program(sw, unpinned)).lower(*arguments)
