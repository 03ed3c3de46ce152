"""vmap of calls whose functions accept batches: callbacks on the host, and functions of compiled libraries."""

from collections.abc import Sequence
from typing import Any

from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at


def batch_operands(method: str, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
    """Return the operands with the batch dim in front.

    Args:
        method: "broadcast_all", which broadcasts unbatched operands, or "expand_dims", which adds a dim of size 1.
        axis: the batch axis.
        operands: the operands.
        dims: the batch dim of each operand; None if it is unbatched.
    """
    size = axis.size if method == "broadcast_all" else 1
    return [
        batch_dim_at(x, dim, 0, axis.size if dim is not None else size) for x, dim in zip(operands, dims, strict=True)
    ]
