"""jax.api_util: functions of flat lists of arrays."""

import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from shardwise import tree
from shardwise.base.missing_names import report_missing
from shardwise.extend.linear_util import WrappedFun
from shardwise.tree_util import PyTreeDef

__all__ = [
    "argnums_partial",  # NetKet
    "debug_info",  # NetKet, NumPyro
    "flatten_fun",  # Distrax, Flax, Haiku, NumPyro
    "flatten_fun_nokwargs",  # Distrax, Flax, Haiku, NumPyro
    "safe_map",  # Distrax, Flax, Haiku, NumPyro
]


def argnums_partial(
    f: WrappedFun, dyn_argnums: int | Sequence[int], args: Sequence[Any], require_static_args_hashable: bool = True
) -> tuple[WrappedFun, tuple[Any, ...]]:
    """Return the function of the arguments at `dyn_argnums`, with the others bound, and these arguments.

    Raises:
        ValueError: if `require_static_args_hashable` and a bound argument has no hash.
    """
    numbers = [operator.index(number) % len(args) for number in np.atleast_1d(dyn_argnums)]
    for index, arg in enumerate(args):
        if require_static_args_hashable and index not in numbers and not isinstance(arg, Hashable):
            raise ValueError(f"argument {index} of {f.__name__} is static and must have a hash, but is {arg!r}")

    def call(*dynamic: object, **keywords: object) -> Any:
        complete = list(args)
        for number, arg in zip(numbers, dynamic, strict=True):
            complete[number] = arg
        return f.call_wrapped(*complete, **keywords)

    return WrappedFun(call), tuple(args[number] for number in numbers)


def flatten_fun(function: WrappedFun, structure: PyTreeDef) -> tuple[WrappedFun, Callable[[], Any]]:
    """Return the function of the leaves of `(args, keywords)`, and a function that returns its result's structure."""
    return _flatten(function, structure.unflatten)


def flatten_fun_nokwargs(function: WrappedFun, structure: PyTreeDef) -> tuple[WrappedFun, Callable[[], Any]]:
    """Return the function of the leaves of `args`, and a function that returns its result's structure."""
    return _flatten(function, lambda leaves: (structure.unflatten(leaves), {}))


def _flatten(function: WrappedFun, arguments: Callable[[Any], Any]) -> tuple[WrappedFun, Callable[[], Any]]:
    out_tree: list[Any] = []

    def call(*leaves: object) -> list[Any]:
        args, keywords = arguments(leaves)
        results, result_structure = tree.flatten(function.call_wrapped(*args, **keywords))
        out_tree[:] = [result_structure]
        return results

    return WrappedFun(call), lambda: out_tree[0]


def safe_map(function: Callable[..., Any], *sequences: Iterable[Any]) -> list[Any]:
    """Return a list of results, for sequences of equal length."""
    return [function(*args) for args in zip(*sequences, strict=True)]


def debug_info(*args: object, **keywords: object) -> None:
    """Return None: programs know the user's lines without it."""


report_missing(__name__, __all__)
