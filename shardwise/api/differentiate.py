"""grad and value_and_grad: the derivative of a scalar function."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from shardwise import tree
from shardwise.api.arguments import argument_names, array_leaves, described, function_name
from shardwise.api.jit import check_results
from shardwise.compiler.ir.types import is_float, is_inexact
from shardwise.compiler.ops.methods import as_operand, type_of
from shardwise.compiler.ops.shape import full, zeros_like
from shardwise.compiler.transforms.linearize import linearize
from shardwise.compiler.transforms.transpose import transpose


def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns `function`'s value and its gradient with respect to the arguments `argnums`.

    With `has_aux`, `function` returns (value, anything), and the result is ((value, anything), gradient).
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        array_leaves(function, args, keywords)
        places = _positions(function, numbers, len(args))
        active = [args[place] for place in places]
        leaves, structure = tree.flatten(active)
        primals = [as_operand(leaf) for leaf in leaves]
        _check_inputs(function, args, places, primals)
        aux_structure: list[tree.Structure] = []

        def flat(*tracers: Any) -> list[Any]:
            given = list(args)
            for place, value in zip(places, structure.unflatten(tracers), strict=True):
                given[place] = value
            result = function(*given, **keywords)
            if not has_aux:
                return [_scalar(function, result)]
            if not (isinstance(result, tuple) and len(result) == 2):
                raise TypeError(f"{described(function)} must return (value, auxiliary) under has_aux, not {result!r}")
            extras, extra_structure = tree.flatten(result[1])
            check_results(function, extras)
            aux_structure.append(extra_structure)
            return [_scalar(function, result[0]), *extras]

        linear = linearize(flat, primals, function_name(function))
        value, *extras = linear.outputs
        seeds: list[Any] = [None] * linear.moving.count(True)
        if linear.moving[0]:
            seeds[0] = full((), 1.0, value.type.dtype, value.type.weak)
        flags = (False,) * len(linear.residuals) + (True,) * len(primals)
        cotangents = transpose(linear.program, flags, linear.residuals, seeds)
        grads = structure.unflatten(
            [zeros_like(x) if ct is None else ct for x, ct in zip(primals, cotangents, strict=True)]
        )
        gradient = grads[0] if isinstance(argnums, int) else tuple(grads)
        return ((value, aux_structure[0].unflatten(extras)) if has_aux else value), gradient

    return call


def grad(function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns the gradient of `function` with respect to the arguments `argnums`.

    With `has_aux`, `function` returns (value, anything), and the result is (gradient, anything).
    """
    both = value_and_grad(function, argnums, has_aux)

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        value, gradient = both(*args, **keywords)
        return (gradient, value[1]) if has_aux else gradient

    return call


def _positions(function: Callable[..., Any], numbers: Sequence[int], count: int) -> list[int]:
    for number in numbers:
        if not -count <= number < count:
            raise ValueError(
                f"grad of {described(function)} with respect to argument {number}, but it was called with {count} "
                "positional arguments"
            )
    return [number % count for number in numbers]


def _check_inputs(
    function: Callable[..., Any], args: tuple[Any, ...], places: Sequence[int], primals: Sequence[Any]
) -> None:
    for number, primal in enumerate(primals):
        if not is_inexact(primal.type.dtype):
            given = [args[place] if place in places else None for place in range(len(args))]
            name = argument_names(function, tuple(given), {})[number]
            raise TypeError(
                f"grad of {described(function)} with respect to {name}: it is {primal.type}, and derivatives need "
                "floats. Convert it with `.astype`, or leave it out of argnums."
            )


def _scalar(function: Callable[..., Any], result: Any) -> Any:
    leaves, structure = tree.flatten(result)
    if len(leaves) != 1 or structure != tree.structure(0):
        raise TypeError(f"grad needs a function that returns one scalar; {described(function)} returned {structure}")
    kind = type_of(leaves[0], "grad")
    if kind.shape or not is_float(kind.dtype):
        raise TypeError(
            f"grad needs a function that returns one real scalar; {described(function)} returned {kind}. "
            "Reduce it, for example with `.sum()` or `.mean()`."
        )
    return leaves[0]
