"""jax.experimental.jet: derivatives of any order along a curve, by Taylor-mode differentiation."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from shardwise.api.arguments import array_leaves, check_function, describe_function, leaf_types
from shardwise.api.jit import trace
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ops.placement.retype import match_type, zeros_of
from shardwise.compiler.transforms.jet import Series, scaled
from shardwise.compiler.transforms.jet import jet as jet_program
from shardwise.execute.traceback_filter import filter_traceback
from shardwise.tree_util import all_leaves
from shardwise.typing import ArrayLike


@filter_traceback
def jet(
    fun: Callable[..., Any],
    primals: Sequence[ArrayLike],
    series: Sequence[Sequence[ArrayLike]],
    factorial_scaled: bool = True,
    **_: object,
) -> tuple[Any, Any]:
    """Compute the derivatives of a function along a curve, up to the order of the given series.

    The cost of nested `jvp` grows exponentially with the order; that of `jet` grows polynomially for most functions.

    Args:
        fun: the function of arrays; it returns a pytree of arrays.
        primals: the arguments: the values of the curves at t = 0.
        series: for each argument, the derivatives of its curve at t = 0, from the first on. All have one length.
        factorial_scaled: whether the terms are derivatives; if false, they are the coefficients of the Taylor
            polynomial, which are the derivatives divided by the factorial of their order.
        **_: accepted and not used, as in JAX.

    Returns:
        The value of `fun`, and a pytree of the same structure with a list of derivatives in place of each array.

    Raises:
        ValueError: if the series have different lengths, if their number is not that of the arguments, if an argument
            is not an array, or if `fun` changes a Ref.
        TypeError: if an argument is not of a floating or complex dtype.

    Example:
        >>> value, (first, second) = jax.experimental.jet.jet(lambda x: x**3, (2.0,), ((1.0, 0.0),))
        >>> print(value, first, second)
        8.0 12.0 12.0
    """
    check_function("jet", fun)
    operands, order = _check(fun, primals, series)
    scales = [math.factorial(power) if factorial_scaled else 1 for power in range(1, order + 1)]
    inputs: list[Series] = [
        [x, *(_term(x, term, 1 / scale) for term, scale in zip(terms, scales, strict=True))]
        for x, terms in zip(operands, series, strict=True)
    ]
    leaves, structure = array_leaves(fun, tuple(operands), {})
    traced = trace(fun, structure, leaf_types(leaves))
    if traced.written:
        raise ValueError(f"jet: {describe_function(fun)} changes a Ref; return the value instead")
    constants = [[as_operand(x), *[None] * order] for x in traced.constants]
    outputs = jet_program(traced.program, [*inputs, *constants], order)
    terms_out = [
        [
            zeros_of(primal.type.strong()) if term is None else scaled(term, scale)
            for term, scale in zip(terms, scales, strict=True)
        ]
        for primal, *terms in outputs
    ]
    return traced.structure.unflatten([output[0] for output in outputs]), traced.structure.unflatten(terms_out)


def _check(
    fun: Callable[..., Any], primals: Sequence[ArrayLike], series: Sequence[Sequence[ArrayLike]]
) -> tuple[list[Array], int]:
    """Return the arguments as arrays, and the length of all series."""
    lengths = set(map(len, series))
    if len(lengths) != 1 or len(series) != len(primals):
        raise ValueError(
            f"jet: {describe_function(fun)} has {len(primals)} arguments, and each needs a series of the same length; "
            f"the lengths are {[len(terms) for terms in series]}"
        )
    for position, argument in enumerate(primals):
        if not all_leaves([argument]) or any(not all_leaves([term]) for term in series[position]):
            raise ValueError(f"jet: argument {position} of {describe_function(fun)} and its series must be arrays")
    operands = [as_operand(x, "jet") for x in primals]
    for position, x in enumerate(operands):
        if not is_inexact(x.type.dtype):
            raise TypeError(
                f"jet: argument {position} of {describe_function(fun)} is of type {x.type}, which has no derivatives. "
                "Convert it to a floating dtype, or let the function close over it."
            )
    return operands, lengths.pop()


def _term(primal: Array, term: ArrayLike, scale: float) -> Any:
    return scaled(match_type(as_operand(term, "jet"), primal.type), scale)


publish(__name__)
