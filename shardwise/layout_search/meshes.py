"""Mesh shapes that the search tries for a number of devices."""

import math

from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.shardings.mesh import AbstractMesh

STAGE = "stage"  # the axis of pipelined steps
CONTEXT = "context"  # the axis that shards sequences
DATA, MODEL = "data", "model"
AXES = {1: (DATA,), 2: (DATA, MODEL), 3: ("replica", DATA, MODEL)}


def mesh_shapes(count: int, chip: Chip) -> list[AbstractMesh]:
    """Return meshes of `count` devices: with one axis, two axes, and three if devices are in several nodes.

    Inner axes are within a node, where links are fast, or span an integer number of nodes.
    """
    shapes: list[tuple[int, ...]] = [(count,)]
    node = chip.fast_domain_size
    inner = [size for size in divisors(count) if 1 < size < count and (size <= node or size % node == 0)]
    shapes += [(count // size, size) for size in inner]
    if count > node:
        for size in inner:
            rest = count // size
            shapes += [(rest // nodes, nodes, size) for nodes in divisors(rest) if 1 < nodes < rest]
    return [AbstractMesh(shape, AXES[len(shape)]) for shape in shapes]


def stage_mesh_shapes(count: int, stages: int, chip: Chip) -> list[AbstractMesh]:
    """Return meshes for a pipeline of this many stages: an outer stage axis, and one or two inner axes."""
    inner = [mesh for mesh in mesh_shapes(count // stages, chip) if len(mesh.axis_names) < 3]
    return [AbstractMesh((stages, *mesh.axis_sizes), (STAGE, *mesh.axis_names)) for mesh in inner]


def context_mesh_shapes(count: int, rows: int, length: int, chip: Chip) -> list[AbstractMesh]:
    """Return meshes whose axis `context` shards sequences, those with the fewest devices along it first.

    Args:
        count: the number of devices.
        rows: the number of sequences, which the axis `data` divides.
        length: the length of the sequences, which the axis `context` divides.
        chip: the chip. Devices along `context` are within a node, or in an integer number of nodes.
    """
    node = chip.fast_domain_size
    sizes = [size for size in divisors(count) if size > 1 and (size <= node or size % node == 0)]
    meshes = []
    for size in sizes:
        if rows % (count // size) == 0 and length % size == 0:
            shape, names = ((count // size, size), (DATA, CONTEXT)) if size < count else ((count,), (CONTEXT,))
            meshes.append(AbstractMesh(shape, names))
    return meshes


def divisors(count: int) -> list[int]:
    """Return the divisors of a number in ascending order."""
    low = [size for size in range(1, math.isqrt(count) + 1) if count % size == 0]
    return [*low, *(count // size for size in reversed(low) if size * size != count)]
