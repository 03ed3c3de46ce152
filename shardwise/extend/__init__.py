"""jax.extend: what libraries that define primitives, read jaxprs or use XLA's clients import."""

from shardwise.base.missing_names import report_missing
from shardwise.extend import (
    backend,
    core,
    ifrt_programs,
    linear_util,
    mlir,
    random,
    sharding,
    source_info_util,
)

__all__ = [
    "backend",
    "core",
    "ifrt_programs",
    "linear_util",
    "mlir",
    "random",
    "sharding",
    "source_info_util",
]

report_missing(__name__, __all__)
