"""Python functions of the host inside compiled programs: pure_callback, io_callback, debug.callback, debug.print."""

from collections.abc import Callable, Sequence
from string import Formatter
from typing import Any, final

import numpy as np

from shardwise import tree
from shardwise.api.arguments import array_leaves, describe_function, function_name
from shardwise.compiler.arrays.operands import PYTHON_SCALARS, as_operand
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.callback import Callback
from shardwise.execute.traceback_filter import filter_traceback

Function = Callable[..., Any]
_METHODS = {None: "", "sequential": "", "expand_dims": "expand_dims", "broadcast_all": "broadcast_all"}


@final
class _Host:
    """The user's function on flat lists of numpy arrays; what it returns is checked."""

    def __init__(
        self,
        function: Function,
        structure: tree.Structure,
        results: tree.Structure | None,
        types: Sequence[ArrayType],
        vectorized: bool = False,
    ):
        self.function, self.structure, self.results = function, structure, results
        self.types, self.vectorized = types, vectorized

    @property
    def name(self) -> str:
        return function_name(self.function)

    def __call__(self, *operands: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        args, keywords = self.structure.unflatten(list(operands))
        returned = self.function(*args, **keywords)
        if self.results is None:
            return ()
        leaves, structure = tree.flatten(returned)
        if structure != self.results:
            promised = self.results.unflatten(list(self.types))
            difference = tree.first_difference(self.results, promised, returned) or structure
            raise TypeError(
                f"the callback {describe_function(self.function)} returned another tree than promised: {difference}"
            )
        return tuple(self._fitting(x, type) for x, type in zip(leaves, self.types, strict=True))

    def _fitting(self, x: Any, type: ArrayType) -> np.ndarray[Any, Any]:
        found = np.asarray(x, type.dtype) if isinstance(x, PYTHON_SCALARS) else np.asarray(x)
        shape = found.shape[len(found.shape) - type.ndim :] if self.vectorized else found.shape
        if shape != type.shape or found.dtype != type.dtype:
            raise TypeError(
                f"the callback {describe_function(self.function)} returned {found.dtype}{list(found.shape)} where "
                f"{type} was "
                "promised: convert it, or change result_shape_dtypes"
            )
        return found


@filter_traceback
def pure_callback(
    callback: Function,
    result_shape_dtypes: Any,
    *args: Any,
    sharding: None = None,
    vmap_method: str | None = None,
    **kwargs: Any,
) -> Any:
    """What `callback(*args, **kwargs)` returns: a function of numpy arrays, without side effects.

    `result_shape_dtypes` is a tree like its result, of things with a shape and a dtype. It may be called any number of
    times, or not at all where its result is not needed. Under vmap it is called for one slice after the other, unless
    `vmap_method` says that it takes one more dim in front: "expand_dims" (arguments that are not mapped get a dim of 1
    there) or "broadcast_all".

    >>> double = jax.jit(lambda x: jax.pure_callback(lambda x: 2 * x, x, x))
    >>> double(jnp.arange(3))
    Array([0, 2, 4], dtype=int32)
    """
    if vmap_method not in _METHODS:
        known = ", ".join(repr(method) for method in _METHODS if method)
        raise ValueError(f"pure_callback: vmap_method is one of {known}, not {vmap_method!r}")
    return _called(callback, result_shape_dtypes, args, kwargs, "pure", sharding, _METHODS[vmap_method])


@filter_traceback
def io_callback(
    callback: Function,
    result_shape_dtypes: Any,
    *args: Any,
    sharding: None = None,
    ordered: bool = False,
    **kwargs: Any,
) -> Any:
    """What `callback(*args, **kwargs)` returns: a function of numpy arrays that may do anything.

    It is called exactly when the program comes there; `ordered` ones in the order of the program. When the compiled
    function returns, its callbacks have been called.

    >>> def tell(x):
    ...     print("saw", x)
    ...     return x
    >>> jax.io_callback(tell, jax.ShapeDtypeStruct((), jnp.int32), jnp.array(3))
    saw 3
    Array(3, dtype=int32)
    """
    return _called(callback, result_shape_dtypes, args, kwargs, "ordered" if ordered else "unordered", sharding, "")


@filter_traceback
def debug_callback(
    callback: Function, *args: Any, ordered: bool = False, partitioned: bool = False, **kwargs: Any
) -> None:
    """Call `callback(*args, **kwargs)` with the values, as numpy arrays, when the program comes there.

    Derivatives pass it by. On many devices it is called once, with whole arrays.

    >>> seen = []
    >>> found = jax.jit(lambda x: jax.debug.callback(seen.append, x))(jnp.array(3))
    >>> jax.effects_barrier()
    >>> seen
    [array(3, dtype=int32)]
    """
    if partitioned:
        raise NotImplementedError("debug.callback: partitioned=True is not here yet: it is called with whole arrays")
    _called(callback, _NOTHING, args, kwargs, "ordered_watch" if ordered else "watch", None, "")


def debug_print(fmt: str, *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Print `fmt.format(*args, **kwargs)` with the values when the program comes there.

    `{}` and `{name}` stand for arguments; doubled braces for braces. `ordered` prints in the order of the program.

    >>> found = jax.jit(lambda x: jax.debug.print("x is {x}", x=x))(jnp.arange(3))
    x is [0 1 2]
    """
    if not isinstance(fmt, str):
        raise TypeError(f"debug.print: needs a format, such as 'x is {{x}}', not {fmt!r}")
    try:
        _Checker().vformat(fmt, args, kwargs)  # here, at the user's line, and not when the program runs
    except (IndexError, KeyError) as error:
        raise ValueError(f"debug.print: the format {fmt!r} shows an argument that is not given: {error}") from None
    debug_callback(_Printer(fmt), *args, ordered=ordered, **kwargs)


@final
class _Checker(Formatter):
    """Looks for every field, and formats none: values come later."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return ""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return ""

    def check_unused_args(self, used_args: Any, args: Any, kwargs: Any) -> None:
        unused = [repr(key) for key in (*range(len(args)), *kwargs) if key not in used_args]
        if unused:
            raise ValueError(f"debug.print: no field of the format shows argument {', '.join(unused)}")


@final
class _Printer:
    def __init__(self, fmt: str):
        self.fmt = fmt
        self.__name__ = "print"

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        # The line and its end at once: devices print at the same time, and lines would run into each other.
        print(f"{self.fmt.format(*args, **kwargs)}\n", end="")


_NOTHING = object()


def _called(
    callback: Function, results: Any, args: Any, keywords: Any, kind: str, sharding: Any, vectorized: str
) -> Any:
    if not callable(callback):
        raise TypeError(f"a callback should be a function, not {callback!r}")
    if sharding is not None:
        raise NotImplementedError(f"the callback {describe_function(callback)}: sharding= is not here yet")
    leaves, structure = array_leaves(callback, args, keywords)
    wanted, out = ([], None) if results is _NOTHING else tree.flatten(results)
    types = tuple(_promised(callback, x) for x in wanted)
    host = _Host(callback, structure, out, types, bool(vectorized))
    found = Callback(host, types, kind, vectorized)(*(as_operand(x) for x in leaves))
    return None if out is None else out.unflatten(list(found))


def _promised(callback: Function, x: Any) -> ArrayType:
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if shape is None or dtype is None:
        raise TypeError(
            f"the callback {describe_function(callback)}: result_shape_dtypes should hold things with a shape and a "
            "dtype, "
            f"such as ShapeDtypeStruct, not {x!r}"
        )
    return ArrayType(tuple(shape), canonical_dtype(np.dtype(dtype)))
