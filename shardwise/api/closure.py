"""Functions that close over values under differentiation: closure_convert, and custom_gradient, which uses it."""

from collections.abc import Callable
from functools import wraps
from typing import Any, final

from shardwise import tree, tree_util
from shardwise.api.arguments import array_leaves, describe_function, leaf_types
from shardwise.api.custom import custom_vjp
from shardwise.api.jit import TracedFunction, trace
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.program import Program
from shardwise.compiler.trace.tracer import Tracer
from shardwise.compiler.transforms.replay import replay
from shardwise.execute.traceback_filter import filter_traceback

Function = Callable[..., Any]


@filter_traceback
def closure_convert(fun: Function, *example_args: Any) -> tuple[Function, list[Any]]:
    """`fun` as a function that gets the values it closes over as further arguments, and a list of these values.

    They are those that a derivative may depend on: traced, and not of integers. `fun` is traced for arguments like
    `example_args`, and the new function takes such arguments only.

    >>> def area(width):
    ...     convert, closed = jax.closure_convert(lambda height: width * height, 1.0)
    ...     return convert(2.0, *closed)
    >>> jax.grad(area)(3.0)
    Array(2., dtype=float32...)
    """
    recorded, structure = _recorded(fun, example_args)
    moving = [isinstance(x, Tracer) and is_inexact(x.type.dtype) for x in recorded.captured]
    values = [x for x, moves in zip(recorded.captured, moving, strict=True) if moves]
    count = len(example_args)

    @wraps(fun)
    def converted(*args: Any) -> Any:
        if len(args) != count + len(values):
            raise TypeError(f"closure_convert: the function takes {count} and {len(values)} arguments, not {len(args)}")
        leaves, given = tree.flatten((args[:count], {}))
        if given != structure:
            raise TypeError(f"closure_convert: the function was converted for arguments {structure}, not {given}")
        closed = iter(args[count:])
        captured = [next(closed) if moves else x for x, moves in zip(recorded.captured, moving, strict=True)]
        return recorded.structure.unflatten(replay(recorded.program, list(map(as_operand, [*leaves, *captured]))))

    return converted, values


def custom_gradient(fun: Function) -> Function:
    """A function whose derivative is given where its value is: `fun` returns the value and a function from the
    cotangent of the value to those of the arguments.

    >>> @jax.custom_gradient
    ... def square(x):
    ...     return x * x, lambda ct: 10 * x * ct
    >>> jax.grad(square)(3.0)
    Array(30., dtype=float32...)
    """

    @custom_vjp
    @wraps(fun)
    def value(*args: Any) -> Any:
        return _both(fun, args)[0]

    def forward(*args: Any) -> tuple[Any, _Pullback]:
        out, pullback = _both(fun, args)
        cotangent = tree.map(as_operand, out)
        recorded, _ = _recorded(pullback, (cotangent,))
        return out, _Pullback(recorded.program, recorded.structure, recorded.captured)

    def backward(pullback: _Pullback, cotangent: Any) -> tuple[Any, ...]:
        found = pullback(cotangent)
        return found if isinstance(found, tuple) else (found,)

    value.defvjp(forward, backward)

    @wraps(fun)
    def call(*args: Any, **keywords: Any) -> Any:
        if not keywords:
            return value(*args)
        return custom_gradient(lambda *given: fun(*given, **keywords))(*args)

    return call


def _both(fun: Function, args: tuple[Any, ...]) -> tuple[Any, Function]:
    found = fun(*args)
    if not (isinstance(found, tuple) and len(found) == 2 and callable(found[1])):
        raise TypeError(
            f"custom_gradient: {describe_function(fun)} must return its value and a function from cotangent to "
            "cotangents, "
            f"not {found!r}"
        )
    return found


def _recorded(fun: Function, args: tuple[Any, ...]) -> tuple[TracedFunction, tree.Structure]:
    leaves, structure = array_leaves(fun, args, {})
    return trace(fun, structure, leaf_types(leaves)), structure


@final
class _Pullback:
    """A function from cotangents as a program: a tree of the values that it closes over."""

    def __init__(self, program: Program, structure: tree.Structure, captured: list[Any]):
        self.program, self.structure, self.captured = program, structure, captured

    def __call__(self, cotangent: Any) -> Any:
        operands = [as_operand(x) for x in (*tree.leaves(cotangent), *self.captured)]
        return self.structure.unflatten(replay(self.program, operands))


tree_util.register_pytree_node(
    _Pullback,
    lambda node: (node.captured, (node.program, node.structure)),
    lambda static, captured: _Pullback(static[0], static[1], list(captured)),
)
