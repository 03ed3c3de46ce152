"""The ufuncs of `shardwise.numpy`, such as `add` and `maximum`, with the methods reduce, accumulate, at and reduceat.

A call applies the elementwise function. `reduce` and `accumulate` use a reduction or cumulative op where there is one.
Otherwise they use `lax.reduce` and `associative_scan`, because the function is associative: along a sharded dim devices
then work in parallel.
"""

from typing import Any

import numpy as np

from shardwise.compiler.arrays import arithmetic, methods
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.reductions import reduced_dims
from shardwise.lax.cumulative import cummax, cummin
from shardwise.lax.generic_reduce import reduce as lax_reduce
from shardwise.lax.parallel_scan import associative_scan
from shardwise.numpy import elementwise, float_bits, ordering, reductions
from shardwise.numpy.creation import asarray, full_like
from shardwise.numpy.dtypes import bool_
from shardwise.numpy.vectorized import Function, ufunc
from shardwise.typing import ArrayLike, Axes, DTypeLike, Index


def _scatter(method: str) -> Function:
    """Implement `ufunc.at` by a method of `x.at[...]`."""

    def at(a: ArrayLike, indices: Index, b: ArrayLike) -> Any:
        return getattr(asarray(a).at[indices], method)(b)

    return at


def _reduction(function: Function) -> Function:
    """Implement `ufunc.reduce` by a reduction without a `dtype` parameter."""

    def reduce(
        a: ArrayLike,
        *,
        axis: Axes,
        dtype: DTypeLike | None,
        keepdims: bool,
        initial: ArrayLike | None,
        where: ArrayLike | None,
    ) -> Any:
        return function(asarray(a, dtype), axis=axis, keepdims=keepdims, initial=initial, where=where)

    return reduce


def _cumulative(function: Function) -> Function:
    """Implement `ufunc.accumulate` by a `lax` function, which does not accept negative axes."""

    def accumulate(a: ArrayLike, *, axis: int, dtype: DTypeLike | None) -> Any:
        x = asarray(a, dtype)
        return function(x, axis=canonical_axis("accumulate", axis, x.type.ndim))

    return accumulate


def _associative(name: str, function: Function, identity: ArrayLike, convert: Function) -> ufunc:
    """Create a ufunc from an associative function; `convert` is applied to the array before a reduction or update."""

    def reduce(
        a: ArrayLike,
        *,
        axis: Axes,
        dtype: DTypeLike | None,
        keepdims: bool,
        initial: ArrayLike | None,
        where: ArrayLike | None,
    ) -> Any:
        x = convert(asarray(a, dtype))
        if where is not None:
            x = methods.where(methods.broadcast_to(where, shape=x.type.shape), x, full_like(x, identity))
        dims = reduced_dims(name, axis, x.type)
        start = asarray(identity if initial is None else initial, x.type.dtype)
        result = lax_reduce(x, start, function, dims)
        kept_shape = tuple(1 if dim in dims else size for dim, size in enumerate(x.type.shape))
        return result.reshape(kept_shape) if keepdims else result

    def accumulate(a: ArrayLike, *, axis: int, dtype: DTypeLike | None) -> Any:
        return associative_scan(function, convert(asarray(a, dtype)), axis=axis)

    def at(a: ArrayLike, indices: Index, b: ArrayLike) -> Any:
        return sequential.at(convert(asarray(a)), indices, b, inplace=False)

    def reduceat(a: ArrayLike, indices: ArrayLike, *, axis: int, dtype: DTypeLike | None) -> Any:
        return sequential.reduceat(convert(asarray(a, dtype)), indices, axis)

    sequential = ufunc(function, 2, 1, name=name, call=function)
    return ufunc(
        function,
        2,
        1,
        name=name,
        identity=identity,
        call=function,
        reduce=reduce,
        accumulate=accumulate,
        at=at,
        reduceat=reduceat,
    )


def _to_float(x: ArrayLike) -> Any:
    return elementwise.promote_inexact("logaddexp", x)[0]


def _to_bool(x: Array) -> Any:
    return methods.astype(x, dtype=bool_)


def _unchanged(x: Array) -> Any:
    return x


def _binary(function: Function, **implementations: Any) -> ufunc:
    """Create a ufunc of two operands; the other methods are implemented by the named functions."""
    return ufunc(function, 2, 1, call=function, **implementations)


add = _binary(arithmetic.add, identity=0, reduce=reductions.sum, accumulate=ordering.cumsum, at=_scatter("add"))
multiply = _binary(
    arithmetic.multiply, identity=1, reduce=reductions.prod, accumulate=ordering.cumprod, at=_scatter("multiply")
)
subtract = _binary(arithmetic.subtract, at=_scatter("subtract"))
negative = ufunc(arithmetic.negative, 1, 1, call=arithmetic.negative)
maximum = _binary(
    arithmetic.maximum, reduce=_reduction(reductions.max), accumulate=_cumulative(cummax), at=_scatter("max")
)
minimum = _binary(
    arithmetic.minimum, reduce=_reduction(reductions.min), accumulate=_cumulative(cummin), at=_scatter("min")
)
bitwise_and = _associative("bitwise_and", arithmetic.bitwise_and, -1, _unchanged)
bitwise_or = _associative("bitwise_or", arithmetic.bitwise_or, 0, _unchanged)
bitwise_xor = _associative("bitwise_xor", arithmetic.bitwise_xor, 0, _unchanged)
logical_and = _associative("logical_and", elementwise.logical_and, True, _to_bool)
logical_or = _associative("logical_or", elementwise.logical_or, False, _to_bool)
logical_xor = _associative("logical_xor", elementwise.logical_xor, False, _to_bool)
logaddexp = _associative("logaddexp", elementwise.logaddexp, -np.inf, _to_float)
logaddexp2 = _associative("logaddexp2", float_bits.logaddexp2, -np.inf, _to_float)

# --- docstrings -------------------------------------------------------------------------------------------------------

_DOCSTRING = """{summary}

    Args:
        *args: {operands}.
        out, where: not supported. They must be None.

    Returns:
        {result}.

    Raises:
        TypeError: if the number of operands is wrong, or {error}.
        NotImplementedError: if `out` or `where` is given.

    Example:
        >>> {call}
        {output}
    """
_TWO = "the two operands, arrays or scalars, which broadcast against each other"
_INTEGERS = "the two operands, integers or booleans, which broadcast against each other"
_PROMOTED = "An array of the promoted dtype"
_BOOLEANS = "An array of booleans"
_MISMATCH = "one is not an array or a scalar, or the shapes do not broadcast"
_NOT_INTEGERS = "one is not integral or boolean, or the shapes do not broadcast"


def _document(
    function: ufunc,
    summary: str,
    call: str,
    output: str,
    operands: str = _TWO,
    result: str = _PROMOTED,
    error: str = _MISMATCH,
) -> None:
    """Set the docstring of a ufunc. `call` and its `output` are the example."""
    function.__doc__ = _DOCSTRING.format(
        summary=summary, operands=operands, result=result, error=error, call=call, output=output
    )


_document(
    add,
    "Add two arrays elementwise.",
    "jnp.add(jnp.array([1, 2]), 0.5)",
    "Array([1.5, 2.5], dtype=float32, weak_type=True)",
)
_document(
    multiply, "Multiply two arrays elementwise.", "jnp.multiply(jnp.array([1, 2]), 3)", "Array([3, 6], dtype=int32)"
)
_document(
    subtract,
    "Subtract two arrays elementwise.",
    "jnp.subtract(jnp.array([1, 2]), 3)",
    "Array([-2, -1], dtype=int32)",
    error=f"both are boolean, {_MISMATCH}",
)
_document(
    negative,
    "Negate an array elementwise.",
    "jnp.negative(jnp.array([1, -2]))",
    "Array([-1,  2], dtype=int32)",
    operands="the operand, an array or a scalar",
    result="An array of the dtype of the operand",
    error="the operand is boolean, or not an array or a scalar",
)
for _function, _kind, _output in ((maximum, "maximum", "[3, 5]"), (minimum, "minimum", "[1, 3]")):
    _document(
        _function,
        f"Return the elementwise {_kind} of two arrays.",
        f"jnp.{_kind}(jnp.array([1, 5]), 3)",
        f"Array({_output}, dtype=int32)",
        result="An array of the promoted dtype, NaN where either operand is",
    )
for _function, _kind, _output in (
    (bitwise_and, "AND", "[4, 0]"),
    (bitwise_or, "OR", "[5, 7]"),
    (bitwise_xor, "XOR", "[1, 7]"),
):
    _document(
        _function,
        f"Compute the bitwise {_kind} of two arrays elementwise; for booleans, the logical {_kind}.",
        f"jnp.bitwise_{_kind.lower()}(jnp.array([5, 3]), 4)",
        f"Array({_output}, dtype=int32)",
        operands=_INTEGERS,
        error=_NOT_INTEGERS,
    )
for _function, _kind, _other, _output in (
    (logical_and, "AND", True, "[False,  True,  True]"),
    (logical_or, "OR", False, "[False,  True,  True]"),
    (logical_xor, "XOR", True, "[ True, False, False]"),
):
    _document(
        _function,
        f"Compute the logical {_kind} of two arrays elementwise; nonzero elements count as true.",
        f"jnp.logical_{_kind.lower()}(jnp.array([0, 1, 2]), {_other})",
        f"Array({_output}, dtype=bool)",
        result=_BOOLEANS,
    )
_document(
    logaddexp,
    "Compute `log(exp(x1) + exp(x2))` elementwise without overflow.",
    "jnp.logaddexp(jnp.array([0.0, 1000.0]), 0.0)",
    "Array([6.931472e-01, 1.000000e+03], dtype=float32)",
    result="An array of the promoted inexact dtype",
)
_document(
    logaddexp2,
    "Compute `log2(2**x1 + 2**x2)` elementwise without overflow.",
    "jnp.logaddexp2(jnp.array([3.0, 200.0]), 3.0)",
    "Array([  4., 200.], dtype=float32)",
    result="An array of the promoted inexact dtype",
)
