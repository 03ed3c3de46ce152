"""The names of `jax.experimental` that are supported, and `ops`, the building blocks of user-defined ops."""

from typing import NoReturn

from shardwise.api.callback import io_callback
from shardwise.api.config_contexts import disable_x64, enable_x64
from shardwise.experimental import custom_partitioning, maps, mesh_utils, ops, pjit, shard_map
from shardwise.lazy import missing_attribute_error

__all__ = [
    "custom_partitioning",
    "disable_x64",
    "enable_x64",
    "io_callback",
    "maps",
    "mesh_utils",
    "ops",
    "pjit",
    "shard_map",
]


def __getattr__(name: str) -> NoReturn:
    raise missing_attribute_error("shardwise.experimental", name, __all__)
