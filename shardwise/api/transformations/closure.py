"""closure_convert and custom_gradient: differentiate with respect to the values that a function closes over."""

from collections.abc import Callable
from typing import Any, final

from shardwise import tree, tree_util
from shardwise.api.arguments import array_leaves, describe_function, leaf_types
from shardwise.api.jit import TracedFunction, trace
from shardwise.api.transformations.custom import custom_vjp
from shardwise.api.wrapping import wraps
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.program import Program
from shardwise.compiler.trace.tracer import Tracer
from shardwise.compiler.transforms.replay import replay
from shardwise.execute.traceback_filter import filter_traceback

Function = Callable[..., Any]


@filter_traceback
def closure_convert(fun: Function, *example_args: object) -> tuple[Function, list[Any]]:
    """Convert the values that a function closes over into additional arguments.

    Only values that a derivative can depend on are converted: tracers of a floating or complex dtype.

    Args:
        fun: the function, which is traced for `example_args`.
        *example_args: pytrees of arrays or numbers with the shapes and dtypes of the later arguments.

    Returns:
        A function `converted(*args, *values)` and the list of values.

    Raises:
        TypeError: if an example is not a pytree of arrays; from `converted`, if the number or the pytree structure of
            its arguments differs from that of the examples.

    Example:
        >>> def area(width):
        ...     converted, values = jax.closure_convert(lambda height: width * height, 1.0)
        ...     return converted(2.0, *values)
        >>> jax.grad(area)(3.0)
        Array(2., dtype=float32...)
    """
    traced, structure = _trace(fun, example_args)
    is_converted = [isinstance(x, Tracer) and is_inexact(x.type.dtype) for x in traced.constants]
    values = [x for x, convert in zip(traced.constants, is_converted, strict=True) if convert]
    count = len(example_args)

    @wraps(fun)
    def converted(*args: object) -> Any:
        if len(args) != count + len(values):
            raise TypeError(
                f"closure_convert: the converted function takes {count} arguments and {len(values)} closed-over "
                f"values, but was called with {len(args)} arguments"
            )
        leaves, call_structure = tree.flatten((args[:count], {}))
        if call_structure != structure:
            raise TypeError(
                f"closure_convert: the function was converted for arguments of structure {structure}, not "
                f"{call_structure}"
            )
        new_values = iter(args[count:])
        captured = [
            next(new_values) if convert else x for x, convert in zip(traced.constants, is_converted, strict=True)
        ]
        return traced.structure.unflatten(replay(traced.program, list(map(as_operand, [*leaves, *captured]))))

    return converted, values


def custom_gradient(fun: Function) -> Function:
    """Define a function together with its derivative in reverse mode.

    Args:
        fun: a function that returns its value and a function from the cotangent of the value to a tuple of cotangents
            of the arguments (to one cotangent, if there is one argument).

    Returns:
        A function that returns the value alone and is differentiated as given.

    Raises:
        TypeError: when called, if `fun` does not return such a pair.

    Example:
        >>> @jax.custom_gradient
        ... def square(x):
        ...     return x * x, lambda ct: 10 * x * ct
        >>> jax.grad(square)(3.0)
        Array(30., dtype=float32...)
    """

    @custom_vjp
    @wraps(fun)
    def value(*args: object) -> Any:
        return _value_and_pullback(fun, args)[0]

    def forward(*args: object) -> tuple[Any, _Pullback]:
        out, pullback = _value_and_pullback(fun, args)
        cotangent = tree.map(as_operand, out)
        traced, _ = _trace(pullback, (cotangent,))
        return out, _Pullback(traced.program, traced.structure, traced.constants)

    def backward(pullback: _Pullback, cotangent: object) -> tuple[Any, ...]:
        cotangents = pullback(cotangent)
        return cotangents if isinstance(cotangents, tuple) else (cotangents,)

    value.defvjp(forward, backward)

    @wraps(fun)
    def call(*args: object, **keywords: object) -> Any:
        if not keywords:
            return value(*args)
        return custom_gradient(lambda *positional: fun(*positional, **keywords))(*args)

    return call


def _value_and_pullback(fun: Function, args: tuple[Any, ...]) -> tuple[Any, Function]:
    result = fun(*args)
    if not (isinstance(result, tuple) and len(result) == 2 and callable(result[1])):
        raise TypeError(
            f"custom_gradient: {describe_function(fun)} must return a pair of its value and a function from the "
            f"cotangent of the value to the cotangents of the arguments, not {result!r}"
        )
    return result


def _trace(fun: Function, args: tuple[Any, ...]) -> tuple[TracedFunction, tree.Structure]:
    leaves, structure = array_leaves(fun, args, {})
    return trace(fun, structure, leaf_types(leaves)), structure


@final
class _Pullback:
    """A traced function of a cotangent; as a pytree, its leaves are the values that it closes over."""

    def __init__(self, program: Program, structure: tree.Structure, captured: list[Any]):
        self.program, self.structure, self.captured = program, structure, captured

    def __call__(self, cotangent: object) -> Any:
        operands = [as_operand(x) for x in (*tree.leaves(cotangent), *self.captured)]
        return self.structure.unflatten(replay(self.program, operands))


tree_util.register_pytree_node(
    _Pullback,
    lambda node: (node.captured, (node.program, node.structure)),
    lambda static, captured: _Pullback(static[0], static[1], list(captured)),
)
