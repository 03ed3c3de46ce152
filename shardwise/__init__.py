"""Shardwise: a program written for one device, run on many. `import shardwise as jax` runs JAX's programs."""

from typing import NoReturn

from shardwise import debug, distributed, errors, lax, numpy, sharding, tree, tree_util
from shardwise.api.callback import io_callback, pure_callback
from shardwise.api.creation import (
    make_array_from_callback,
    make_array_from_process_local_data,
    make_array_from_single_device_arrays,
)
from shardwise.api.custom import custom_jvp, custom_vjp
from shardwise.api.differentiate import (
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linear_transpose,
    linearize,
    value_and_grad,
    vjp,
)
from shardwise.api.inspect import ShapeDtypeStruct, eval_shape, make_jaxpr, typeof
from shardwise.api.jit import disable_jit, jit
from shardwise.api.placement import block_until_ready, device_get, device_put, make_mesh, set_mesh
from shardwise.api.remat import checkpoint, checkpoint_policies
from shardwise.api.vectorize import vmap
from shardwise.compiler.ops.methods import ArrayMethods as Array
from shardwise.compiler.trace.provenance import named_scope
from shardwise.config import config
from shardwise.errors import not_here
from shardwise.explain.plan import explain
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
remat = checkpoint

__all__ = [
    "Array",
    "NamedSharding",
    "P",
    "ShapeDtypeStruct",
    "block_until_ready",
    "checkpoint",
    "checkpoint_policies",
    "config",
    "custom_jvp",
    "custom_vjp",
    "debug",
    "default_backend",
    "device_count",
    "device_get",
    "device_put",
    "devices",
    "disable_jit",
    "distributed",
    "errors",
    "eval_shape",
    "explain",
    "grad",
    "hessian",
    "io_callback",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "lax",
    "linear_transpose",
    "linearize",
    "local_device_count",
    "local_devices",
    "make_array_from_callback",
    "make_array_from_process_local_data",
    "make_array_from_single_device_arrays",
    "make_jaxpr",
    "make_mesh",
    "named_scope",
    "numpy",
    "process_count",
    "process_index",
    "pure_callback",
    "remat",
    "set_mesh",
    "sharding",
    "tree",
    "tree_util",
    "typeof",
    "value_and_grad",
    "vjp",
    "vmap",
]


def __getattr__(name: str) -> NoReturn:
    raise not_here("shardwise", name, __all__)
