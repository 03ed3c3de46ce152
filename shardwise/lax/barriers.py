"""Optimization barriers, tokens, and markers that leave values unchanged: `stage`, `composite` and `dce_sink`."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from shardwise import tree
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, compiled_function, type_of
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.bitwise import Or
from shardwise.compiler.ops.elementwise.identities import Barrier
from shardwise.compiler.ops.placement.inspect_sharding import Inspect
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.trace.tracer import Tracer
from shardwise.errors import UnexpectedTracerError

_T = TypeVar("_T")


def optimization_barrier(operand: _T, /) -> _T:
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
        (Array(1, dtype=int32, weak_type=True), Array(2, dtype=int32, weak_type=True))
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
        Array(3, dtype=int32, weak_type=True)
    """
    return as_operand(x, "stage")


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
        Array(0., dtype=float32, weak_type=True)
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


def create_token(_: Any = None) -> Array:
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
def after_all(*operands: Any) -> Array:
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
