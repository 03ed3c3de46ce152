"""float0 arrays as arguments and results of manual regions. They have shapes, but no elements that a device could hold.

The function of shards gets and returns float0 arrays with the shapes of shards; the caller passes and gets global ones.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwise import tree
from shardwise.api.transformations.float0 import float0, is_float0
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import PartitionSpec, pin_of

Spec = PartitionSpec | None


def shard_float0(
    args: tuple[Any, ...], specs: Sequence[Spec], shard_shape: Callable[[tuple[int, ...], PartitionSpec, int], Any]
) -> tuple[tuple[Any, ...], list[Spec]]:
    """Replace the float0 arrays among the arguments of a region by float0 arrays with the shapes of shards.

    Args:
        args: the arguments.
        specs: the spec of each leaf; None for a leaf that the function gets unchanged.
        shard_shape: returns the shape of a shard of an array of this shape with this spec, which is the leaf at this
            position.

    Returns:
        The arguments and the spec of each leaf: None for the float0 arrays.
    """
    leaves, structure = tree.flatten(args)
    kept = list(specs)
    for position, (leaf, spec) in enumerate(zip(leaves, specs, strict=True)):
        if is_float0(leaf) and spec is not None:
            leaves[position] = np.zeros(shard_shape(leaf.shape, spec, position), float0)
            kept[position] = None
    return structure.unflatten(leaves), kept


def global_float0(result: object, out_specs: object, mesh: AbstractMesh) -> Any:
    """Replace the float0 arrays in a region's result, which have the shapes of shards, by global ones."""
    leaves, structure = tree.flatten(result)
    if not any(map(is_float0, leaves)):
        return result
    specs = tree.broadcast_prefix(out_specs, result, lambda x: isinstance(x, PartitionSpec))
    for position, (leaf, spec) in enumerate(zip(leaves, specs, strict=True)):
        if is_float0(leaf):
            dims = zip(leaf.shape, pin_of(spec, leaf.shape, mesh).layout.dims, strict=True)
            leaves[position] = np.zeros([size * mesh.extent(axes) for size, axes in dims], float0)
    return structure.unflatten(leaves)
