"""jax.extend: what libraries that define primitives, read jaxprs or use XLA's clients import."""

from shardwise.base.missing_names import report_missing
from shardwise.extend import (  # noqa: F401
    backend,
    core,
    ifrt_programs,  # not listed: it contains itself
    linear_util,
    mlir,
    random,
    sharding,
    source_info_util,
)

__all__ = [
    "backend",
    "core",
    "linear_util",
    "mlir",
    "random",
    "sharding",
    "source_info_util",
]

report_missing(__name__, __all__)
