from shardwise import (
    ad as ad,
    core as core,
    custom_batching as custom_batching,
    custom_derivatives as custom_derivatives,
    data as data,
    debug as debug,
    checkpoints as checkpoints,
    distributed as distributed,
    dlpack as dlpack,
    dtypes as dtypes,
    errors as errors,
    example_libraries as example_libraries,
    experimental as experimental,
    export as export,
    extend as extend,
    ffi as ffi,
    flatten_util as flatten_util,
    image as image,
    kernels as kernels,
    lax as lax,
    memory as memory,
    monitoring as monitoring,
    nn as nn,
    numpy as numpy,
    ops as ops,
    models as models,
    parallel as parallel,
    profiler as profiler,
    random as random,
    ref as ref,
    scipy as scipy,
    sharding as sharding,
    stablehlo as stablehlo,
    stages as stages,
    strategies as strategies,
    test_util as test_util,
    tools as tools,
    tree as tree,
    tree_util as tree_util,
    typing as typing,
)
from shardwise.base._jaxlib import Device as Device
from shardwise.api.callbacks.callback import io_callback as io_callback, pure_callback as pure_callback
from shardwise.api.transformations.closure import closure_convert as closure_convert, custom_gradient as custom_gradient
from shardwise.api.config_contexts import (
    allow_f16_reductions as allow_f16_reductions,
    array_garbage_collection_guard as array_garbage_collection_guard,
    auto_pcast as auto_pcast,
    check_static_indices as check_static_indices,
    check_tracer_leaks as check_tracer_leaks,
    checking_leaks as checking_leaks,
    debug_infs as debug_infs,
    debug_key_reuse as debug_key_reuse,
    debug_nans as debug_nans,
    default_device as default_device,
    default_matmul_precision as default_matmul_precision,
    default_prng_impl as default_prng_impl,
    disable_jit as disable_jit,
    enable_checks as enable_checks,
    enable_custom_prng as enable_custom_prng,
    enable_x64 as enable_x64,
    ensure_compile_time_eval as ensure_compile_time_eval,
    explain_cache_misses as explain_cache_misses,
    legacy_prng_key as legacy_prng_key,
    log_compiles as log_compiles,
    named_call as named_call,
    no_execution as no_execution,
    no_tracing as no_tracing,
    numpy_dtype_promotion as numpy_dtype_promotion,
    numpy_rank_promotion as numpy_rank_promotion,
    remove_size_one_mesh_axis_from_type as remove_size_one_mesh_axis_from_type,
    softmax_custom_jvp as softmax_custom_jvp,
    thread_guard as thread_guard,
    threefry_partitionable as threefry_partitionable,
    transfer_guard as transfer_guard,
    transfer_guard_device_to_device as transfer_guard_device_to_device,
    transfer_guard_device_to_host as transfer_guard_device_to_host,
    transfer_guard_host_to_device as transfer_guard_host_to_device,
)
from shardwise.api.creation import (
    make_array_from_callback as make_array_from_callback,
    make_array_from_process_local_data as make_array_from_process_local_data,
    make_array_from_single_device_arrays as make_array_from_single_device_arrays,
)
from shardwise.api.transformations.custom import custom_jvp as custom_jvp, custom_vjp as custom_vjp
from shardwise.api.transformations.differentiate import (
    grad as grad,
    hessian as hessian,
    jacfwd as jacfwd,
    jacrev as jacrev,
    jvp as jvp,
    linear_transpose as linear_transpose,
    linearize as linearize,
    value_and_grad as value_and_grad,
    vjp as vjp,
)
from shardwise.execute.compiler_effort import CompilerEffortLevel as CompilerEffortLevel
from shardwise.api.inline import Inline as Inline
from shardwise.api.meshes.current_mesh import (
    get_abstract_mesh as get_abstract_mesh,
    get_mesh as get_mesh,
    set_mesh as set_mesh,
    use_abstract_mesh as use_abstract_mesh,
)
from shardwise.api.environment import (
    clear_caches as clear_caches,
    copy_to_host_async as copy_to_host_async,
    effects_barrier as effects_barrier,
    host_count as host_count,
    host_id as host_id,
    host_ids as host_ids,
    live_arrays as live_arrays,
    print_environment_info as print_environment_info,
    process_indices as process_indices,
)
from shardwise.api.ahead_of_time.inspect import eval_shape as eval_shape, make_jaxpr as make_jaxpr, typeof as typeof
from shardwise.api.jit import jit as jit
from shardwise.api.meshes.placement import (
    block_until_ready as block_until_ready,
    device_get as device_get,
    device_put as device_put,
    make_mesh as make_mesh,
    reshard as reshard,
)
from shardwise.api.meshes.pmap import pmap as pmap
from shardwise.api.ref import (
    Ref as Ref,
    empty_ref as empty_ref,
    free_ref as free_ref,
    freeze as freeze,
    new_ref as new_ref,
)
from shardwise.api.transformations.custom_remat import custom_remat as custom_remat
from shardwise.api.transformations.remat import checkpoint as checkpoint, checkpoint_policies as checkpoint_policies
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct as ShapeDtypeStruct
from shardwise.api.meshes.shard_map import shard_map as shard_map
from shardwise.api.meshes.smap import smap as smap
from shardwise.api.transformations.fwd_and_bwd import fwd_and_bwd as fwd_and_bwd
from shardwise.api.transformations.vmap import vmap as vmap
from shardwise.api.user_context import make_user_context as make_user_context
from shardwise.compiler.arrays.dynamic_index import ds as ds
from shardwise.compiler.arrays.methods import Array as Array
from shardwise.compiler.trace.provenance import named_scope as named_scope
from shardwise.base.config import config as config
from shardwise.dtypes import float0 as float0
from shardwise.compiler.report.report import Plan as Plan
from shardwise.explain.budget import comm_budget as comm_budget
from shardwise.explain.failures import Failures as Failures, RecoveryPolicy as RecoveryPolicy
from shardwise.explain.memory_budget import memory_budget as memory_budget
from shardwise.explain.plan import explain as explain
from shardwise.explain.simulate import simulate as simulate
from shardwise.explain.sweep import sweep as sweep
from shardwise.jax_modules.install import as_jax as as_jax
from shardwise.layout_search.autoshard import autoshard as autoshard
from shardwise.layout_search.autoshard_pipeline import autoshard_pipeline as autoshard_pipeline
from shardwise.runtime.array import Shard as Shard
from shardwise.runtime.client import (
    default_backend as default_backend,
    device_count as device_count,
    devices as devices,
    local_device_count as local_device_count,
    local_devices as local_devices,
    process_count as process_count,
    process_index as process_index,
)
from shardwise.sharding import NamedSharding as NamedSharding, PartitionSpec
from shardwise.version import __version__ as __version__

P = PartitionSpec
jacobian = jacrev
remat = checkpoint
