"""Call host functions from a program: pure_callback, io_callback."""

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from shardwise import tree
from shardwise.api.arguments import array_leaves, describe_function, function_name
from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays.operands import PYTHON_SCALARS, as_operand
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.control.callback import Callback
from shardwise.compiler.ir.types import ArrayType
from shardwise.execute.traceback_filter import filter_traceback
from shardwise.typing import ArrayLike

Function = Callable[..., Any]
VMAP_METHODS = {  # for `Callback.vectorized`
    None: "unsupported",
    "sequential": "",
    "sequential_unrolled": "",
    "expand_dims": "expand_dims",
    "broadcast_all": "broadcast_all",
}


@final
class _HostFunction:
    """The user's function on flat lists of numpy arrays; checks the types of its results."""

    def __init__(
        self,
        function: Function,
        in_tree: tree.Structure,
        out_tree: tree.Structure | None,
        types: Sequence[ArrayType],
        vectorized: bool = False,
    ):
        self.function, self.in_tree, self.out_tree = function, in_tree, out_tree
        self.types, self.vectorized = types, vectorized

    @property
    def name(self) -> str:
        return function_name(self.function)

    def __call__(self, *operands: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        args, keywords = self.in_tree.unflatten(list(operands))
        result = self.function(*args, **keywords)
        if self.out_tree is None:
            return ()
        leaves, structure = tree.flatten(result)
        if result is None and not self.types:
            return ()  # a callback without results may return nothing
        if structure != self.out_tree:
            expected = self.out_tree.unflatten(list(self.types))
            difference = tree.first_difference(self.out_tree, expected, result) or structure
            raise TypeError(
                f"the result of the callback {describe_function(self.function)} has a different pytree structure than "
                f"result_shape_dtypes: {difference}"
            )
        return tuple(self._check_result(x, type) for x, type in zip(leaves, self.types, strict=True))

    def _check_result(self, x: ArrayLike, type: ArrayType) -> np.ndarray[Any, Any]:
        array = np.asarray(x, type.dtype) if isinstance(x, PYTHON_SCALARS) else np.asarray(x)
        shape = array.shape[len(array.shape) - type.ndim :] if self.vectorized else array.shape
        if shape != type.shape or array.dtype != type.dtype:
            raise TypeError(
                f"the callback {describe_function(self.function)} returned {array.dtype}{list(array.shape)}, but "
                f"result_shape_dtypes has {type}: convert the result, or change result_shape_dtypes"
            )
        return array


_CALLBACK = Family(
    {
        "callback": "the function of numpy arrays.",
        "result_shape_dtypes": "a pytree like the function's result, of objects with a `shape` and a `dtype`.",
        "*args": "pytrees of arrays, which `callback` receives as numpy arrays.",
        "sharding": Parameter("not supported; must be None.", "NotImplementedError: if {} is not None."),
        "**kwargs": "keyword arguments of `callback`.",
    },
    returns="The result of `callback`, as arrays.",
    raises=[
        "TypeError: if `callback` is not callable, if an argument is not an array, or if `result_shape_dtypes` holds\n"
        "something without a shape and a dtype; when the program runs, if the result has another type."
    ],
)


@filter_traceback
@documented(_CALLBACK, raises=["ValueError: if `vmap_method` is unknown."])
def pure_callback(
    callback: Function,
    result_shape_dtypes: object,
    *args: object,
    sharding: None = None,
    vmap_method: str | None = None,
    **kwargs: object,
) -> Any:
    """Call a host function without side effects from a program.

    The program may call it any number of times, and not at all if the result is unused.

    Args:
        vmap_method: how to map the callback under `vmap`, which is an error for None. "sequential" and
            "sequential_unrolled" call it once per slice. "expand_dims" and "broadcast_all" call it once, with a batch
            dim in front of every operand; an operand that is not mapped has size 1 there with "expand_dims", and is
            broadcast with "broadcast_all".

    Example:
        >>> double = jax.jit(lambda x: jax.pure_callback(lambda x: 2 * x, x, x))
        >>> double(jnp.arange(3))
        Array([0, 2, 4], dtype=int32)
    """
    if vmap_method not in VMAP_METHODS:
        known = ", ".join(repr(method) for method in VMAP_METHODS if method)
        raise ValueError(f"pure_callback: vmap_method must be None or one of {known}, not {vmap_method!r}")
    return call_host(callback, result_shape_dtypes, args, kwargs, "pure", sharding, VMAP_METHODS[vmap_method])


@filter_traceback
@documented(_CALLBACK)
def io_callback(
    callback: Function,
    result_shape_dtypes: object,
    *args: object,
    sharding: None = None,
    ordered: bool = False,
    **kwargs: object,
) -> Any:
    """Call a host function that may have side effects from a program.

    It is called exactly once each time the program reaches this point, and before the compiled function returns.

    Args:
        ordered: whether ordered callbacks are called in program order.

    Example:
        >>> def show(x):
        ...     print("got", x)
        ...     return x
        >>> jax.io_callback(show, jax.ShapeDtypeStruct((), jnp.int32), jnp.array(3))
        got 3
        Array(3, dtype=int32)
    """
    kind = "ordered" if ordered else "unordered"
    return call_host(callback, result_shape_dtypes, args, kwargs, kind, sharding)


NO_RESULT = object()


def call_host(
    callback: Function,
    result_shape_dtypes: object,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    kind: str,
    sharding: object = None,
    vectorized: str = "",
    partitioned: bool = False,
) -> Any:
    """Call a host function from a program; the parameters are those of the op `Callback`."""
    if not callable(callback):
        raise TypeError(f"a callback must be a function, not {callback!r}")
    if sharding is not None:
        raise NotImplementedError(f"the callback {describe_function(callback)}: sharding= is not supported")
    leaves, in_tree = array_leaves(callback, args, keywords)
    out_leaves, out_tree = ([], None) if result_shape_dtypes is NO_RESULT else tree.flatten(result_shape_dtypes)
    types = tuple(_result_type(callback, x) for x in out_leaves)
    host_function = _HostFunction(callback, in_tree, out_tree, types, vectorized in ("expand_dims", "broadcast_all"))
    results = Callback(host_function, types, kind, vectorized, partitioned)(*(as_operand(x) for x in leaves))
    return None if out_tree is None else out_tree.unflatten(list(results))


def _result_type(callback: Function, x: object) -> ArrayType:
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if shape is None or dtype is None:
        raise TypeError(
            f"the callback {describe_function(callback)}: result_shape_dtypes must be a pytree of objects with a shape "
            f"and a dtype, such as ShapeDtypeStruct, not {x!r}"
        )
    return ArrayType(tuple(shape), canonical_dtype(np.dtype(dtype)))
