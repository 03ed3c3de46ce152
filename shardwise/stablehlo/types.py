"""Types of MLIR: from `tensor<8x4xbf16>` to an ArrayType."""

from shardwise.base._jaxlib import mlir_ir
from shardwise.compiler.dtypes import SHORT_NAMES, DType
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.lower.hlo import element_type
from shardwise.errors import UnsupportedError

_DTYPES = {element_type(dtype): dtype for dtype in SHORT_NAMES.values()}


def array_type(type: object) -> ArrayType:
    """Return the type of a tensor.

    Raises:
        UnsupportedError: if it is no tensor, or has a dynamic dim or an element type that arrays cannot have.
    """
    if not isinstance(type, mlir_ir.RankedTensorType):
        raise UnsupportedError(f"values of the type {type} are not supported: only tensors with static shapes are")
    if not type.has_static_shape:
        raise UnsupportedError(f"{type} has a dynamic dim. Export the program with static shapes.")
    return ArrayType(tuple(type.shape), dtype(type.element_type))


def dtype(element: object) -> DType:
    """Return the dtype of an element type."""
    name = str(element)
    if name not in _DTYPES:
        raise UnsupportedError(f"elements of the type {name} are not supported: only {', '.join(_DTYPES)} are")
    return _DTYPES[name]
