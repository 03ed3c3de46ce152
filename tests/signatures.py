"""Compare the signatures of public callables with JAX's. `python -m tests.signatures` prints those that differ.

`PARAMETERS` and `EXCEPTIONS` list those that may differ, with the reason.

Compared are the names, kinds and defaults of parameters, of every public function and class that both have. A default
that is a function or a marker for "not given" counts as equal to one of the same kind.
"""

import importlib
import inspect
import math
import warnings
from collections.abc import Collection, Iterator
from enum import Enum
from types import FunctionType, ModuleType
from typing import Any

from tests.listing import NAMESPACES, public

MODULES = (
    "",
    *NAMESPACES,
    *("sharding", "debug", "dlpack", "stages", "profiler", "monitoring", "distributed", "flatten_util"),
    *("custom_batching", "custom_derivatives", "ad_checkpoint", "core", "ref", "typing", "errors"),
    *("experimental", "experimental.sparse", "experimental.mesh_utils", "experimental.multihost_utils"),
    *("experimental.checkify", "experimental.pjit", "experimental.layout", "experimental.custom_partitioning"),
    *("experimental.custom_dce", "experimental.shard_map", "experimental.colocated_python"),
    *("example_libraries.stax", "example_libraries.optimizers"),
    *("extend.core", "extend.linear_util", "extend.source_info_util", "api_util"),
    *("interpreters.ad", "interpreters.batching", "interpreters.mlir", "interpreters.partial_eval"),
)
# Settings whose context manager is called without a value. JAX's default is a marker: `test_signatures.py` checks what
# it stands for.
SETTINGS_WITH_DEFAULT = (
    *(
        "allow_f16_reductions",
        "auto_pcast",
        "check_tracer_leaks",
        "debug_infs",
        "debug_key_reuse",
        "debug_nans",
        "enable_checks",
    ),
    *("enable_custom_prng", "enable_x64", "explain_cache_misses", "log_compiles", "no_execution", "no_tracing"),
    *("remove_size_one_mesh_axis_from_type", "softmax_custom_jvp", "thread_guard", "threefry_partitionable"),
)
SETTINGS_WITHOUT_DEFAULT = (
    *("array_garbage_collection_guard", "default_device", "default_matmul_precision", "default_prng_impl"),
    *("legacy_prng_key", "numpy_dtype_promotion", "numpy_rank_promotion", "transfer_guard_device_to_device"),
    *("transfer_guard_device_to_host", "transfer_guard_host_to_device"),
)
# Why a parameter is Shardwise's own, by keyword alone, or has another default than in JAX.
RENAMED_SIZES = "`axis_shapes` is called `axis_sizes` from JAX 0.11.1 on; either may be passed"
DECORATOR = "may be left out, to decorate a function: `@checkpoint(policy=...)`"
PARAMETERS: dict[tuple[str, str], str] = {
    ("experimental.sparse.random_bcoo", "dtype"): "`float` is the default float; JAX's is float64, which it makes that",
    **{(name, "new_val"): "JAX's marker stands for True" for name in SETTINGS_WITH_DEFAULT},
    **{(name, "new_val"): "a TypeError in JAX too, if it is not passed" for name in SETTINGS_WITHOUT_DEFAULT},
    ("checkpoint", "fun"): DECORATOR,
    ("remat", "fun"): DECORATOR,
    **dict.fromkeys(
        (
            *(("lax.erfc", "accuracy"), ("lax.top_k", "is_stable"), ("nn.one_hot", "out_sharding")),
            *(("lax.reduce_max", "out_sharding"), ("lax.reduce_min", "out_sharding")),
            *(("numpy.lexsort", "batch_size"), ("profiler.trace", "log_dir")),
        ),
        "as in JAX 0.12",
    ),
    ("make_mesh", "axis_shapes"): RENAMED_SIZES,
    ("make_mesh", "axis_names"): RENAMED_SIZES,
    ("make_mesh", "axis_sizes"): RENAMED_SIZES,
    ("sharding.ManualAxisType", "unreduced_kind"): "a parameter of JAX 0.11 and later",
    **{(name, "unreduced_kind"): "a parameter of JAX 0.11 and later" for name in ("P", "sharding.PartitionSpec")},
    ("remat", "static_argnames"): "as for checkpoint",
    ("core.ShapedArray", "memory_space"): "None stands for JAX's MemorySpace.Device",
    ("debug.inspect_array_sharding", "callback"): "prints the sharding if it is left out",
    ("debug.visualize_sharding", "sharding"): "may be left out if the first argument is an array",
    ("debug.visualize_sharding", "console"): "where to print",
    ("distributed.initialize", "peer_timeout"): "the time limit of a process that does not answer",
    ("experimental.sparse.BCOO", "shape"): "may be left out for a dense array",
}
# Why a signature differs altogether.
BY_THE_LIBRARY = "made by the library, and not by users"
EXCEPTIONS: dict[str, str] = {
    **dict.fromkeys(
        ("Ref", "Shard", "ref.Ref", "core.AbstractValue", "core.Tracer", "experimental.checkify.Error"), BY_THE_LIBRARY
    ),
    **dict.fromkeys(
        (f"stages.{name}" for name in ("ArgInfo", "Compiled", "Lowered", "Traced", "Wrapped")), BY_THE_LIBRARY
    ),
    **dict.fromkeys(("interpreters.ad.JVPTracer", "interpreters.ad.UndefinedPrimal"), BY_THE_LIBRARY),
    **dict.fromkeys(("interpreters.partial_eval.PartialVal", "extend.linear_util.WrappedFun"), BY_THE_LIBRARY),
    "extend.core.ClosedJaxpr": "may keep the program that it was made of",
    "numpy.array": "JAX has `*args` for copy, order and ndmin by position, which it deprecates",
    "numpy.set_printoptions": "it is NumPy's function, which JAX's calls",
    "example_libraries.optimizers.Array": "abstract; `Array()` is an error in both",
    **dict.fromkeys(
        ("extend.linear_util.transformation", "extend.linear_util.transformation_with_aux"),
        "JAX's function is curried: it is a decorator of generators too",
    ),
    "api_util.debug_info": "accepts everything, and returns None",
    "api_util.flatten_fun": "JAX's decorator of it adds options for its own use",
    "api_util.flatten_fun_nokwargs": "JAX's decorator of it adds options for its own use",
}

Parameters = list[tuple[str, str, Any]]  # name, kind, default
_PLAIN = (type(None), bool, int, float, complex, str, tuple, frozenset, dict, type)


def modules() -> Iterator[tuple[str, ModuleType, ModuleType]]:
    """Yield the name below the package, the module of JAX and ours, of each public module that both have."""
    for name in MODULES:
        suffix = f".{name}" if name else ""
        for package in ("shardwise", "shardwise.jax_modules"):
            try:
                yield name, importlib.import_module(f"jax{suffix}"), importlib.import_module(f"{package}{suffix}")
            except ModuleNotFoundError:
                continue
            break


def callables() -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, JAX's callable and ours, for each public callable that both have."""
    for module, theirs, ours in modules():
        for name in public(theirs):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # deprecated names
                pair = getattr(theirs, name, None), getattr(ours, name, None)
            if all(map(callable, pair)):
                yield f"{module}.{name}".lstrip("."), *pair


def parameters(function: Any) -> Parameters | None:
    """Return the name, kind and default of each parameter; None if Python cannot tell."""
    try:
        found = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return None
    return [(p.name, p.kind.name, _comparable(p.default)) for p in found]


def _comparable(default: Any) -> Any:
    """Return a default as a value that can be compared across libraries."""
    if isinstance(default, type) and default is not inspect.Parameter.empty:
        return f"<class {default.__name__}>"
    if isinstance(default, frozenset):
        return frozenset(map(_comparable, default))
    if isinstance(default, Enum):
        return default.name
    if isinstance(default, float) and math.isnan(default):
        return "nan"
    if isinstance(default, _PLAIN):
        return default
    if isinstance(default, FunctionType):
        return "<function>"
    text = repr(default)
    is_marker = text.startswith("<") or "nspecified" in text or text == "Deprecated"
    return "<marker>" if is_marker else text.rpartition(".")[2]


def differences(excepted: Collection[tuple[str, str]] = PARAMETERS) -> dict[str, tuple[str, str]]:
    """Return JAX's signature and ours of each callable whose signatures differ, other than in excepted parameters."""
    differing = {}
    for name, theirs, ours in callables():
        expected = parameters(theirs)
        own = {parameter for function, parameter in excepted if function == name}
        if expected is not None and _without(own, parameters(ours), expected) != _without(own, expected, expected):
            differing[name] = str(inspect.signature(theirs)), _signature(ours)
    return differing


def _without(own: set[str], found: Parameters | None, expected: Parameters) -> Parameters | None:
    """Return parameters without those in `own` that JAX lacks, and without the defaults of the others in `own`."""
    in_jax = {name for name, _, _ in expected}
    return found and [
        (name, kind, None if name in own else default)
        for name, kind, default in found
        if name in in_jax or name not in own or kind != "KEYWORD_ONLY"
    ]


def _signature(function: Any) -> str:
    try:
        return str(inspect.signature(function))
    except (ValueError, TypeError):
        return "(no signature)"


if __name__ == "__main__":
    for name, (theirs, ours) in differences().items():
        if name not in EXCEPTIONS:
            print(f"{name}\n  JAX        {theirs}\n  Shardwise  {ours}")
