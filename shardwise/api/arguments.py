"""Helpers for arguments that are pytrees: names for error messages, and shardings given as tree prefixes."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast, final

from shardwise import tree
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct, struct
from shardwise.api.ref import Ref
from shardwise.api.transformations.float0 import flatten_hiding_float0, hide_float0
from shardwise.base.call_site import format_line
from shardwise.compiler.arrays.methods import is_array_like
from shardwise.compiler.arrays.operands import PYTHON_SCALARS, type_of
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.mesh import mesh_context
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import ShardingError
from shardwise.runtime.sharding import resolve_sharding


def function_name(function: Callable[..., Any]) -> str:
    """Return the `__name__` of a function, or the class name of another callable."""
    return str(getattr(function, "__name__", type(function).__name__))


def check_function(name: str, function: object) -> None:
    """Raise a TypeError if `function` is not callable; `name` is the transformation that received it."""
    if not callable(function) or isinstance(function, staticmethod):
        raise TypeError(f"{name} needs a function, not {function!r}")
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"{name} needs a function that returns arrays, not the generator function {function!r}")


def describe_function(function: Callable[..., Any]) -> str:
    """Return a function's name and source line for messages: "`train_step` (train.py:41)"."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    line = f" ({format_line(code.co_filename, code.co_firstlineno)})" if code is not None else ""
    return f"`{function_name(function)}`{line}"


def call_text(function: Callable[..., Any]) -> str:
    """Return a function's name and parameters for reprs, without annotations: "scale(x, factor=2.0)"."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables have no signature
        return f"{function_name(function)}(...)"
    bare = []
    for parameter in signature.parameters.values():
        is_short = parameter.default is None or isinstance(parameter.default, (*PYTHON_SCALARS, str, type))
        bare.append(parameter.replace(annotation=parameter.empty, default=parameter.default if is_short else ...))
    return f"{function_name(function)}{inspect.Signature(bare)}"


def argument_names(function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> list[str]:
    """Return a name for each leaf of the arguments, in the caller's notation: `batch['tokens']`."""
    roots = _positional_names(function, len(args))
    names = [name for arg, root in zip(args, roots, strict=True) for name in tree.leaf_names(arg, root)]
    for key in sorted(keywords):
        names += tree.leaf_names(keywords[key], key)
    return [f"`{name}`" for name in names]


def _positional_names(function: Callable[..., Any], count: int) -> list[str]:
    """Return the names of the first `count` positional arguments, those of `*args` as `args[0]`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some callables have no signature
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds][:count]
    variadic = next((each.name for each in parameters if each.kind is inspect.Parameter.VAR_POSITIONAL), None)
    rest = range(len(names), count)
    if variadic is None:
        return names + [f"argument {index}" for index in rest]
    return names + [f"{variadic}[{index - len(names)}]" for index in rest]


def array_leaves(
    function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any], abstract: bool = False
) -> tuple[list[Any], tree.Structure]:
    """Return the leaves of the arguments and their pytree structure.

    Every leaf must be an array or a number, or with `abstract` also a `ShapeDtypeStruct` or a type; otherwise a
    TypeError names the argument.
    """
    leaves, structure = flatten_hiding_float0((args, keywords))
    if abstract:
        leaves = [struct(leaf) if isinstance(leaf, ArrayType) else leaf for leaf in leaves]
    for index, leaf in enumerate(leaves):
        if not (is_array_like(leaf) or (abstract and isinstance(leaf, ShapeDtypeStruct))):
            name = argument_names(function, *hide_float0((args, keywords)))[index]
            if hasattr(leaf, "__jax_array__") and not isinstance(leaf, Ref):
                raise ValueError(
                    f"argument {name} of {describe_function(function)} is of type {type(leaf).__name__}, which has a "
                    "method `__jax_array__`. A traced function does not call it: pass `numpy.asarray(x)`, or register "
                    "the type as a pytree node."
                )
            raise TypeError(
                f"argument {name} of {describe_function(function)} is {leaf!r} of type {type(leaf).__name__}: "
                f"the arguments of a traced function must be pytrees of arrays and numbers.\n{_leaf_advice(leaf, name)}"
            )
    return leaves, structure


def _leaf_advice(leaf: object, name: str) -> str:
    """Return what to write instead of an argument that is not an array; `name` is its quoted name."""
    class_name = type(leaf).__name__
    if isinstance(leaf, Ref):
        return "  Let the function close over the Ref, or pass its array, `ref[...]`."
    static = f"static_argnames={name.strip('`')!r}" if name.strip("`").isidentifier() else "static_argnames"
    make_static = f"make the argument static with {static} of jit, or bind it with `functools.partial`"
    if isinstance(leaf, (str, bytes, type)) or type(leaf).__module__ == "builtins":
        return f"  If it is a setting, {make_static}."
    method = "" if name != "`self`" else f", which is how a jitted method gets the arrays of its {class_name}"
    return (
        f"  Register {class_name} as a pytree, with `tree_util.register_dataclass` or "
        f"`tree_util.register_pytree_node_class`{method};\n  or {make_static}."
    )


@final
class _ReplicatedOnCurrentMesh:
    """None in the shardings of `pjit`: replicated on the current mesh; without one, nothing is requested."""

    def __repr__(self) -> str:
        return "None"


REPLICATED_ON_CURRENT_MESH = _ReplicatedOnCurrentMesh()


def _is_sharding(x: object) -> bool:
    return x is None or isinstance(x, (Sharding, PartitionSpec))


def check_sharding_leaves(shardings: object, parameter: str) -> None:
    """Raise a TypeError if a tree of shardings, passed as `parameter`, holds something else."""
    for leaf in tree.leaves(shardings, is_leaf=_is_sharding):
        if not _is_sharding(leaf) and leaf is not REPLICATED_ON_CURRENT_MESH:
            raise TypeError(f"{parameter} must hold shardings, such as NamedSharding(mesh, spec), not {leaf!r}")


def broadcast_shardings(
    shardings: object,
    arguments: object,
    parameter: str,
    function: Callable[..., Any],
    types: Sequence[ArrayType],
    names: Sequence[str],
) -> tuple[Sharding | None, ...]:
    """Broadcast a tree prefix of shardings to the leaves of `arguments`; None leaves a leaf's sharding open.

    `parameter` is the keyword that the user passed `shardings` as; `types` and `names` describe the leaves.
    """
    if shardings is None:
        return (None,) * len(types)
    try:
        per_leaf = tree.broadcast_prefix(shardings, arguments, _is_sharding)
    except tree.TreeMismatch as mismatch:
        raise ShardingError(f"jit of {describe_function(function)}: {prefix_error(mismatch, parameter)}") from None
    checked: list[Sharding | None] = []
    for sharding, type, name in zip(per_leaf, types, names, strict=True):
        try:
            checked.append(_check_sharding(sharding, parameter, type))
        except ShardingError as error:
            raise ShardingError(
                f"cannot shard {name} of {describe_function(function)}.\n  {type} with {error}"
            ) from None
    return tuple(checked)


def prefix_error(mismatch: tree.TreeMismatch, parameter: str) -> str:
    """Return the error text for a tree prefix that does not match the arguments or the results.

    `parameter` is the keyword that it was passed as: `in_axes` belongs to the arguments, `out_axes` to the results.
    """
    side = "results" if parameter.startswith("out_") else "arguments"
    return f"{parameter} must be a tree prefix of the {side}.\n  {describe_mismatch(mismatch, parameter)}"


def describe_mismatch(mismatch: tree.TreeMismatch, parameter: str) -> str:
    """Describe where the tree prefix passed as `parameter` differs from the arguments or the results."""
    difference = mismatch.difference
    path = parameter + tree.keystr(difference.path)
    if parameter.startswith("out_"):
        if difference.second_is_leaf:  # a placeholder for the result
            difference = replace(difference, second="one array")
        return difference.of_prefix(path, "the results")
    text = difference.of_prefix(path, "the arguments")
    if difference.path:
        return text
    return f"{text}\n  Write a tuple with one entry per positional argument, or a single entry for all of them."


def _check_sharding(sharding: object, parameter: str, type: ArrayType) -> Sharding | None:
    """Return a user's sharding as a `Sharding`; a bare PartitionSpec, and an abstract mesh, mean the current mesh."""
    if sharding is REPLICATED_ON_CURRENT_MESH:
        sharding = None if mesh_context.mesh is None else PartitionSpec()
    resolved = resolve_sharding(sharding, parameter)
    if resolved is None:
        return None
    resolved.check_compatible_aval(type.shape)
    resolved.check_even(type.shape)
    return cast(Sharding, resolved)


def leaf_types(leaves: Sequence[Any]) -> tuple[ArrayType, ...]:
    """Return the types of arrays and numbers."""
    return tuple(type_of(leaf) for leaf in leaves)
