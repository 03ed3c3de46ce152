"""The floating-point leaves of a pytree, which have derivatives, apart from the others."""

from collections.abc import Callable, Sequence
from typing import Any

import shardwise.numpy as jnp
from shardwise import tree_util


def split_floats(tree: object) -> tuple[list[Any], list[Any], Callable[[Sequence[Any], Sequence[Any]], Any]]:
    """Split the leaves of a tree by whether they have derivatives.

    Returns:
        The leaves with real or complex floating-point dtypes; the other leaves; and a function of two such lists that
        returns a tree like `tree`.
    """
    leaves, structure = tree_util.tree_flatten(tree)
    is_float = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves]

    def join(floats: Sequence[Any], others: Sequence[Any]) -> Any:
        parts = {True: iter(floats), False: iter(others)}
        return tree_util.tree_unflatten(structure, [next(parts[kind]) for kind in is_float])

    floats = [leaf for leaf, kind in zip(leaves, is_float, strict=True) if kind]
    others = [leaf for leaf, kind in zip(leaves, is_float, strict=True) if not kind]
    return floats, others, join
