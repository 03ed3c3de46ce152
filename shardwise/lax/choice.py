"""Selection between arrays and between functions, optimization barriers and tokens."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from shardwise import tree
from shardwise.compiler.arrays.operands import as_operand, broadcast_to_shape, compiled_function, type_of
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.remat import Barrier
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import BITS, Or
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.placement.inspect_sharding import Inspect
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.trace.tracer import Tracer
from shardwise.errors import UnexpectedTracerError
from shardwise.runtime.client import default_backend


def select_n(which: Any, *cases: Any) -> Any:
    """Choose each element from one of several arrays by its index in `which`.

    Args:
        which: booleans (for one or two cases) or integers, of the shape of the cases; or a scalar, which chooses an
            array. Indices are clamped: one that is too small means the first case, one that is too large the last.
        *cases: one or more arrays of the same shape and dtype.

    Returns:
        An array of the type of the cases.

    Raises:
        ValueError: if there are no cases.
        TypeError: if `which` has another dtype or shape, or booleans choose between more than 2 cases, or the cases
            differ in type.

    Example:
        >>> lax.select_n(jnp.array([2, 0, 1]), jnp.array([1, 2, 3]), jnp.array([4, 5, 6]), jnp.array([7, 8, 9]))
        Array([7, 2, 6], dtype=int32)
    """
    if not cases:
        raise ValueError("select_n: needs at least one case")
    index, types = type_of(which, "select_n"), [type_of(x, "select_n") for x in cases]
    if not BITS.contains(index.dtype):
        raise TypeError(f"select_n: which must hold booleans or integers, not {index}")
    if index.dtype == np.bool_ and len(cases) > 2:
        raise TypeError(f"select_n: booleans can select between at most 2 cases, not {len(cases)}; use integers")
    if len({(type.shape, type.dtype) for type in types}) != 1:
        raise TypeError(f"select_n: cases must have the same shape and dtype, not {', '.join(map(str, types))}")
    if index.shape not in ((), types[0].shape):
        raise TypeError(f"select_n: which must be a scalar or have the shape of the cases, {types[0]}, not {index}")
    return _select_n(which, *cases)


@compiled_function
def _select_n(which: Any, *cases: Any) -> Any:
    arrays = [as_operand(x) for x in cases]
    index = broadcast_to_shape(as_operand(which), arrays[0].type.shape)
    if len(arrays) == 1:
        return arrays[0]
    if index.type.dtype == np.bool_:
        return Select()(index, arrays[1], arrays[0])
    return _select_by_bisection(index, arrays, 0)


def _select_by_bisection(which: Any, cases: list[Any], first: int) -> Any:
    """Select among cases whose indices start at `first`: bisect them, with one comparison per level."""
    if len(cases) == 1:
        return cases[0]
    half = len(cases) // 2
    low = _select_by_bisection(which, cases[:half], first)
    high = _select_by_bisection(which, cases[half:], first + half)
    return Select()(Compare("LT")(which, full_like(which, first + half)), low, high)


def optimization_barrier(operand: Any, /) -> Any:
    """Prevent the compiler from moving or merging computations across this point.

    All arrays of the pytree are computed before any of the results is used.

    Args:
        operand: a pytree of arrays.

    Returns:
        The same pytree.

    Raises:
        TypeError: if a leaf is not an array or a number.

    Example:
        >>> lax.optimization_barrier((jnp.array(1), jnp.array(2)))
        (Array(1, dtype=int32), Array(2, dtype=int32))
    """
    return tree.map(lambda leaf: Barrier()(as_operand(leaf, "optimization_barrier")), operand)


def stage(x: Any, /) -> Any:
    """Convert `x` to an array, or to a value of the program that is being traced.

    Args:
        x: an array, or a scalar.

    Returns:
        An array or a tracer.

    Raises:
        TypeError: if `x` is not an array or a number.

    Example:
        >>> lax.stage(3)
        Array(3, dtype=int32)
    """
    return as_operand(x, "stage")


def platform_dependent(
    *args: Any, default: Callable[..., Any] | None = None, **per_platform: Callable[..., Any]
) -> Any:
    """Call the function for the default backend's platform.

    The choice is made when the program is traced.

    Args:
        *args: the arguments of the function.
        default: the function for platforms that have no function of their own.
        **per_platform: functions by platform: `cpu=`, `gpu=` or `cuda=`, and so on.

    Returns:
        The result of the chosen function.

    Raises:
        NotImplementedError: if there is neither a function for the platform nor a default.

    Example:
        >>> lax.platform_dependent(jnp.array(3), cpu=lambda x: x + 1, default=lambda x: x - 1)
        Array(4, dtype=int32)
    """
    platform = default_backend()
    names = {"gpu": ("gpu", "cuda")}.get(platform, (platform,))
    function = next((per_platform[name] for name in names if name in per_platform), default)
    if function is None:
        raise NotImplementedError(
            f"platform_dependent: there is no function for the platform {platform!r} and no default; "
            f"functions were given for: {', '.join(per_platform) or 'none'}"
        )
    return function(*args)


def composite(decomposition: Callable[..., Any], name: str, version: int = 0) -> Callable[..., Any]:
    """Give a function a name by which a compiler could recognize it. Here the function is always inlined.

    Args:
        decomposition: the function that defines the composite op.
        name: the name of the composite op, for errors.
        version: the version of the composite op. It is ignored.

    Returns:
        A function like `decomposition`. Its keyword arguments are static attributes.

    Raises:
        UnexpectedTracerError: if the returned function is called with a traced attribute.

    Example:
        >>> lax.composite(lambda x: lax.sin(x) / lax.cos(x), "my.tangent")(0.0)
        Array(0., dtype=float32)
    """

    @wraps(decomposition)
    def call(*args: Any, **attributes: Any) -> Any:
        for key, value in attributes.items():
            if any(isinstance(leaf, Tracer) for leaf in tree.leaves(value)):
                raise UnexpectedTracerError(
                    f"composite {name!r}: attribute {key!r} is a traced value, but attributes must be static: "
                    "pass it as a positional argument"
                )
        return decomposition(*args, **attributes)

    return call


def dce_sink(val: Any, *, prevent_mlir_dce: bool = False) -> None:
    """Keep the arrays of a pytree alive during dead-code elimination, though nothing uses them.

    They are kept until the partitioner has planned the program. XLA may still remove them.

    Args:
        val: a pytree of arrays.
        prevent_mlir_dce: must be False.

    Raises:
        NotImplementedError: if `prevent_mlir_dce` is true.
        TypeError: if a leaf is not an array or a number.

    Example:
        >>> lax.dce_sink(jnp.array(1))
    """
    if prevent_mlir_dce:
        raise NotImplementedError(
            "dce_sink: prevent_mlir_dce=True is not supported, as XLA's own dead-code elimination cannot be prevented"
        )
    tree.map(lambda leaf: Inspect(_ignore_sharding)(as_operand(leaf, "dce_sink")), val)


def _ignore_sharding(sharding: Any) -> None:
    """Accept the sharding of a value that `dce_sink` keeps alive, and do nothing."""


def create_token(_: Any = None) -> Any:
    """Create a token: a value without content that `after_all` accepts.

    Args:
        _: ignored.

    Returns:
        A scalar boolean.

    Raises:
        TypeError: if there is more than one argument.

    Example:
        >>> lax.create_token().shape
        ()
    """
    return full((), False, np.bool_)


@compiled_function
def after_all(*operands: Any) -> Any:
    """Join tokens: return a token that is available once all the given ones are.

    Args:
        *operands: tokens made by `create_token` or `after_all`.

    Returns:
        A token.

    Raises:
        TypeError: if an operand is not a token.

    Example:
        >>> lax.after_all(lax.create_token(), lax.create_token()).shape
        ()
    """
    for x in operands:
        if type_of(x, "after_all") != ArrayType((), np.bool_):
            raise TypeError(f"after_all: operands must be tokens made by create_token, not {type_of(x)}")
    token = full((), False, np.bool_)
    for x in operands:
        token = Or()(token, Barrier()(as_operand(x)))
    return token
