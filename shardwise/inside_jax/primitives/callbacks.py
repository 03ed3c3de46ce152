"""Calls of Python functions on the host.

JAX calls the function as it does without Shardwise. On a mesh, it is called once, with replicated operands; inside
`jax.shard_map`, once per device.
"""

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.control.callback import Callback
from shardwise.compiler.ir.op import NumpyArray
from shardwise.compiler.ir.types import ArrayType
from shardwise.inside_jax import _jax, translate


@final
class _HostFunction:
    """The function of a callback, which JAX's implementation of the primitive calls."""

    def __init__(self, name: str, implementation: Callable[..., Any], params: dict[str, Any]):
        self.name = name
        self._implementation, self._params = implementation, params

    def __call__(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        results = self._implementation(*operands, **self._params)
        return tuple(map(np.asarray, _jax.jax.tree.leaves(results)))


_KINDS = {False: "watch", True: "ordered_watch"}


def _types(avals: Sequence[Any]) -> tuple[ArrayType, ...]:
    return tuple(map(translate.array_type, avals))


def _pure_callback(*operands: Array, **params: Any) -> Any:
    function = _HostFunction("pure_callback", _jax.pure_callback_impl, params)
    return Callback(function, _types(params["result_avals"]), "pure")(*operands)


def _io_callback(*operands: Array, **params: Any) -> Any:
    function = _HostFunction("io_callback", _jax.io_callback_impl, params)
    return Callback(function, _types(params["result_avals"]), "ordered" if params["ordered"] else "unordered")(
        *operands
    )


def _debug_callback(*operands: Array, **params: Any) -> Any:
    is_ordered = isinstance(params["effect"], _jax.OrderedDebugEffect)
    function = _HostFunction("debug_callback", _jax.debug_callback_impl, params)
    return Callback(function, (), _KINDS[is_ordered], partitioned=params["partitioned"])(*operands)


def _debug_print(*operands: Array, **params: Any) -> Any:
    function = _HostFunction("debug_print", _jax.debug_print_impl, params)
    return Callback(function, (), _KINDS[params["ordered"]], partitioned=params["partitioned"])(*operands)


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "debug_callback": _debug_callback,
    "debug_print": _debug_print,
    "io_callback": _io_callback,
    "pure_callback": _pure_callback,
}
