"""TensorStore's contexts: the concurrency of operations, and no cache."""

from typing import Any

from shardwise.base.object_store import ts


def write_context() -> Any:
    """Return the context of a save."""
    return ts.Context({"cache_pool": {"total_bytes_limit": 0}, "file_io_concurrency": {"limit": 8}})


def read_context() -> Any:
    """Return the context of a restore."""
    return ts.Context({"cache_pool": {"total_bytes_limit": 0}, "file_io_concurrency": {"limit": 16}})
