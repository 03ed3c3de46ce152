"""Collectives inside of manual computations: StableHLO names devices, and Shardwise mesh axes."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from shardwise import lax
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.errors import UnsupportedError
from shardwise.stablehlo.monoids import monoids
from shardwise.stablehlo.operation import Operation

_REDUCTIONS = {"add": lax.psum, "maximum": lax.pmax, "minimum": lax.pmin}


def _mesh(op: Operation) -> AbstractMesh:
    mesh = op.module.annotations.mesh
    if mesh is None:
        raise UnsupportedError(
            "collectives between replicas are not supported: export the program before it is partitioned, or with "
            "sdy.manual_computation"
        )
    return mesh.abstract


def _axis_tuples(mesh: AbstractMesh) -> Iterator[tuple[str, ...]]:
    """Yield the tuples of mesh axes in every order, short ones first."""
    for count in range(1, len(mesh.axis_names) + 1):
        yield from permutations(mesh.axis_names, count)


def _axes(op: Operation) -> tuple[str, ...]:
    """Return the mesh axes along which the devices of each replica group differ."""
    text = str(op.attribute("replica_groups"))
    if text.startswith("#stablehlo.replica_group_mesh_axes"):  # as JAX writes them since 0.11
        if "sub_axis_info" in text:
            raise UnsupportedError(f"groups along a part of a mesh axis are not supported: {text}")
        return tuple(re.findall(r'axis_ref<name = "([^"]+)">', text))
    mesh, groups = _mesh(op), sorted(op.table("replica_groups"))
    for axes in _axis_tuples(mesh):
        if sorted(map(tuple, mesh.groups(axes).tolist())) == groups:
            return axes
    raise UnsupportedError(f"the groups {groups} of devices are along no axes of the mesh {mesh}")


def _reduction(op: Operation) -> Callable[..., Any]:
    (name,) = monoids(op.regions[0]) or [""]
    if name not in _REDUCTIONS:
        raise UnsupportedError("the region must be a sum, maximum or minimum of its arguments")
    return _REDUCTIONS[name]


def _all_reduce(op: Operation, *operands: Array) -> Any:
    reduction, axes = _reduction(op), _axes(op)
    return [reduction(x, axes) for x in operands]


def _all_gather(op: Operation, *operands: Array) -> Any:
    return [lax.all_gather(x, _axes(op), axis=op.integer("all_gather_dim"), tiled=True) for x in operands]


def _reduce_scatter(op: Operation, x: Array) -> Any:
    if _reduction(op) is not lax.psum:
        raise UnsupportedError("only sums can be scattered")
    return lax.psum_scatter(x, _axes(op), scatter_dimension=op.integer("scatter_dimension"), tiled=True)


def _all_to_all(op: Operation, *operands: Array) -> Any:
    split, concat = op.integer("split_dimension"), op.integer("concat_dimension")
    return [lax.all_to_all(x, _axes(op), split, concat, tiled=True) for x in operands]


def _collective_permute(op: Operation, x: Array) -> Any:
    mesh, pairs = _mesh(op), sorted(op.table("source_target_pairs"))
    for axes in _axis_tuples(mesh):
        groups = mesh.groups(axes).tolist()
        permutation = [
            (groups[0].index(source), groups[0].index(target))
            for source, target in pairs
            if source in groups[0] and target in groups[0]
        ]
        if sorted((group[source], group[target]) for group in groups for source, target in permutation) == pairs:
            return lax.ppermute(x, axes, permutation)
    raise UnsupportedError(f"the pairs {_shortened(pairs)} of devices are along no axes of the mesh {mesh}")


def _shortened(pairs: Sequence[tuple[int, ...]]) -> str:
    return f"{list(pairs[:8])}{'...' if len(pairs) > 8 else ''}"


def _partition_id(op: Operation) -> Any:
    return lax.convert_element_type(lax.axis_index(_mesh(op).axis_names), np.uint32)


OPS: dict[str, Callable[..., Any]] = {
    "stablehlo.all_gather": _all_gather,
    "stablehlo.all_reduce": _all_reduce,
    "stablehlo.all_to_all": _all_to_all,
    "stablehlo.collective_permute": _collective_permute,
    "stablehlo.partition_id": _partition_id,
    "stablehlo.reduce_scatter": _reduce_scatter,
    "stablehlo.replica_id": lambda op: full((), 0, np.dtype(np.uint32)),
}
