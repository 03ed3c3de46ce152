"""jax.ffi: calls of compiled functions that are registered with XLA's foreign function interface."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.api.callbacks.callback import VMAP_METHODS
from shardwise.base import _jaxlib
from shardwise.base.unsupported import set_unsupported_names
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.compiler.control.ffi_call import FfiCall
from shardwise.compiler.ir.mlir_string import attribute_name, mlir_string
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.lower.hlo import element_type
from shardwise.compiler.trace.build import rewrite
from shardwise.errors import UnsupportedError
from shardwise.experimental.sharding_rule import factor_rule, parse_rule_and_options
from shardwise.typing import ArrayLike

_VMAP_METHODS = {**VMAP_METHODS, None: ""}  # as in JAX, one slice at a time by default
_PLATFORMS = {"cpu": "cpu", "host": "cpu", "gpu": "CUDA", "cuda": "CUDA", "rocm": "ROCM"}
_batch_partitionable: set[str] = set()


def ffi_call(
    target_name: str,
    result_shape_dtypes: Any,
    *,
    has_side_effect: bool = False,
    vmap_method: str | None = None,
    input_layouts: Sequence[Any] | None = None,
    output_layouts: Any = None,
    input_output_aliases: Mapping[int, int] | None = None,
    custom_call_api_version: int = 4,
    legacy_backend_config: str | None = None,
    sharding_rule: str | tuple[str, Mapping[str, Any]] | None = None,
) -> Callable[..., Any]:
    """Return a function that calls a registered target.

    Without a sharding rule, every device calls the target with whole arrays. With one, each calls it with its shards.

    Args:
        target_name: the name that `register_ffi_target` registered.
        result_shape_dtypes: the shape and dtype of the result, such as a `ShapeDtypeStruct`; or a sequence of these for
            several results.
        has_side_effect: whether the target is called even if nothing uses its results.
        vmap_method: how to map the call under `vmap`, as in `pure_callback`; None is "sequential".
        input_layouts: for each operand, its dims from major to minor; None for row-major.
        output_layouts: the same for the result, or for each of several.
        input_output_aliases: for an operand, the result that reuses its buffer.
        custom_call_api_version: 4, the typed interface.
        legacy_backend_config: not supported.
        sharding_rule: a rule such as "b k -> b k", or a tuple of a rule and a dict of its options, such as
            `{"need_replication_factors": ("k",)}`, as in `custom_partitioning`. JAX has no such parameter.

    Returns:
        A function of arrays, and of keywords that become attributes of the call: booleans, numbers, strings, arrays of
        numbers, and dicts of these. A Python integer has 64 bits, and a Python float is a double; pass
        `np.float32(x)` for others.

    Raises:
        TypeError: if an argument is of a wrong type.
        ValueError: if a layout, an alias, `vmap_method` or `sharding_rule` is wrong.
        UnsupportedError: if `custom_call_api_version` is not 4, or there is a `legacy_backend_config`.

    Example:
        >>> jax.ffi.ffi_call("rms_norm", jax.ShapeDtypeStruct((8,), jnp.float32))(x, eps=1e-5)  # doctest: +SKIP
    """
    if not isinstance(target_name, str):
        raise TypeError(f"ffi_call: the name of a target must be a string, not {target_name!r}")
    if custom_call_api_version != 4 or legacy_backend_config is not None:
        raise UnsupportedError(
            f"ffi_call: {target_name!r} uses an older interface of custom calls; register a handler of the typed "
            "interface (api_version=1), and pass attributes as keywords"
        )
    if vmap_method not in _VMAP_METHODS:
        known = ", ".join(map(repr, _VMAP_METHODS))
        raise ValueError(f"ffi_call: vmap_method must be one of {known}, not {vmap_method!r}")
    several = isinstance(result_shape_dtypes, Sequence)
    results = tuple(map(_result_type, result_shape_dtypes if several else (result_shape_dtypes,)))
    result_layouts = output_layouts if several or output_layouts is None else (output_layouts,)
    aliases = _aliases(input_output_aliases)

    def call(*args: ArrayLike, **attributes: object) -> Any:
        types = [type_of(x, "ffi_call") for x in args]
        for operand, result in aliases:
            if not (0 <= operand < len(types) and 0 <= result < len(results)):
                raise ValueError(f"ffi_call: alias {operand}: {result} names an operand or result that does not exist")
            if types[operand].plain != results[result].plain:
                raise ValueError(
                    f"ffi_call: operand {operand}, {types[operand]}, and result {result}, {results[result]}, cannot "
                    "share a buffer"
                )
        op = FfiCall(
            target_name,
            results,
            tuple((name, _attribute(name, value)) for name, value in sorted(attributes.items())),
            _layouts(input_layouts, len(types), "input_layouts"),
            _layouts(result_layouts, len(results), "output_layouts"),
            aliases,
            bool(has_side_effect),
            _VMAP_METHODS[vmap_method],
            _batch_dims([*types, *results]) if target_name in _batch_partitionable else 0,
        )
        if sharding_rule is not None:
            program = rewrite("ffi_call", types, op)
            op = replace(op, rule=factor_rule(parse_rule_and_options("ffi_call", sharding_rule), program, False))
        out = op(*(as_operand(x, "ffi_call") for x in args))
        return list(out) if several else out[0]

    return call


def _result_type(result: Any) -> ArrayType:
    if not (hasattr(result, "shape") and hasattr(result, "dtype")):
        raise TypeError(
            f"ffi_call: result_shape_dtypes has {result!r}, which has no shape and dtype. Use `ShapeDtypeStruct(shape, "
            "dtype)`, or a sequence of them for several results."
        )
    return ArrayType(tuple(result.shape), np.dtype(result.dtype))


def _aliases(aliases: Mapping[int, int] | None) -> tuple[tuple[int, int], ...]:
    found = {} if aliases is None else aliases
    if not isinstance(found, Mapping) or not all(isinstance(index, int) for pair in found.items() for index in pair):
        raise TypeError(
            "ffi_call: input_output_aliases must be a dict from the index of an operand to the index of a result, not "
            f"{aliases!r}"
        )
    return tuple(sorted(found.items()))


def _layouts(layouts: Sequence[Any] | None, count: int, parameter: str) -> tuple[tuple[int, ...] | None, ...]:
    if layouts is None:
        return ()
    if not isinstance(layouts, Sequence):
        raise TypeError(f"ffi_call: {parameter} must be a sequence with a layout for each array, not {layouts!r}")
    if len(layouts) != count:
        raise ValueError(f"ffi_call: {parameter} has {len(layouts)} layouts for {count} arrays")
    orders = [getattr(layout, "major_to_minor", layout) for layout in layouts]
    for order in orders:
        if order is not None and not (
            isinstance(order, Sequence) and all(isinstance(dim, (int, np.integer)) for dim in order)
        ):
            raise TypeError(
                f"ffi_call: {parameter} has {order!r}. A layout lists the dims of an array from major to minor, or is "
                "None for row-major; for a single result, pass its layout alone."
            )
    return tuple(None if order is None else tuple(map(int, order)) for order in orders)


def _batch_dims(types: Sequence[ArrayType]) -> int:
    """Return the number of leading dims that all arrays share, without the last dim of those with the highest rank."""
    count = 0
    for sizes in zip(*(type.shape for type in types), strict=False):
        if len(set(sizes)) > 1:
            break
        count += 1
    return min(count, max((type.ndim for type in types), default=1) - 1) if count else 0


def _attribute(name: str, value: object) -> str:
    """Return the value of an attribute in MLIR syntax."""
    if isinstance(value, str):
        return mlir_string(value)
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"ffi_call: the dict of attribute {name} has the key {wrong[0]!r}: keys must be strings")
        items = [f"{attribute_name(key)} = {_attribute(key, item)}" for key, item in sorted(value.items())]
        return "{" + ", ".join(items) + "}"
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"ffi_call: attribute {name} must be a boolean, a number, a string, an array or a dict, not {value!r}"
        )
    if array.dtype.kind == "b":
        texts = [str(bool(item)).lower() for item in array.reshape(-1)]
    elif array.dtype.kind == "f":
        bits = array.reshape(-1).view(f"u{array.dtype.itemsize}")
        texts = [f"0x{int(item):0{2 * array.dtype.itemsize}X}" for item in bits]
    else:
        texts = [str(int(item)) for item in array.reshape(-1)]
    element = "i1" if array.dtype.kind == "b" else element_type(array.dtype)
    if not array.ndim:
        return texts[0] if array.dtype.kind == "b" else f"{texts[0]} : {element}"
    if array.ndim == 1 and array.dtype.kind != "u":
        return f"array<{element}{': ' + ', '.join(texts) if texts else ''}>"
    raise TypeError(
        f"ffi_call: attribute {name} must have at most one dim, and signed integers or floats, not {value!r}"
    )


def register_ffi_target(name: str, fn: Any, platform: str = "cpu", api_version: int = 1, **kwargs: Any) -> None:
    """Register a compiled function, a handler of XLA's foreign function interface.

    Args:
        name: the name of the target, for `ffi_call`.
        fn: a capsule with the address of the handler (`pycapsule`), or a dict of them by stage, such as "execute".
        platform: "cpu", "cuda" or "rocm".
        api_version: 1, the typed interface.
        kwargs: further arguments of jaxlib's registration.

    Raises:
        TypeError: if `name` is not a string, or `fn` is neither a capsule nor a dict.
        ValueError: if the platform is unknown.
        UnsupportedError: if `api_version` is not 1.

    Example:
        >>> library = ctypes.cdll.LoadLibrary("librms.so")  # doctest: +SKIP
        >>> jax.ffi.register_ffi_target("rms_norm", jax.ffi.pycapsule(library.RmsNorm))  # doctest: +SKIP
    """
    if not isinstance(name, str):
        raise TypeError(f"register_ffi_target: the name of a target must be a string, not {name!r}")
    if api_version != 1:
        raise UnsupportedError(f"register_ffi_target: {name!r} has api_version {api_version}; 1 is supported")
    platform_name = _platform("register_ffi_target", platform)
    if fn is None or callable(fn) or isinstance(fn, (int, str)):
        raise TypeError(
            f"register_ffi_target: the handler of {name!r} must be a capsule, `pycapsule(library.Handler)`, or a dict "
            f"of capsules, not {fn!r}"
        )
    _jaxlib.register_target(name, fn, platform_name, **kwargs)


def register_ffi_type_id(name: str, obj: Any, platform: str = "cpu") -> None:
    """Register the id of a type that a stateful handler keeps.

    Args:
        name: the name of the type.
        obj: a capsule with the address of the id, or a dict of capsules that jaxlib accepts.
        platform: "cpu", "cuda" or "rocm".

    Raises:
        ValueError: if the platform is unknown.

    Example:
        >>> jax.ffi.register_ffi_type_id("counter", library_types()["id"])  # doctest: +SKIP
    """
    _jaxlib.register_type(name, obj, _platform("register_ffi_type_id", platform))


def register_ffi_type(name: str, type_registration: Any, platform: str = "cpu") -> None:
    """Register a type that a stateful handler keeps.

    Args:
        name: the name of the type.
        type_registration: the registration, a dict of capsules.
        platform: "cpu", "cuda" or "rocm".

    Raises:
        ValueError: if the platform is unknown.

    Example:
        >>> jax.ffi.register_ffi_type("counter", library_types())  # doctest: +SKIP
    """
    _jaxlib.register_type(name, type_registration, _platform("register_ffi_type", platform))


def _platform(function: str, platform: str) -> str:
    if not isinstance(platform, str) or platform.lower() not in _PLATFORMS:
        raise ValueError(f"{function}: platform must be 'cpu', 'cuda' or 'rocm', not {platform!r}")
    return _PLATFORMS[platform.lower()]


def register_ffi_target_as_batch_partitionable(name: str) -> None:
    """Let calls of a target be sharded along the leading dims that all its operands and results share.

    The last dim of the arrays of the highest rank is not sharded: a call for rows `[..., D]` gets whole rows. If arrays
    share further dims that the target does not compute one by one, as the matrices of a solver do, pass a
    `sharding_rule` to `ffi_call` instead.

    Args:
        name: the name of the target.

    Raises:
        TypeError: if `name` is not a string.

    Example:
        >>> jax.ffi.register_ffi_target_as_batch_partitionable("rms_norm")
    """
    if not isinstance(name, str):
        raise TypeError(
            f"register_ffi_target_as_batch_partitionable: the name of a target must be a string, not {name!r}"
        )
    _batch_partitionable.add(name)


def include_dir() -> str:
    """Return the folder with the header files of XLA's foreign function interface, which jaxlib contains.

    Example:
        >>> os.path.exists(os.path.join(jax.ffi.include_dir(), "xla/ffi/api/ffi.h"))
        True
    """
    return str(Path(_jaxlib.folder()) / "include")


def pycapsule(funcptr: Any) -> Any:
    """Return the address of a function of a library, loaded by `ctypes`, as a capsule.

    Args:
        funcptr: the function.

    Raises:
        TypeError: if it is a number or a string, which `ctypes` would take for an address.

    Example:
        >>> jax.ffi.pycapsule(ctypes.cdll.LoadLibrary("librms.so").RmsNorm)  # doctest: +SKIP
    """
    if funcptr is None or isinstance(funcptr, (int, str, bytes)):
        raise TypeError(f"pycapsule: expected a function of a library that ctypes has loaded, not {funcptr!r}")
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(ctypes.cast(funcptr, ctypes.c_void_p), None, None)


set_unsupported_names(
    __name__,
    ["build_ffi_lowering_function", "ffi_lowering"],
    "Call the target with `ffi_call`.",
    supported=[
        "ffi_call",
        "include_dir",
        "pycapsule",
        "register_ffi_target",
        "register_ffi_target_as_batch_partitionable",
        "register_ffi_type",
        "register_ffi_type_id",
    ],
)
