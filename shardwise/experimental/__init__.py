"""The names of `jax.experimental` that are supported, and `ops`, the building blocks of user-defined ops."""

from shardwise.api.callbacks.callback import io_callback
from shardwise.api.config_contexts import disable_x64, enable_x64
from shardwise.base.lazy import set_public_names
from shardwise.experimental import (
    checkify,
    colocated_python,
    custom_partitioning,
    hijax,
    layout,
    maps,
    mesh_utils,
    multihost_utils,
    ops,
    pjit,
    shard_map,
    sparse,
)

__all__ = [
    "checkify",
    "colocated_python",
    "custom_partitioning",
    "disable_x64",
    "enable_x64",
    "hijax",
    "io_callback",
    "layout",
    "maps",
    "mesh_utils",
    "multihost_utils",
    "ops",
    "pjit",
    "shard_map",
    "sparse",
]


set_public_names(__name__, __all__)
