"""jax.api_util: functions of flat lists of arrays."""

from collections.abc import Callable, Iterable
from typing import Any

from shardwise import tree
from shardwise.base.missing_names import report_missing
from shardwise.extend.linear_util import WrappedFun
from shardwise.tree_util import PyTreeDef

__all__ = ["debug_info", "flatten_fun", "flatten_fun_nokwargs", "safe_map"]  # Distrax, Flax, Haiku, NumPyro


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
