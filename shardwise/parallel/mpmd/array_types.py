"""The types of arrays in pytrees, for pipelines that are planned before they run."""

import math
from collections.abc import Sequence
from typing import Any

from shardwise import tree_util
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.shardings.sharding import Sharding


def types_of(tree: object) -> Any:
    """Return the types of arrays or numbers, without shardings."""

    def struct(leaf: Any) -> ShapeDtypeStruct:
        type = type_of(leaf)
        return ShapeDtypeStruct(type.shape, type.dtype)

    return tree_util.tree_map(struct, tree)


def microbatch_types(tree: object, microbatches: int) -> Any:
    """Return the types of the rows of one microbatch of a batch."""
    return tree_util.tree_map(
        lambda leaf: ShapeDtypeStruct((leaf.shape[0] // microbatches, *leaf.shape[1:]), leaf.dtype), tree
    )


def device_bytes(tree: object) -> int:
    """Return the bytes of the shards of arrays on one device."""
    return sum(
        leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in tree_util.tree_leaves(tree)
    )


def with_shardings(tree: object, shardings: Sequence[Sharding]) -> Any:
    """Return the types of a pytree of arrays with these shardings, one for each leaf."""
    leaves, structure = tree_util.tree_flatten(types_of(tree))
    structs = [
        ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        for leaf, sharding in zip(leaves, shardings, strict=True)
    ]
    return tree_util.tree_unflatten(structure, structs)
