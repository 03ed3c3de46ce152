"""jax._src.numpy.util: promotion of the operands of a function."""

from shardwise.base.missing_names import report_missing
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, astype_weak
from shardwise.compiler.arrays.promotion import inexact_dtype, promote_dtypes
from shardwise.typing import ArrayLike

__all__ = ["promote_dtypes_inexact"]  # torchax


def promote_dtypes_inexact(*args: ArrayLike) -> list[Array]:
    """Convert operands to their common floating or complex dtype. Shapes do not change."""
    operands = [as_operand(x, "promote_dtypes_inexact") for x in args]
    dtype, weak = promote_dtypes("promote_dtypes_inexact", [x.type for x in operands])
    return [astype_weak(x, inexact_dtype(dtype), weak) for x in operands]


report_missing(__name__, __all__)
