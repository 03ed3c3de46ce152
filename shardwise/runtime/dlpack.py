"""The shape and the dtype of the array in a DLPack capsule, which jaxlib does not expose."""

from typing import Any

import ml_dtypes
import numpy as np

from shardwise.base.dlpack_capsule import tensor_in
from shardwise.compiler.ir.types import ArrayType

_DTYPES: dict[tuple[int, int], Any] = {
    **{(0, bits): np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{(1, bits): np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{(2, bits): np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    (4, 16): np.dtype(ml_dtypes.bfloat16),
    **{(5, bits): np.dtype(f"complex{bits}") for bits in (64, 128)},
    (6, 8): np.dtype(np.bool_),
    (7, 8): np.dtype(ml_dtypes.float8_e3m4),
    (8, 8): np.dtype(ml_dtypes.float8_e4m3),
    (9, 8): np.dtype(ml_dtypes.float8_e4m3b11fnuz),
    (10, 8): np.dtype(ml_dtypes.float8_e4m3fn),
    (11, 8): np.dtype(ml_dtypes.float8_e4m3fnuz),
    (12, 8): np.dtype(ml_dtypes.float8_e5m2),
    (13, 8): np.dtype(ml_dtypes.float8_e5m2fnuz),
    (14, 8): np.dtype(ml_dtypes.float8_e8m0fnu),
}


def type_in(capsule: object) -> ArrayType:
    """Return the type of the array in an unused capsule.

    Raises:
        BufferError: if the element type is not supported.
    """
    tensor = tensor_in(capsule)
    dtype = _DTYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        element = f"type code {tensor.code} with {tensor.bits} bits and {tensor.lanes} lanes"
        raise BufferError(f"elements of DLPack's {element} are not supported")
    return ArrayType(tuple(tensor.shape[: tensor.ndim]), dtype)
