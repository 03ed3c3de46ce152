"""Shardwise: a program written for one device, run on many. `import shardwise as jax` runs JAX's programs."""

from typing import TYPE_CHECKING

from shardwise import debug, distributed, dtypes, errors, lax, numpy, sharding, tree, tree_util
from shardwise.api.callback import io_callback, pure_callback
from shardwise.api.closure import closure_convert, custom_gradient
from shardwise.api.config_contexts import (
    debug_infs,
    debug_nans,
    default_device,
    default_matmul_precision,
    disable_jit,
    enable_x64,
    ensure_compile_time_eval,
    explain_cache_misses,
    log_compiles,
    named_call,
    numpy_dtype_promotion,
    numpy_rank_promotion,
    transfer_guard,
    transfer_guard_device_to_device,
    transfer_guard_device_to_host,
    transfer_guard_host_to_device,
)
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
from shardwise.api.inspect import eval_shape, make_jaxpr, typeof
from shardwise.api.jit import jit
from shardwise.api.placement import block_until_ready, device_get, device_put, make_mesh, set_mesh
from shardwise.api.remat import checkpoint, checkpoint_policies
from shardwise.api.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.vmap import vmap
from shardwise.compiler.arrays.methods import ArrayMethods as Array
from shardwise.compiler.trace.provenance import named_scope
from shardwise.config import config
from shardwise.explain.plan import explain
from shardwise.lazy import lazy_names
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

if TYPE_CHECKING:
    from shardwise import dlpack, experimental, nn, ops, profiler, random, scipy, stages, typing
    from shardwise.api.environment import (
        clear_caches,
        copy_to_host_async,
        effects_barrier,
        live_arrays,
        print_environment_info,
        process_indices,
    )
    from shardwise.api.pmap import pmap
    from shardwise.api.shard_map import shard_map
    from shardwise.api.smap import smap
    from shardwise.execute.plan_report import Plan
    from shardwise.explain.budget import comm_budget

P = sharding.PartitionSpec
remat = checkpoint
jacobian = jacrev
float0 = dtypes.float0

__all__ = [
    "Array",
    "NamedSharding",
    "P",
    "Plan",
    "ShapeDtypeStruct",
    "block_until_ready",
    "checkpoint",
    "checkpoint_policies",
    "clear_caches",
    "closure_convert",
    "comm_budget",
    "config",
    "copy_to_host_async",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "debug",
    "debug_infs",
    "debug_nans",
    "default_backend",
    "default_device",
    "default_matmul_precision",
    "device_count",
    "device_get",
    "device_put",
    "devices",
    "disable_jit",
    "distributed",
    "dlpack",
    "dtypes",
    "effects_barrier",
    "enable_x64",
    "ensure_compile_time_eval",
    "errors",
    "eval_shape",
    "experimental",
    "explain",
    "explain_cache_misses",
    "float0",
    "grad",
    "hessian",
    "io_callback",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jit",
    "jvp",
    "lax",
    "linear_transpose",
    "linearize",
    "live_arrays",
    "local_device_count",
    "local_devices",
    "log_compiles",
    "make_array_from_callback",
    "make_array_from_process_local_data",
    "make_array_from_single_device_arrays",
    "make_jaxpr",
    "make_mesh",
    "named_call",
    "named_scope",
    "nn",
    "numpy",
    "numpy_dtype_promotion",
    "numpy_rank_promotion",
    "ops",
    "pmap",
    "print_environment_info",
    "process_count",
    "process_index",
    "process_indices",
    "profiler",
    "pure_callback",
    "random",
    "remat",
    "scipy",
    "set_mesh",
    "shard_map",
    "sharding",
    "smap",
    "stages",
    "transfer_guard",
    "transfer_guard_device_to_device",
    "transfer_guard_device_to_host",
    "transfer_guard_host_to_device",
    "tree",
    "tree_util",
    "typeof",
    "typing",
    "value_and_grad",
    "vjp",
    "vmap",
]


__getattr__, __dir__ = lazy_names(
    "shardwise",
    __all__,
    ("dlpack", "experimental", "nn", "ops", "profiler", "random", "scipy", "stages", "typing"),
    homes=(
        "shardwise.api.shard_map",
        "shardwise.api.smap",
        "shardwise.api.pmap",
        "shardwise.api.environment",
        "shardwise.execute.plan_report",
        "shardwise.explain.budget",
    ),
)
