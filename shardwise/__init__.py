"""Shardwise: a program written for one device, run on many. `import shardwise as jax` runs JAX's programs."""

from shardwise import debug, distributed, errors, lax, numpy, sharding, tree
from shardwise.api.differentiate import grad, value_and_grad
from shardwise.api.jit import jit
from shardwise.api.placement import device_put, make_mesh
from shardwise.api.vectorize import vmap
from shardwise.config import config
from shardwise.explain.plan import explain
from shardwise.runtime.array import Array
from shardwise.runtime.client import (
    default_backend,
    device_count,
    devices,
    local_device_count,
    local_devices,
    process_count,
    process_index,
)
from shardwise.sharding import NamedSharding

P = sharding.PartitionSpec

__all__ = [
    "Array",
    "NamedSharding",
    "P",
    "config",
    "debug",
    "default_backend",
    "device_count",
    "device_put",
    "devices",
    "distributed",
    "errors",
    "explain",
    "grad",
    "jit",
    "lax",
    "local_device_count",
    "local_devices",
    "make_mesh",
    "numpy",
    "process_count",
    "process_index",
    "sharding",
    "tree",
    "value_and_grad",
    "vmap",
]
