"""Arguments as trees of arrays: their names in messages, and shardings given for them as tree prefixes."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from shardwise import tree
from shardwise.api.shape_dtype_struct import ShapeDtypeStruct
from shardwise.compiler.arrays.methods import is_array_like
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import ShardingError
from shardwise.runtime.sharding import Sharding, sharding_in_force


def function_name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def check_function(name: str, function: Any) -> None:
    """Refuse what cannot be called; `name` is what was given it."""
    if not callable(function):
        raise TypeError(f"{name} needs a function, not {function!r}")


def describe_function(function: Callable[..., Any]) -> str:
    """`train_step` (train.py:41)."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    where = f" ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})" if code is not None else ""
    return f"`{function_name(function)}`{where}"


def argument_names(function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> list[str]:
    """How the user's program would name each array among the arguments: `batch['tokens']`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some callables have no signature
        parameters = []
    names: list[str] = []
    for number, arg in enumerate(args):
        root = f"argument {number}"
        if parameters:
            parameter = parameters[min(number, len(parameters) - 1)]
            variadic = parameter.kind is inspect.Parameter.VAR_POSITIONAL
            root = f"{parameter.name}[{number - len(parameters) + 1}]" if variadic else parameter.name
        names += tree.leaf_names(arg, root)
    for key in sorted(keywords):
        names += tree.leaf_names(keywords[key], key)
    return [f"`{name}`" for name in names]


def array_leaves(
    function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any], abstract: bool = False
) -> tuple[list[Any], tree.Structure]:
    """The arrays and numbers among the arguments, in order; anything else is an error that names the argument.

    `abstract`: also what stands for an array.
    """
    leaves, structure = tree.flatten((args, keywords))
    for number, leaf in enumerate(leaves):
        if not (is_array_like(leaf) or (abstract and isinstance(leaf, ShapeDtypeStruct))):
            name = argument_names(function, args, keywords)[number]
            raise TypeError(
                f"argument {name} of {describe_function(function)} is {leaf!r} of type {type(leaf).__name__}: "
                "a traced function takes arrays and numbers, in tuples, lists, dicts and None"
            )
    return leaves, structure


def broadcast_shardings(
    shardings: Any,
    arguments: Any,
    what: str,
    function: Callable[..., Any],
    types: Sequence[ArrayType],
    names: Sequence[str],
) -> tuple[Sharding | None, ...]:
    """For each array in `arguments`, the sharding that a tree prefix of shardings gives it (None: not given)."""
    if shardings is None:
        return (None,) * len(types)

    def is_leaf(x: Any) -> bool:
        return x is None or isinstance(x, (Sharding, PartitionSpec))

    try:
        spread = tree.broadcast_prefix(shardings, arguments, is_leaf)
    except tree.TreeMismatch as mismatch:
        raise ShardingError(
            f"{what} of {describe_function(function)} do not fit.\n  {describe_mismatch(mismatch, what)}"
        ) from None
    found: list[Sharding | None] = []
    for given, type, name in zip(spread, types, names, strict=True):
        try:
            found.append(_checked(given, what, type))
        except ShardingError as error:
            raise ShardingError(
                f"cannot shard {name} of {describe_function(function)}.\n  {type} with {error}"
            ) from None
    return tuple(found)


def describe_mismatch(mismatch: tree.TreeMismatch, what: str) -> str:
    """Where a tree prefix `what`, such as in_axes, does not fit the arguments or the results that it is given for."""
    difference = mismatch.difference
    place = what + tree.keystr(difference.path)
    if what.startswith("out_"):
        if difference.second_is_leaf:  # something that stands for a result
            difference = replace(difference, second="one array")
        return difference.of_prefix(place, "the results")
    text = difference.of_prefix(place, "the arguments")
    if difference.path:
        return text
    return f"{text}\n  Give a tuple with one entry for each positional argument, or one entry for all of them."


def _checked(given: Any, what: str, type: ArrayType) -> Sharding | None:
    """The sharding that is given; a bare spec is for the mesh in force."""
    sharding = sharding_in_force(given, what) if isinstance(given, PartitionSpec) else given
    if sharding is None:
        return None
    if not isinstance(sharding, Sharding):
        raise TypeError(f"{what}: needs shardings, such as NamedSharding(mesh, spec), not {sharding!r}")
    sharding.pin(type.shape)
    return sharding


def leaf_types(leaves: Sequence[Any]) -> tuple[ArrayType, ...]:
    return tuple(type_of(leaf) for leaf in leaves)
