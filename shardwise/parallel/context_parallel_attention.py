"""ContextParallelAttention: run the attention of an ordinary function as ring attention over a mesh axis.

In the context `attention_calls`, each call of `dot_product_attention` is offered to it. It runs those that
`ring_attention` supports, so that the sequence may be sharded in all of the function.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any, final

from shardwise.api.attention_calls import attention_calls
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.ir.dispatch import bound_axes
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.nn.blockwise_attention import AttentionOptions
from shardwise.parallel.ring_attention import ring_attention


@final
@dataclass(eq=False)
class SelfAttentionRecorder:
    """Lists the calls of attention that may run as ring attention. They run as usual.

    Attributes:
        lengths: the lengths of their sequences.
        has_causal: whether one of them is causal.
    """

    lengths: set[int] = field(default_factory=set)
    has_causal: bool = False

    def __call__(self, query: Any, key: Any, value: Any, options: AttentionOptions) -> None:
        query_type = type_of(query)
        if _may_be_ring(query_type, type_of(key), options):
            self.lengths.add(query_type.shape[-3])
            self.has_causal |= options.is_causal


@final
@dataclass(frozen=True)
class ContextParallelAttention:
    """Runs calls of attention as ring attention.

    Attributes:
        mesh: the mesh.
        axis: the axis of the mesh that shards the sequence.
        balanced: whether shards are exchanged so that all devices have the same work in causal attention.
    """

    mesh: Mesh | AbstractMesh
    axis: str
    balanced: bool

    def applied(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose calls of attention are ring attention."""

        def call(*args: Any) -> Any:
            with attention_calls(self):
                return function(*args)

        return update_wrapper(call, function, updated=())

    def __call__(self, query: Any, key: Any, value: Any, options: AttentionOptions) -> Any:
        """Return the result of a call; None if ring attention does not support it on this mesh."""
        query_type = type_of(query)
        is_balanced = self.balanced and options.is_causal
        chunks = self.mesh.shape[self.axis] * (2 if is_balanced else 1)
        if not _may_be_ring(query_type, type_of(key), options) or query_type.shape[-3] % chunks or bound_axes():
            return None
        return ring_attention(
            query,
            key,
            value,
            axis=self.axis,
            causal=options.is_causal,
            scale=options.scale,
            balanced=is_balanced,
            mesh=self.mesh,
        )


def _may_be_ring(query: ArrayType, key: ArrayType, options: AttentionOptions) -> bool:
    """Return whether ring attention computes a call: as many queries as keys, no window, mask, bias or lengths."""
    return query.shape[-3] == key.shape[-3] and options.window is None and not options.optional_names
