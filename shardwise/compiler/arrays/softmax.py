"""logsumexp, softmax and log_softmax without overflow, composed of ops.

The maximum is subtracted first, behind a stop_gradient, so that exp does not overflow.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.compiler.arrays.arithmetic import absolute, divide, exp, multiply, real, subtract
from shardwise.compiler.arrays.methods import reshape
from shardwise.compiler.arrays.methods import where as select
from shardwise.compiler.arrays.operands import (
    as_inexact,
    as_operand,
    astype_weak,
    compiled_function,
    compiled_list_function,
    static_axes,
    type_of,
)
from shardwise.compiler.arrays.promotion import default_dtype, promote_dtypes
from shardwise.compiler.arrays.reductions import Axes, amax, sum
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ops.elementwise.arithmetic import Add, StopGradient
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.complex_parts import Sign
from shardwise.compiler.ops.elementwise.rounding import IsFinite
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.elementwise.transcendental import Log

if TYPE_CHECKING:
    from shardwise.compiler.arrays.argument_types import ArrayLike


def logsumexp(
    a: "ArrayLike",
    axis: Axes = None,
    b: "ArrayLike | None" = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: "ArrayLike | None" = None,
) -> Any:
    """Compute log(sum(b * exp(a))) along `axis`, of the elements where `where` is true.

    With `return_sign`, return the logarithm of the absolute value of the sum and its sign; else NaN for a negative sum.
    """
    present = "b" * (b is not None) + "w" * (where is not None)
    arrays = [x for x in (b, where) if x is not None]
    results = _logsumexp(
        a, *arrays, present=present, axis=static_axes(axis), keepdims=keepdims, return_sign=return_sign
    )
    return tuple(results) if return_sign else results[0]


@compiled_list_function
def _logsumexp(
    a: "ArrayLike", *arrays: "ArrayLike", present: str, axis: Axes, keepdims: bool, return_sign: bool
) -> list[Any]:
    """Compute logsumexp. `present` lists the optional arrays: "b" for b, "w" for where."""
    optional = dict(zip(present, arrays, strict=True))
    factors, mask = optional.get("b"), optional.get("w")
    if mask is not None:
        a = select(mask, a, 0)
    dtype, weak = promote_dtypes(
        "logsumexp", [type_of(x, "logsumexp") for x in (a, *(() if factors is None else (factors,)))]
    )
    if not is_inexact(dtype):
        dtype = default_dtype("float*")
    x = astype_weak(as_operand(a, "logsumexp"), dtype, weak)
    if factors is not None:
        factors = astype_weak(as_operand(factors, "logsumexp"), dtype, weak)
        x = select(factors != 0, x, -np.inf)
    largest = _max_stop_gradient(real(x), mask, axis)
    offset = Select()(IsFinite()(largest), largest, full_like(largest, 0))
    exponentials = exp(subtract(x, astype_weak(offset, dtype, False)))
    if factors is not None:
        exponentials = multiply(exponentials, factors)
    total = sum(exponentials if mask is None else select(mask, exponentials, 0), axis=axis, keepdims=keepdims)
    sign = Sign()(total)
    if return_sign or dtype.kind != "c":
        total = absolute(total)
    shift = astype_weak(reshape(offset, shape=total.type.shape), total.type.dtype, False)
    result = Add()(Log()(total), shift)
    if return_sign:
        return [result, sign]
    if factors is not None and dtype.kind != "c":
        result = Select()(Compare("LT")(sign, full_like(sign, 0)), full_like(result, np.nan), result)
    return [result]


def softmax(x: "ArrayLike", axis: Axes = -1, where: "ArrayLike | None" = None) -> Any:
    """Compute exp(x) / sum(exp(x)) along `axis` over the elements where `where` is true; the others are 0."""
    return _softmax(x, *(() if where is None else (where,)), axis=static_axes(axis))


@compiled_function
def _softmax(x: "ArrayLike", *where: "ArrayLike", axis: Axes) -> Any:
    x, mask = as_inexact(x, "softmax"), where[0] if where else None
    exponentials = exp(subtract(_masked(x, mask), _max_stop_gradient(x, mask, axis)))
    result = divide(exponentials, sum(exponentials, axis=axis, keepdims=True))
    return result if mask is None else select(mask, result, 0)


def log_softmax(x: "ArrayLike", axis: Axes = -1, where: "ArrayLike | None" = None) -> Any:
    """Compute the logarithm of `softmax`; -inf where `where` is false."""
    return _log_softmax(x, *(() if where is None else (where,)), axis=static_axes(axis))


@compiled_function
def _log_softmax(x: "ArrayLike", *where: "ArrayLike", axis: Axes) -> Any:
    x, mask = as_inexact(x, "log_softmax"), where[0] if where else None
    shifted = subtract(_masked(x, mask), _max_stop_gradient(x, mask, axis))
    total = sum(exp(shifted), axis=axis, keepdims=True)
    result = subtract(shifted, Log()(total))
    return result if mask is None else select(mask, result, -np.inf)


def _masked(x: "ArrayLike", mask: "ArrayLike | None") -> Any:
    """Replace elements where the mask is false by -inf."""
    return x if mask is None else select(mask, x, -np.inf)


def _max_stop_gradient(x: "ArrayLike", mask: "ArrayLike | None", axis: Axes) -> Any:
    """Return the maximum of the masked elements along `axis`, with keepdims and without a derivative."""
    return StopGradient()(amax(_masked(x, mask), axis=axis, keepdims=True, allow_empty=True))
