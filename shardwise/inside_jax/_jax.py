"""The real jax: the only module that imports it, with every private name of JAX that the package needs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import update_wrapper
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple, final

import jax
from jax import Array, ShapeDtypeStruct, typeof
from jax._src import core, pjit, source_info_util, stages
from jax._src.array import ArrayImpl
from jax._src.callback import io_callback_impl, pure_callback_impl
from jax._src.debugging import OrderedDebugEffect, debug_callback_impl, debug_print_impl
from jax._src.effects import lowerable_effects, ordered_effects
from jax._src.interpreters import partial_eval, pxla
from jax._src.interpreters.batching import AxisData
from jax._src.interpreters.mlir import _lowerings, _platform_specific_lowerings, merge_mlir_modules
from jax._src.lax.linalg import initialize_lapack
from jax._src.lib import _jax as _jaxlib
from jax._src.lib import gpu_solver
from jax._src.lib.mlir.dialects import func, hlo
from jax._src.mesh import get_concrete_mesh
from jax._src.pjit import (
    _get_fastpath_data,
    _infer_params,
    _need_to_rebuild_with_fdo,
    _run_python_pjit,
    convert_to_metaty,
)
from jax._src.random.prng import KeyTy, PRNGImpl
from jax._src.sharding_impls import UnspecifiedValue
from jax._src.source_info_util import Scope
from jax._src.traceback_util import api_boundary
from jax._src.tree_util import dispatch_registry, tree_unflatten
from jax.core import ShapedArray
from jax.experimental.custom_partitioning import SdyShardingRule
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jax.interpreters.mlir import LoweringRuleContext
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from shardwise.base._jaxlib import PERTURBED_SOLVE, record_tracebacks
from shardwise.base.blas_threads import run_blas_in_calling_thread
from shardwise.base.caches import registered_cache

__all__ = [
    "AbstractMesh",
    "Array",
    "AxisData",
    "ClosedJaxpr",
    "Jaxpr",
    "JaxprEqn",
    "KeyTy",
    "Literal",
    "LoweringRuleContext",
    "Mesh",
    "NamedSharding",
    "OrderedDebugEffect",
    "PRNGImpl",
    "PartitionSpec",
    "PlannedFunction",
    "Primitive",
    "Scope",
    "SdyShardingRule",
    "ShapeDtypeStruct",
    "ShapedArray",
    "Sharding",
    "SingleDeviceSharding",
    "UnspecifiedValue",
    "Var",
    "ad",
    "batching",
    "core",
    "debug_callback_impl",
    "debug_print_impl",
    "decompose",
    "discharge_refs",
    "dtypes_of",
    "func",
    "get_concrete_mesh",
    "has_lowering",
    "hlo",
    "initialize_libraries",
    "io_callback_impl",
    "is_of_library",
    "jax",
    "jaxpr_as_fun",
    "lower_high_types",
    "lowerable_effects",
    "merge_mlir_modules",
    "mlir",
    "ordered_effects",
    "partial_eval",
    "pure_callback_impl",
    "tensor_types",
    "trace_call",
    "typeof",
    "user_line",
    "watch_runs",
    "watched_calls",
]


record_tracebacks(True)  # creating devices of Shardwise turns them off, and the lines of equations need them
source_info_util.register_exclusion(str(Path(__file__).parent))  # frames of this package are no lines of the user

# The block of a `comm_budget` that watches every call of planned functions; None outside.
watched_calls = jax.make_user_context(None)


def lower_high_types(closed: Any) -> Any:
    """Return a jaxpr in which primitives with rules of their own, as `lax.custom_root` since JAX 0.11, are lowered."""
    return partial_eval.lower_jaxpr2(closed) if closed.jaxpr.is_high else closed


def discharge_refs(closed: Any) -> Any:
    """Return a jaxpr without the Refs that it creates: reads and writes become operations on arrays."""
    uses_refs = any(isinstance(effect, core.InternalMutableArrayEffect) for effect in closed.effects)
    return pxla._discharge_internal_refs(closed) if uses_refs else closed


def decompose(eqn: Any) -> Any:
    """Return the jaxpr of a primitive's Python implementation; None if it is not a function of other primitives.

    Primitives of `jax.experimental.sparse` and of other libraries have such implementations.
    """

    def apply(*operands: Any) -> Any:
        return eqn.primitive.impl(*operands, **eqn.params)

    try:
        closed = jax.make_jaxpr(apply)(*(atom.aval for atom in eqn.invars))
    except Exception:  # the implementation needs concrete arrays, or there is none
        return None
    return None if eqn.primitive in _primitives(closed.jaxpr) else closed


def _primitives(jaxpr: Any) -> set[Any]:
    """Return the primitives of a jaxpr and of the jaxprs in it."""
    inner = (_primitives(each) for each in core.subjaxprs(jaxpr))
    return {eqn.primitive for eqn in jaxpr.eqns}.union(*inner)


def dtypes_of(jaxpr: Any) -> set[Any]:
    """Return the dtypes of the values in a jaxpr and in the jaxprs in it."""
    atoms = (*jaxpr.invars, *jaxpr.constvars, *(atom for eqn in jaxpr.eqns for atom in (*eqn.invars, *eqn.outvars)))
    dtypes = {atom.aval.dtype for atom in (*atoms, *jaxpr.outvars) if isinstance(atom.aval, ShapedArray)}
    return dtypes.union(*(dtypes_of(inner) for inner in core.subjaxprs(jaxpr)))


def has_lowering(primitive: object) -> bool:
    """Return whether JAX can lower a primitive on some platform."""
    tables = (_lowerings, *_platform_specific_lowerings.values())
    return any(primitive in table for table in tables)


def tensor_types(avals: Sequence[Any]) -> list[Any]:
    """Return the types of arrays in MLIR, which functions that return sharding rules expect."""
    with mlir.make_ir_context(), mlir.ir.Location.unknown():
        return [mlir.ir.RankedTensorType.get(aval.shape, mlir.dtype_to_ir_type(aval.dtype)) for aval in avals]


def initialize_libraries(text: str) -> None:
    """Initialize the libraries whose routines a module calls. JAX has registered the routines."""
    is_hybrid = "hybrid_" in text  # GPU routines that call LAPACK on the host
    if is_hybrid:
        gpu_solver.initialize_hybrid_kernels()
    if is_hybrid or "lapack_" in text or PERTURBED_SOLVE in text:
        initialize_lapack()
        if jax.local_device_count() > 1:
            run_blas_in_calling_thread()


Planner = Callable[[dict[str, Any], Sequence[Any], Sequence[str]], Any]


@final
class PlannedFunction:
    """A jitted function of JAX that runs other jaxprs.

    It wraps JAX's dispatcher, instead of setting attributes of it: JAX copies the attributes of a function to its
    transformations, so that `jax.jit(jax.grad(f)).lower` would be that of `f`.

    Args:
        jitted: what `jax.jit` returns.
        planned_params: returns the parameters to run instead, for those of a call, its flat arguments and their names.
        bind: returns the results of a call with tracers among its arguments.
        check_donated: raises an error for donated arguments that would end the process.
    """

    def __init__(self, jitted: Any, planned_params: Planner, bind: Planner, check_donated: Planner):
        fun, info = jitted._fun, jitted._jit_info
        update_wrapper(self, fun)
        self._fun, self._jit_info, self._planned_params = fun, info, planned_params
        self._donates = bool(info.donate_argnums or info.donate_argnames)
        self._check_donated = check_donated

        def cache_miss(*args: object, **kwargs: object) -> tuple[Any, Any, bool]:
            p, args_flat = _infer_params(fun, info, args, kwargs)
            if _is_traced(args_flat):
                return tree_unflatten(p.out_tree, bind(p.params, args_flat, p.arg_names)), None, False
            p = p._replace(params=planned_params(p.params, args_flat, p.arg_names))
            outs, out_flat, out_tree, args_flat, jaxpr, executable, profiler, consts = _run_python_pjit(
                p, args_flat, fun, args, kwargs
            )
            if watched_calls.value is not None:  # every call must come here
                return outs, None, False
            fast = _get_fastpath_data(
                executable, out_tree, args_flat, out_flat, jaxpr.effects, jaxpr.consts, profiler, consts
            )
            return outs, fast, _need_to_rebuild_with_fdo(profiler)

        self._dispatcher = _jaxlib.pjit(
            getattr(fun, "__name__", str(fun)),
            fun,
            api_boundary(cache_miss),
            info.static_argnums,
            info.static_argnames,
            object(),  # the key of this function in the cache, which is its own
            dispatch_registry,
            pxla.cc_shard_arg,
            _jaxlib.PjitFunctionCache(capacity=4096),
        )

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if self._donates and _donation_errors_are_fatal() and _has_repeated_or_freed_arrays((args, kwargs)):
            p, args_flat = _infer_params(self._fun, self._jit_info, args, kwargs)
            if not _is_traced(args_flat):
                self._check_donated(p.params, args_flat, p.arg_names)
        return self._dispatcher(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Return the method of an object, if the function is defined in a class."""
        return self if instance is None else MethodType(self, instance)

    def trace(self, *args: object, **kwargs: object) -> Any:
        """Return JAX's `Traced` of the planned function."""
        p, args_flat = _infer_params(self._fun, self._jit_info, args, kwargs)
        params = self._planned_params(p.params, args_flat, p.arg_names)
        types = [convert_to_metaty(arg) for arg in args_flat]
        since_0_11 = (self._jit_info.fun_sourceinfo,) if "_fun_sourceinfo" in stages.Traced.__slots__ else ()
        return stages.Traced(types, params, p.in_tree, p.out_tree, p.consts, *since_0_11)

    def lower(self, *args: object, **kwargs: object) -> Any:
        """Return JAX's `Lowered` of the planned function."""
        return self.trace(*args, **kwargs).lower()

    def eval_shape(self, *args: object, **kwargs: object) -> Any:
        """Return the types of the results."""
        return self.trace(*args, **kwargs).out_info

    def clear_cache(self) -> None:
        """Forget the compiled programs."""
        self._dispatcher._clear_cache()


def _is_traced(args: Sequence[Any]) -> bool:
    """Return whether a call with these flat arguments is part of a function that JAX traces."""
    return not core.trace_state_clean() or any(isinstance(arg, core.Tracer) for arg in args)


@registered_cache(maxsize=1)
def _donation_errors_are_fatal() -> bool:
    """Return whether XLA ends the process, instead of raising an error, if a donated buffer is passed again."""
    return jax.default_backend() == "cpu" and jax.device_count() > 1


def _has_repeated_or_freed_arrays(arguments: Any) -> bool:
    """Return whether an array occurs twice in a pytree, or was deleted or donated."""
    arrays = [leaf for leaf in jax.tree.leaves(arguments) if type(leaf) is ArrayImpl]
    return len({*map(id, arrays)}) < len(arrays) or any(map(ArrayImpl.is_deleted, arrays))


@contextmanager
def watch_runs(on_run: Callable[[dict[str, Any], list[Any], tuple[str, ...], Any], None]) -> Iterator[None]:
    """Call `on_run(params, args, names, executable)` for every jitted function that JAX compiles in a block."""
    original = pjit._run_python_pjit

    def run(p: Any, args_flat: list[Any], *rest: Any) -> Any:
        results = original(p, args_flat, *rest)
        if core.trace_state_clean():
            on_run(p.params, args_flat, p.arg_names, results[5])
        return results

    pjit._run_python_pjit = run
    try:
        yield
    finally:
        pjit._run_python_pjit = original


def user_line(traceback: object) -> tuple[str, int, str] | None:
    """Return the file, the line and the function of the innermost frame of a user; None if there is none."""
    frame = source_info_util.user_frame(traceback)
    return None if frame is None else (frame.file_name, frame.start_line, frame.function_name)


def is_of_library(jaxpr: Any) -> bool:
    """Return whether a jaxpr is of a function that JAX itself defines, such as `jnp.cumsum`.

    JAX traces such a function once, so that its equations have the line of its first caller.
    """
    filename = jaxpr.debug_info.func_filename
    return filename is not None and not source_info_util.is_user_filename(filename)


class TracedCall(NamedTuple):
    """What JAX's `jit` has for one call.

    Attributes:
        params: the parameters, with the jaxpr and the requested shardings.
        args: the flat arguments: arrays, ShapeDtypeStructs and the constants of the jaxpr, which are first.
        names: the names of the arguments, without the constants.
        in_tree: the structure of the arguments: of a tuple and a dict.
        out_tree: the structure of the results.
    """

    params: dict[str, Any]
    args: list[Any]
    names: tuple[str, ...]
    in_tree: Any
    out_tree: Any


def trace_call(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> TracedCall:
    """Trace a function, jitted or not, with JAX."""
    jitted: Any = fun if isinstance(fun, (PlannedFunction, _jaxlib.PjitFunction)) else jax.jit(fun)
    p, args_flat = _infer_params(jitted._fun, jitted._jit_info, args, kwargs)
    return TracedCall(p.params, args_flat, p.arg_names, p.in_tree, p.out_tree)
