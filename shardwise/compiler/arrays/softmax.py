"""Sums of powers of e along axes that do not overflow: logsumexp, softmax, log_softmax. Composed of ops.

The largest element is taken out first, and has no part in the derivative.
"""

from typing import Any

import numpy as np

from shardwise.compiler.arrays.arithmetic import absolute, divide, exp, multiply, real, subtract
from shardwise.compiler.arrays.methods import reshape
from shardwise.compiler.arrays.methods import where as chosen
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


def logsumexp(
    a: Any, axis: Axes = None, b: Any = None, keepdims: bool = False, return_sign: bool = False, where: Any = None
) -> Any:
    """log(sum(b * exp(a))) along `axis`, of the elements that `where` says.

    With `return_sign`, the logarithm of its magnitude, and its sign; without, NaN where the sum is negative.
    """
    given = "b" * (b is not None) + "w" * (where is not None)
    arrays = [x for x in (b, where) if x is not None]
    found = _logsumexp(a, *arrays, given=given, axis=static_axes(axis), keepdims=keepdims, return_sign=return_sign)
    return tuple(found) if return_sign else found[0]


@compiled_list_function
def _logsumexp(a: Any, *arrays: Any, given: str, axis: Axes, keepdims: bool, return_sign: bool) -> list[Any]:
    """`given` says which arrays there are: b, w(here)."""
    parts = dict(zip(given, arrays, strict=True))
    factors, counts = parts.get("b"), parts.get("w")
    if counts is not None:
        a = chosen(counts, a, 0)
    dtype, weak = promote_dtypes(
        "logsumexp", [type_of(x, "logsumexp") for x in (a, *(() if factors is None else (factors,)))]
    )
    if not is_inexact(dtype):
        dtype = default_dtype("float*")
    x = astype_weak(as_operand(a, "logsumexp"), dtype, weak)
    if factors is not None:
        factors = astype_weak(as_operand(factors, "logsumexp"), dtype, weak)
        x = chosen(factors != 0, x, -np.inf)
    largest = _largest(real(x), counts, axis)
    finite = Select()(IsFinite()(largest), largest, full_like(largest, 0))
    powers = exp(subtract(x, astype_weak(finite, dtype, False)))
    if factors is not None:
        powers = multiply(powers, factors)
    total = sum(powers if counts is None else chosen(counts, powers, 0), axis=axis, keepdims=keepdims)
    sign = Sign()(total)
    if return_sign or dtype.kind != "c":
        total = absolute(total)
    shift = astype_weak(reshape(finite, shape=total.type.shape), total.type.dtype, False)
    found = Add()(Log()(total), shift)
    if return_sign:
        return [found, sign]
    if factors is not None and dtype.kind != "c":
        found = Select()(Compare("LT")(sign, full_like(sign, 0)), full_like(found, np.nan), found)
    return [found]


def softmax(x: Any, axis: Axes = -1, where: Any = None) -> Any:
    """exp(x) as shares of its sum along `axis`, of the elements that `where` says; 0 for the others."""
    return _softmax(x, *(() if where is None else (where,)), axis=static_axes(axis))


@compiled_function
def _softmax(x: Any, *where: Any, axis: Axes) -> Any:
    x, counts = as_inexact(x, "softmax"), where[0] if where else None
    powers = exp(subtract(_counted(x, counts), _largest(x, counts, axis)))
    found = divide(powers, sum(powers, axis=axis, keepdims=True))
    return found if counts is None else chosen(counts, found, 0)


def log_softmax(x: Any, axis: Axes = -1, where: Any = None) -> Any:
    """The logarithm of `softmax`; -inf for elements that do not count."""
    return _log_softmax(x, *(() if where is None else (where,)), axis=static_axes(axis))


@compiled_function
def _log_softmax(x: Any, *where: Any, axis: Axes) -> Any:
    x, counts = as_inexact(x, "log_softmax"), where[0] if where else None
    shifted = subtract(_counted(x, counts), _largest(x, counts, axis))
    total = sum(exp(shifted), axis=axis, keepdims=True)
    found = subtract(shifted, Log()(total))
    return found if counts is None else chosen(counts, found, -np.inf)


def _counted(x: Any, counts: Any) -> Any:
    """`x` with -inf for elements that do not count."""
    return x if counts is None else chosen(counts, x, -np.inf)


def _largest(x: Any, counts: Any, axis: Axes) -> Any:
    """The largest element that counts along `axis`, which stays as a dim of size 1; it has no derivative."""
    return StopGradient()(amax(_counted(x, counts), axis=axis, keepdims=True, allow_empty=True))
