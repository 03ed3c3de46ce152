"""StageRows: the rows of a stacked array, divided among the stages of a pipeline."""

from collections.abc import Sequence
from typing import Any, final

import shardwise.numpy as jnp
from shardwise import tree_util
from shardwise.api.meshes.placement import device_put
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.ir.types import ArrayType


@final
@tree_util.register_pytree_with_keys_class
class StageRows:
    """A stacked array, such as the weights of all layers, whose rows are divided among stages.

    It is a pytree of one array per stage, so that checkpoints, `jax.tree.map` and `block_until_ready` work on it.

    Attributes:
        parts: the rows of each stage.

    Example:
        >>> jax.parallel.StageRows([jnp.zeros((2, 3)), jnp.zeros((1, 3))])
        StageRows(float32[2,3], float32[1,3])
    """

    def __init__(self, parts: Sequence[Any]):
        self.parts = tuple(parts)

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], None]:
        """Return the parts with their keys, for `tree_util`."""
        return [(tree_util.SequenceKey(stage), part) for stage, part in enumerate(self.parts)], None

    @classmethod
    def tree_unflatten(cls, _: None, parts: Sequence[Any]) -> "StageRows":
        """Return the array with these parts, for `tree_util`."""
        return cls(parts)

    @property
    def type(self) -> ArrayType:
        """The type of the whole array."""
        first = type_of(self.parts[0])
        return first.with_shape((sum(part.shape[0] for part in self.parts), *first.shape[1:]))

    def gather(self) -> Any:
        """Return the whole array, on the devices of the first stage."""
        first = self.parts[0]
        return jnp.concatenate([first, *(device_put(part, first.sharding) for part in self.parts[1:])])

    def __repr__(self) -> str:
        types = [f"{part.dtype}{list(part.shape)}" if hasattr(part, "dtype") else repr(part) for part in self.parts]
        return f"StageRows({', '.join(types).replace(', ', ',').replace('],', '], ')})"
