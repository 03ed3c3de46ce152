"""Looking at functions without running them: eval_shape, make_jaxpr, typeof."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, final

from shardwise import tree
from shardwise.api.arguments import check_function, describe_function
from shardwise.api.jit import Jitted, trace
from shardwise.api.shape_dtype_struct import leaf_type, struct
from shardwise.api.static_args import NOTHING, select, split
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType


@final
class TracedProgram:
    """What `make_jaxpr` returns: it prints as the program, which is `.program`; `.consts` are captured arrays."""

    def __init__(self, program: Program, consts: list[Any]):
        self.program = program
        self.consts = consts

    def __str__(self) -> str:
        return str(self.program)

    __repr__ = __str__


def eval_shape(function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """The shapes and dtypes of `function`'s results, as `ShapeDtypeStruct`s; nothing is computed.

    Arguments may be arrays, or anything with a shape and a dtype.

    >>> jax.eval_shape(jnp.dot, jax.ShapeDtypeStruct((2, 3), jnp.float32), jax.ShapeDtypeStruct((3,), jnp.float32))
    ShapeDtypeStruct(shape=(2,), dtype=float32)
    """
    check_function("eval_shape", function)
    found = split(function, function.options.static if isinstance(function, Jitted) else NOTHING, args, keywords)
    leaves, structure = tree.flatten((found.args, found.keywords))
    traced = trace(found.bind(function), structure, [leaf_type(leaf, describe_function(function)) for leaf in leaves])
    return traced.structure.unflatten([struct(type) for type in traced.program.out_types])


def make_jaxpr(
    function: Callable[..., Any], static_argnums: int | Sequence[int] = (), return_shape: bool = False
) -> Callable[..., Any]:
    """A function that returns the program that `function` is for its arguments; nothing is computed.

    With `return_shape`, it returns that and the shapes of the results.

    >>> jax.make_jaxpr(lambda x: jnp.sin(x) * x)(1.0)
    program _lambda_(a: f32[]~) {
      b: f32[]~ = sin a   # ...
      c: f32[]~ = mul b a   # ...
      return c
    }
    """
    check_function("make_jaxpr", function)
    static = select(function, "static", static_argnums, None)

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        found = split(function, static, args, keywords)
        leaves, structure = tree.flatten((found.args, found.keywords))
        traced = trace(
            found.bind(function), structure, [leaf_type(leaf, describe_function(function)) for leaf in leaves]
        )
        printed = TracedProgram(traced.program, traced.captured)
        if not return_shape:
            return printed
        return printed, traced.structure.unflatten([struct(type) for type in traced.program.out_types])

    return call


def typeof(x: Any) -> ArrayType:
    """The type of an array or number: its shape, dtype and whether it is weak.

    >>> jax.typeof(jnp.zeros((2, 3))), jax.typeof(1.0)
    (f32[2,3], f32[]~)
    """
    return type_of(x, "typeof")
