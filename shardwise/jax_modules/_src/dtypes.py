"""jax._src.dtypes: dtypes that are not numpy's, and promotion."""

from typing import Any

import numpy as np

from shardwise.base.missing_names import report_missing
from shardwise.compiler.dtypes import KeyDType as ExtendedDType
from shardwise.typing import DTypeLike

__all__ = [
    "DType",  # Flax
    "ExtendedDType",  # Flax
    "supports_inf",  # Flax
    "to_complex_dtype",  # tinygp
]

DType = np.dtype


def supports_inf(dtype: DTypeLike) -> bool:
    """Return whether a floating dtype has infinities."""
    return bool(np.isinf(np.array(np.inf).astype(dtype)))


def to_complex_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the complex dtype that holds a real dtype."""
    return np.result_type(np.dtype(dtype), np.complex64)


report_missing(__name__, __all__)
