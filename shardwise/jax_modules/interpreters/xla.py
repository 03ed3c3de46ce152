"""jax.interpreters.xla: how classes are converted to arrays."""

from typing import Any

import numpy as np

from shardwise.base.missing_names import report_missing
from shardwise.compiler.arrays.operands import as_operand

__all__ = ["canonicalize_dtype_handlers"]  # TensorFlow Probability, which Distrax uses

# The class that it adds is a proxy of arrays, which functions accept without being told.
canonicalize_dtype_handlers: dict[type, Any] = {np.ndarray: as_operand}

report_missing(__name__, __all__)
