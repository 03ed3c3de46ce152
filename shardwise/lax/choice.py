"""Choosing between arrays by what is known when the program is made or when it runs; and what keeps values apart."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from shardwise import tree
from shardwise.compiler.arrays.operands import as_operand, broadcast_to_shape, compiled_function, type_of
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.remat import Barrier
from shardwise.compiler.ops.elementwise.base import like
from shardwise.compiler.ops.elementwise.bitwise import BITS, Or
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.placement.inspect_sharding import Inspect
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.trace.tracer import Tracer
from shardwise.errors import UnexpectedTracerError
from shardwise.runtime.client import default_backend


def select_n(which: Any, *cases: Any) -> Any:
    """At each place, the element of the case whose number is there in `which`: booleans for two cases, or integers.

    A number below the first takes the first, one past the last the last. A scalar `which` chooses a whole array.

    >>> lax.select_n(jnp.array([2, 0, 1]), jnp.array([1, 2, 3]), jnp.array([4, 5, 6]), jnp.array([7, 8, 9]))
    Array([7, 2, 6], dtype=int32)
    """
    if not cases:
        raise ValueError("select_n: needs at least one case")
    chooser, types = type_of(which, "select_n"), [type_of(x, "select_n") for x in cases]
    if not BITS.holds(chooser.dtype):
        raise TypeError(f"select_n: which must be booleans or integers, not {chooser}")
    if chooser.dtype == np.bool_ and len(cases) > 2:
        raise TypeError(f"select_n: booleans choose between 2 cases at most, not {len(cases)}; use integers")
    if len({(type.shape, type.dtype) for type in types}) != 1:
        raise TypeError(f"select_n: cases must have one shape and one dtype, not {', '.join(map(str, types))}")
    if chooser.shape not in ((), types[0].shape):
        raise TypeError(f"select_n: which must be a scalar or have the shape of the cases, {types[0]}, not {chooser}")
    return _selected(which, *cases)


@compiled_function
def _selected(which: Any, *cases: Any) -> Any:
    arrays = [as_operand(x) for x in cases]
    chooser = broadcast_to_shape(as_operand(which), arrays[0].type.shape)
    if len(arrays) == 1:
        return arrays[0]
    if chooser.type.dtype == np.bool_:
        return Select()(chooser, arrays[1], arrays[0])
    return _between(chooser, arrays, 0)


def _between(which: Any, cases: list[Any], first: int) -> Any:
    """One of the cases, whose numbers begin with `first`: each half chooses, and one comparison between them."""
    if len(cases) == 1:
        return cases[0]
    half = len(cases) // 2
    below, above = _between(which, cases[:half], first), _between(which, cases[half:], first + half)
    return Select()(Compare("LT")(which, like(which, first + half)), below, above)


def optimization_barrier(operand: Any, /) -> Any:
    """The arrays of a tree, all of which are there before any is used: the compiler moves nothing past.

    >>> lax.optimization_barrier((jnp.array(1), jnp.array(2)))
    (Array(1, dtype=int32), Array(2, dtype=int32))
    """
    return tree.map(lambda leaf: Barrier()(as_operand(leaf, "optimization_barrier")), operand)


def stage(x: Any, /) -> Any:
    """`x` as an array, or as a value of the program that is being traced.

    >>> lax.stage(3)
    Array(3, dtype=int32)
    """
    return as_operand(x, "stage")


def platform_dependent(
    *args: Any, default: Callable[..., Any] | None = None, **per_platform: Callable[..., Any]
) -> Any:
    """What the function for the platform in use makes of `args`: `cpu=`, `cuda=` …, or `default` for any other.

    >>> lax.platform_dependent(jnp.array(3), cpu=lambda x: x + 1, default=lambda x: x - 1)
    Array(4, dtype=int32)
    """
    platform = default_backend()
    names = {"gpu": ("gpu", "cuda")}.get(platform, (platform,))
    found = next((per_platform[name] for name in names if name in per_platform), default)
    if found is None:
        raise NotImplementedError(
            f"platform_dependent: no function for {platform!r} among {', '.join(per_platform) or 'none'}, nor a default"
        )
    return found(*args)


def composite(decomposition: Callable[..., Any], name: str, version: int = 0) -> Callable[..., Any]:
    """`decomposition`, under a name by which a compiler could know it: here it is always taken apart.

    >>> lax.composite(lambda x: lax.sin(x) / lax.cos(x), "my.tangent")(0.0)
    Array(0., dtype=float32)
    """

    @wraps(decomposition)
    def call(*args: Any, **attributes: Any) -> Any:
        for key, value in attributes.items():
            if any(isinstance(leaf, Tracer) for leaf in tree.leaves(value)):
                raise UnexpectedTracerError(
                    f"composite {name!r}: attribute {key!r} is a traced value, and attributes are known beforehand: "
                    "pass it as a positional argument"
                )
        return decomposition(*args, **attributes)

    return call


def dce_sink(val: Any, *, prevent_mlir_dce: bool = False) -> None:
    """Say that the arrays of a tree are used, though nothing comes of them: they are there until a plan is made.

    >>> lax.dce_sink(jnp.array(1))
    """
    if prevent_mlir_dce:
        raise NotImplementedError("dce_sink: what XLA itself leaves out is not held back: leave prevent_mlir_dce False")
    tree.map(lambda leaf: Inspect(_looked_at)(as_operand(leaf, "dce_sink")), val)


def _looked_at(sharding: Any) -> None:
    """What a sink does with where its value lies."""


def create_token(_: Any = None) -> Any:
    """A token: a value without meaning, which `after_all` takes. Its argument is ignored.

    >>> lax.create_token().shape
    ()
    """
    return full((), False, np.bool_)


@compiled_function
def after_all(*operands: Any) -> Any:
    """A token that is there once all these tokens are.

    >>> lax.after_all(lax.create_token(), lax.create_token()).shape
    ()
    """
    for x in operands:
        if type_of(x, "after_all") != ArrayType((), np.bool_):
            raise TypeError(f"after_all: needs tokens, as create_token gives them, not {type_of(x)}")
    found = full((), False, np.bool_)
    for x in operands:
        found = Or()(found, Barrier()(as_operand(x)))
    return found
