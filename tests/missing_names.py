"""Find the public names of JAX that Shardwise lacks. `python -m tests.missing_names` prints those without a reason.

The names are those of the installed jax, and those of newer releases, which `tests/newer_names.txt` lists. `MODULES`
and `REASONS` say why a module or a name is missing.
"""

import importlib
import warnings
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from tests.jax_names import NEWER_NAMES
from tests.jax_source import public_names, read_release

KERNELS = "kernels in the languages of Pallas, Mosaic and thunks are not supported; FFI calls and XLA's own kernels are"
IMPLEMENTATION = "the implementation of JAX's public names, which exist in the package"
RULES = "tables and helpers of JAX's rules; none of the tested libraries uses it (docs/ecosystem.md)"
IR_TOOLS = "builds MLIR or reads JAX's lowering, and Shardwise has its own; `mlir.lower_fun` lowers functions"
ALIAS = "an alias for annotations in JAX's own source"
HELPER = "a helper of JAX's own source, without documentation"
SCRIPT = "a script that runs on the command line with JAX itself"
SAVES = "saves pytrees in a format of JAX's own; `checkpoints` and Orbax save them here"
CONTROL_DEPS = "orders two ops for XLA's scheduler; `overlap.program_order` orders those of a function"

# Modules whose names are not compared, with all below them.
MODULES: dict[str, str] = {
    **dict.fromkeys(("experimental.mosaic", "experimental.pallas", "extend.pallas"), KERNELS),
    "experimental.jax2tf": "needs TensorFlow, which is not supported",
    "extend.mlir.dialects": "modules of jaxlib; `extend.mlir.dialects` has them as placeholders",
    **dict.fromkeys(("collect_profile", "tools.pgo_nsys_converter"), SCRIPT),
    **dict.fromkeys(
        (
            *(
                f"experimental.colocated_python.{name}"
                for name in ("api", "func", "func_backend", "obj", "obj_backend")
            ),
            *("experimental.roofline.roofline", "experimental.roofline.rooflines"),
            *(f"experimental.source_mapper.{name}" for name in ("common", "generate_map", "hlo", "jaxpr", "mlir")),
            *(
                f"experimental.sparse.{name}"
                for name in ("ad", "api", "bcoo", "bcsr", "coo", "csr", "transform", "util")
            ),
            "experimental.sparse.test_util",
        ),
        IMPLEMENTATION,
    ),
}


def _names(module: str, names: str) -> list[str]:
    return [f"{module}.{name}".lstrip(".") for name in names.split()]


# Names that end in `_p` need no entry.
PRIMITIVE = "primitives of jaxprs; those of Shardwise's ops exist, such as `lax.exp_p`"
REASONS: dict[str, str] = {
    "jax2tf_associative_scan_reductions": "a setting of jax2tf, which needs TensorFlow",
    "lax.psend": "not supported yet: a send without its receive has no op here; `lax.ppermute` does both",
    "lax.precv": "not supported yet: a receive without its send has no op here; `lax.ppermute` does both",
    "experimental.sparse.SparseTracer": "not needed: `sparsify` evaluates a jaxpr, with and without `use_tracer`",
    "experimental.EArray": "an array of an extended dtype; arrays of keys are arrays here",
    "experimental.cur_qdd": "of hijax types, which are not supported",
    "experimental.primal_tangent_dtype": "for user-defined dtypes, which are not supported",
    "experimental.layout.explicit_layout": "layouts in memory are no part of types; all arrays are row-major",
    **dict.fromkeys(_names("experimental.control_deps", "control_dep schedule"), CONTROL_DEPS),
    **dict.fromkeys(_names("experimental.overlap", "control_dep schedule"), CONTROL_DEPS),
    **dict.fromkeys(
        _names(
            "experimental.thunky",
            "all_gather all_reduce all_to_all async_done async_start call_jax collective_group collective_permute cond "
            "copy custom_call jit memset memzero ptx_kernel reduce_scatter switch while_loop",
        ),
        KERNELS,
    ),
    **dict.fromkeys(
        _names(
            "experimental.array_serialization.pytree_serialization",
            "load load_pytreedef nonblocking_load nonblocking_save save",
        ),
        SAVES,
    ),
    **dict.fromkeys(
        _names(
            "experimental.array_serialization.pytree_serialization_utils",
            "PickleModule PyTreeFuture deserialize_pytreedef serialize_pytreedef",
        ),
        SAVES,
    ),
    **dict.fromkeys(
        _names("experimental.array_serialization.serialization", "AsyncManager BarrierTimeoutError is_remote_storage"),
        HELPER,
    ),
    **dict.fromkeys(
        _names(
            "experimental.array_serialization.tensorstore_impl",
            "Future Transaction estimate_read_memory_footprint is_tensorstore_spec_leaf merge_nested_ts_specs "
            "verify_tensorstore_spec",
        ),
        HELPER,
    ),
    **dict.fromkeys(
        (
            *_names("core", "Value"),
            *_names("example_libraries.optimizers", "InitFn Params ParamsFn State Step UpdateFn Updates"),
            *_names("experimental.array_serialization.pytree_serialization", "PyTreeT"),
            *_names("experimental.array_serialization.pytree_serialization_utils", "T"),
            *_names("experimental.rnn", "PRNGKeyArray"),
            *_names("interpreters.mlir", "ConstantHandler LoweringRule MeshAxisName Value"),
            *_names("interpreters.partial_eval", "Val"),
            *_names("interpreters.pxla", "ArrayMapping Index MeshAxisName"),
            *_names("interpreters.xla", "Backend"),
        ),
        ALIAS,
    ),
    **dict.fromkeys(
        (
            *_names("api_util", "donation_vector flatten_axes rebase_donate_argnums shaped_abstractify"),
            *_names("example_libraries.stax", "glorot logsoftmax randn"),
            *_names("experimental.mesh_utils", "device_kind_handler_dict"),
            *_names(
                "experimental.multihost_utils",
                "global_array_to_host_local_array_impl gtl_abstract_eval host_local_array_to_global_array_impl "
                "ltg_abstract_eval ltg_batcher",
            ),
            *_names(
                "experimental.ode",
                "abs2 fit_4th_order_polynomial initial_step_size interp_fit_dopri mean_error_ratio optimal_step_size "
                "ravel_first_arg ravel_first_arg_ runge_kutta_step",
            ),
            *_names("experimental.rnn", "lstm_bwd lstm_fwd rnn_abstract_eval rnn_bwd_abstract_eval tanh"),
            *_names("experimental.scheduling_groups", "attr_get dce_jaxpr_xla_metadata_rule"),
            *_names("tools.jax_to_ir", "jax_to_hlo jax_to_tf"),
        ),
        HELPER,
    ),
    **dict.fromkeys(
        (
            *_names(
                "core",
                "CallPrimitive DebugInfo Effects InconclusiveDimensionOperation JaxprPpContext JaxprPpSettings "
                "JaxprTypeError OutputType abstract_token aval_mapping_handlers call check_jaxpr "
                "concretization_function_error custom_typechecks gensym is_concrete is_constant_shape "
                "jaxprs_in_params literalable_types new_jaxpr_eqn no_axis_name no_effects "
                "primal_dtype_to_tangent_dtype trace_ctx",
            ),
            *_names(
                "experimental.jet",
                "JetTrace JetTracer ZeroSeries ZeroTerm call_param_updaters def_comp def_deriv deflinear defzero "
                "deriv_prop fact jet2 jet_fun jet_rules jet_subtrace linear_prop traceable zero_prop zero_series "
                "zero_term",
            ),
            *_names(
                "extend.core",
                "AbstractToken CallPrimitive DebugInfo Effects InconclusiveDimensionOperation JaxprTypeError Token "
                "array_types call_impl check_jaxpr create_call_primitive eval_jaxpr_transpose gensym "
                "jaxprs_in_params new_jaxpr_eqn no_effects primal_dtype_to_tangent_dtype register_call_primitive_rules "
                "subjaxprs",
            ),
            *_names(
                "extend.core.primitives", "create_call_primitive eval_jaxpr_transpose register_call_primitive_rules"
            ),
            *_names(
                "extend.linear_util",
                "StoreException cache merge_linear_aux transformation2 transformation_with_aux2",
            ),
            *_names(
                "extend.source_info_util",
                "NameStack SourceInfo current current_name_stack extend_name_stack new_name_stack new_source_info "
                "reset_name_stack set_name_stack summarize transform_name_stack user_context",
            ),
            *_names(
                "interpreters.ad",
                "JVPTrace add_jaxvals add_tangents backward_pass defbilinear defjvp defjvp2 deflinear deflinear2 "
                "get_primitive_transpose jvp jvp_jaxpr linearize zeros_like_aval",
            ),
            *_names(
                "interpreters.batching",
                "batch_jaxpr_axes batch_subtrace bdim_at_front broadcast defbroadcasting defreducer defvectorized "
                "fancy_primitive_batchers unregister_vmappable zero_if_mapped",
            ),
            *_names(
                "interpreters.partial_eval",
                "DynamicJaxprTracer JaxprTracer abstract_eval_fun close_jaxpr convert_constvars_jaxpr "
                "custom_partial_eval_rules dce_jaxpr dce_jaxpr_call_rule dce_jaxpr_closed_call_rule dce_jaxpr_consts "
                "dce_rules lower_jaxpr lower_jaxpr2 move_binders_to_back new_eqn_recipe "
                "partial_eval_jaxpr_custom_rules partial_eval_jaxpr_nounits prune_closed_jaxpr_outputs "
                "trace_to_jaxpr_dynamic",
            ),
            *_names(
                "interpreters.pxla",
                "MeshComputation MeshExecutable are_hlo_shardings_equal array_mapping_to_axis_resources "
                "create_compile_options global_aval_to_result_handler global_avals_to_results_handler "
                "global_result_handlers is_hlo_sharding_replicated op_sharding_to_indices",
            ),
            *_names("interpreters.xla", "apply_primitive"),
        ),
        RULES,
    ),
    **dict.fromkeys(
        (
            *_names("extend.lowering", "JaxIrContext LoweringRuleContext upstream_dialects"),
            *_names("extend.xla", "PipelineStage clear_hlo_module_transformation register_hlo_module_transformation"),
            *_names("ffi", "abstract_token"),
            *_names(
                "interpreters.mlir",
                "AxisContext DEVICE_TO_DEVICE_TYPE LoweringParameters LoweringResult LoweringRuleContext ModuleContext "
                "RECV_FROM_HOST_TYPE SEND_TO_HOST_TYPE SPMDAxisContext ShapePolyLoweringState ShardingContext Token "
                "TokenSet aval_to_ir_types core_call_lowering dense_int_elements flatten_ir_types flatten_ir_values "
                "i32_attr i64_attr ir_attribute ir_constants ir_tree_registry ir_type_handlers jaxpr_subcomp "
                "lower_jaxpr_to_fun lower_jaxpr_to_module lowerable_effects make_ir_context merge_mlir_modules "
                "module_to_bytecode module_to_string register_constant_handler shape_tensor token_type "
                "unflatten_ir_values_like_types",
            ),
        ),
        IR_TOOLS,
    ),
    **dict.fromkeys(
        ("core.unsafe_am_i_under_a_vmap_DO_NOT_USE", "extend.core.unsafe_am_i_under_a_vmap_DO_NOT_USE"),
        "not recorded: a function that vmap stages is traced as one that grad stages",
    ),
    "interpreters.mlir.Mesh": "imported by JAX's module; `sharding.Mesh` is the class",
    "extend.backend.ifrt_proxy": "connects to devices of another host by a proxy of IFRT, which is not supported",
}


def installed_release() -> Path:
    """Return the folder that holds the installed jax."""
    spec = find_spec("jax")
    assert spec is not None and spec.origin is not None, "jax is not installed"
    return Path(spec.origin).parents[1]


def installed_names() -> set[str]:
    """Return the names of the installed JAX that are compared, such as "lax.exp"."""
    return _compared(map(".".join, public_names(read_release(installed_release()))))


def newer_names() -> set[str]:
    """Return the names of newer releases that are compared and the oldest supported JAX lacks."""
    return _compared(NEWER_NAMES.read_text().split())


def _compared(names: Iterable[str]) -> set[str]:
    """Return names without the leading `jax.`, but no primitives and no names of modules in `MODULES`."""
    names = (name.removeprefix("jax.") for name in names)
    return {name for name in names if not name.endswith("_p") and not reason_of_module(name)}


def reason_of_module(module: str) -> str:
    """Return why a module or one of its parents is missing; "" if it is not listed."""
    parts = module.split(".")
    return next((reason for end in range(len(parts)) if (reason := MODULES.get(".".join(parts[: end + 1])))), "")


def is_supported(name: str) -> bool:
    """Return whether Shardwise has a public name of JAX, in the module of the same name."""
    module, _, attribute = name.rpartition(".")
    return any(hasattr(home, attribute) for home in _homes(module))


@cache
def _homes(module: str) -> list[ModuleType]:
    """Return the modules of Shardwise that `import jax.<module>` may give under `as_jax`."""
    homes = []
    for package in ("shardwise", "shardwise.jax_modules"):
        with suppress(ModuleNotFoundError):
            homes.append(importlib.import_module(f"{package}.{module}".rstrip(".")))
    return homes


def missing() -> set[str]:
    """Return the names that Shardwise lacks, of the installed JAX and of newer releases."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated names
        return {name for name in installed_names() | newer_names() if not is_supported(name)}


if __name__ == "__main__":
    for name in sorted(missing() - REASONS.keys()):
        print(name)
