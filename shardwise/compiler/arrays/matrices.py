"""Operand conversion for functions on batches of matrices."""

from typing import TYPE_CHECKING

from shardwise.compiler.arrays.operands import as_inexact, as_strong
from shardwise.compiler.ops.elementwise.base import DtypeSet
from shardwise.compiler.ops.linalg.lapack import LAPACK_DTYPES

if TYPE_CHECKING:
    from shardwise.compiler.arrays.argument_types import ArrayLike
    from shardwise.compiler.arrays.methods import Array


def as_matrices(name: str, x: "ArrayLike", square: bool = False, dtypes: DtypeSet = LAPACK_DTYPES) -> "Array":
    """Convert `x` to an array or tracer of float or complex matrices. `name` is for error messages."""
    x = as_inexact(x, name)
    if x.type.ndim < 2 or (square and x.type.shape[-1] != x.type.shape[-2]):
        raise ValueError(f"{name}: needs {'square ' * square}matrices, of rank 2 or more, not {x.type}")
    if not dtypes.contains(x.type.dtype):
        raise TypeError(f"{name}: needs {dtypes.description}, not {x.type}; convert with `astype`")
    return as_strong(x)
