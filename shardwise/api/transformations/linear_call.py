"""linear_call: call a linear function whose transpose is another function of the user's."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwise import tree
from shardwise.api.arguments import check_function, function_name
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.control.call import Call
from shardwise.compiler.control.linear_call import LinearCall
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.placement.retype import match_type
from shardwise.compiler.trace.build import build, rewrite

_Function = Callable[..., Any]


def linear_call(fun: _Function, fun_transpose: _Function, residual_args: object, linear_args: object) -> Any:
    """Call a linear function that has a transpose of its own.

    Reverse mode calls `fun_transpose`, and its transpose is `fun` again.

    Args:
        fun: `fun(residual_args, linear_args)` returns a pytree of arrays that are linear in `linear_args`.
        fun_transpose: `fun_transpose(residual_args, cotangents)` returns the cotangents of `linear_args`.
        residual_args: a pytree of arrays in which `fun` need not be linear. They have no derivative.
        linear_args: a pytree of arrays.

    Returns:
        The result of `fun`.

    Raises:
        TypeError: if a function is not callable, if an argument is not a pytree of arrays, or if `fun_transpose` does
            not return the structure and types of `linear_args`.
        NotImplementedError: when differentiated with respect to a residual argument, or to a value that a function
            closes over.

    Example:
        >>> def scale(x, factor):
        ...     by = lambda factor, x: x * factor
        ...     return jax.custom_derivatives.linear_call(by, by, factor, x)
        >>> jax.linear_transpose(lambda x: scale(x, 3.0), 1.0)(2.0)
        (Array(6., dtype=float32, weak_type=True),)
    """
    for function in (fun, fun_transpose):
        check_function("linear_call", function)
    residuals, residual_structure = _operands(residual_args)
    linear, linear_structure = _operands(linear_args)
    residual_types, linear_types = [x.type for x in residuals], [x.type for x in linear]
    count = len(residuals)
    out_structure: Any = None

    def call(*operands: Any) -> list[Any]:
        nonlocal out_structure
        arguments = residual_structure.unflatten(operands[:count]), linear_structure.unflatten(operands[count:])
        results, out_structure = _operands(fun(*arguments))
        return results

    def call_transposed(*operands: Any) -> list[Any]:
        arguments = residual_structure.unflatten(operands[:count]), out_structure.unflatten(operands[count:])
        results, structure = _operands(fun_transpose(*arguments))
        if structure != linear_structure or [_shape_and_dtype(x.type) for x in results] != [
            _shape_and_dtype(type) for type in linear_types
        ]:
            raise TypeError(
                f"linear_call: fun_transpose must return the types of linear_args, "
                f"{linear_structure.unflatten(linear_types)}, not {structure.unflatten([x.type for x in results])}"
            )
        return [match_type(x, type) for x, type in zip(results, linear_types, strict=True)]

    program, captured = build(call, [*residual_types, *linear_types], function_name(fun))
    transposed, captured_by_transposed = build(
        call_transposed, [*residual_types, *program.out_types], function_name(fun_transpose)
    )
    # Values that a function closes over are further residuals of both.
    closed_over, other = len(captured), len(captured_by_transposed)
    held = [*residuals, *captured, *captured_by_transposed]
    op = LinearCall(
        _with_residuals(program, held, count, range(count, count + closed_over)),
        len(held),
        _with_residuals(transposed, held, count, range(count + closed_over, count + closed_over + other)),
    )
    return out_structure.unflatten(op(*held, *linear))


def _operands(values: object) -> tuple[list[Any], Any]:
    """Return the leaves of a pytree as operands, and its structure."""
    leaves, structure = tree.flatten(values)
    return [as_operand(leaf, "linear_call") for leaf in leaves], structure


def _shape_and_dtype(type: ArrayType) -> tuple[Any, ...]:
    return type.shape, type.dtype


def _with_residuals(program: Program, held: Sequence[Any], count: int, captured: range) -> Program:
    """Return a program of the residuals `held` of both functions and its linear inputs.

    The inputs of `program` are the first `count` residuals, its linear inputs, and the residuals `captured`.
    """
    linear_types = program.in_types[count : len(program.inputs) - len(captured)]

    def body(*operands: Any) -> Any:
        return Call(program)(*operands[:count], *operands[len(held) :], *(operands[index] for index in captured))

    return rewrite(program.name, [*(x.type for x in held), *linear_types], body)
