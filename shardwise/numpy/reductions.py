"""numpy's comparisons, reductions, rounding and clipping.

`compiler.ops` holds the same functions with keyword-only options; these have numpy's positional parameters.
"""

from typing import Any

from shardwise.base.docstrings import Parameter, documented
from shardwise.compiler.arrays import arithmetic, methods, reductions
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function, reject_out, static_axes, type_of
from shardwise.compiler.arrays.promotion import requested_dtype
from shardwise.compiler.ops.elementwise.powers import Sqrt, Square
from shardwise.lax.collectives import pmax, pmin, psum
from shardwise.numpy import named_axes
from shardwise.numpy.families import ARRAYS, BINARY, COMPARISON, ELEMENTWISE, NOT_AN_ARRAY, OUT_OF_BOUNDS, REDUCTION
from shardwise.numpy.statistics import variance
from shardwise.typing import ArrayLike, Axes, DTypeLike, NamedAxes

_NAMED_AXES = REDUCTION.extended(
    {
        "axis": Parameter(
            "the axis or axes to reduce, ints or names of mapped axes (`vmap`, `shard_map`); all dims if None.",
            "ValueError: if an axis is out of bounds or repeats.",
        ),
        "dtype": "the dtype of the result; that of `a` if None, except for narrow integers.",
    }
)
_EXTREMUM = _NAMED_AXES.extended(
    raises=[
        "ValueError: if a reduced dim is empty and there is no `initial`, or if `where` is given without `initial`."
    ]
)
_SEARCH = ARRAYS.extended(
    {"axis": Parameter("the axis to search along; if None, the index is into the flattened array.", OUT_OF_BOUNDS)},
    "The indices, integers.",
    ["ValueError: if there are no elements."],
)
_MEAN = _NAMED_AXES.extended(
    {
        "a": Parameter("the array. Integers and booleans are converted to floats.", NOT_AN_ARRAY),
        "dtype": "the dtype of the result; that of `a` or the default float dtype if None.",
        "ddof": "the delta degrees of freedom: the sum of squares is divided by the number of elements minus `ddof`.",
        "mean": "the mean along the axes, with the reduced dims kept, if it is known already.",
        "correction": Parameter(
            "another name for `ddof`, from the array API standard.", "ValueError: if both `ddof` and {} are given."
        ),
    }
)


@documented(COMPARISON)
def equal(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Compare two arrays element-wise. This is the operator `x == y`.

    Example:
        >>> jnp.equal(jnp.array([1, 2]), 2)
        Array([False,  True], dtype=bool)
    """
    return methods.compare(x, y, direction="EQ")


@documented(COMPARISON)
def not_equal(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Compare two arrays element-wise. This is the operator `x != y`.

    Example:
        >>> jnp.not_equal(jnp.array([1, 2]), 2)
        Array([ True, False], dtype=bool)
    """
    return methods.compare(x, y, direction="NE")


@documented(COMPARISON)
def less(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Compare two arrays element-wise. This is the operator `x < y`.

    Example:
        >>> jnp.less(jnp.array([1, 2]), 2)
        Array([ True, False], dtype=bool)
    """
    return methods.compare(x, y, direction="LT")


@documented(COMPARISON)
def less_equal(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Compare two arrays element-wise. This is the operator `x <= y`.

    Example:
        >>> jnp.less_equal(jnp.array([1, 2]), 2)
        Array([ True,  True], dtype=bool)
    """
    return methods.compare(x, y, direction="LE")


@documented(COMPARISON)
def greater(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Compare two arrays element-wise. This is the operator `x > y`.

    Example:
        >>> jnp.greater(jnp.array([1, 3]), 2)
        Array([False,  True], dtype=bool)
    """
    return methods.compare(x, y, direction="GT")


@documented(COMPARISON)
def greater_equal(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Compare two arrays element-wise. This is the operator `x >= y`.

    Example:
        >>> jnp.greater_equal(jnp.array([1, 2]), 2)
        Array([False,  True], dtype=bool)
    """
    return methods.compare(x, y, direction="GE")


@compiled_function
def _square(x: ArrayLike) -> Any:
    (x,) = arithmetic.promote_numeric("square", x)
    return Square()(x)


@documented(ELEMENTWISE)
def square(x: ArrayLike, /) -> Array:
    """Compute `x * x` element-wise.

    Args:
        x: the array. Booleans are converted to integers.

    Example:
        >>> jnp.square(jnp.array([2, -3]))
        Array([4, 9], dtype=int32)
    """
    return _square(x)


@documented(_NAMED_AXES, returns="The sums.")
def sum(
    a: ArrayLike,
    axis: NamedAxes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
    promote_integers: bool = True,
) -> Array:
    """Compute the sum along axes.

    Floats narrower than 32 bits are accumulated in float32.

    Args:
        initial: a value to add to the sum.
        promote_integers: whether booleans and integers narrower than the default are summed in the default width.

    Example:
        >>> jnp.sum(jnp.array([[1, 2], [3, 4]]), axis=0)
        Array([4, 6], dtype=int32)
    """
    reject_out("sum", out)
    dtype = _result_dtype("sum", a, dtype, promote_integers)
    included = a if where is None else _mask(where, a, 0)
    dims, names = named_axes.split_axis_names(axis)
    total = reductions.sum(included, axis=dims, dtype=dtype, keepdims=keepdims)
    total = psum(total, names) if names else total
    return total if initial is None else arithmetic.add(total, _cast_like(total, initial))


@documented(REDUCTION, returns="The products.")
def prod(
    a: ArrayLike,
    axis: Axes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
    promote_integers: bool = True,
) -> Array:
    """Compute the product along axes.

    Args:
        dtype: the dtype of the result; that of `a` if None, except for narrow integers.
        initial: a value to multiply the product by.
        promote_integers: whether booleans and integers narrower than the default are multiplied in the default width.

    Example:
        >>> jnp.prod(jnp.array([[1, 2], [3, 4]]), axis=1)
        Array([ 2, 12], dtype=int32)
    """
    reject_out("prod", out)
    dtype = _result_dtype("prod", a, dtype, promote_integers)
    included = a if where is None else _mask(where, a, 1)
    total = reductions.prod(included, axis=static_axes(axis), dtype=dtype, keepdims=keepdims)
    return total if initial is None else arithmetic.multiply(total, _cast_like(total, initial))


@documented(_EXTREMUM, returns="The maxima.")
def max(
    a: ArrayLike,
    axis: NamedAxes = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Compute the maximum along axes. NaN propagates.

    Args:
        initial: a lower bound of the result, which is also the maximum of no elements.

    Example:
        >>> jnp.max(jnp.array([[1, 5], [3, 4]]), axis=0)
        Array([3, 5], dtype=int32)
    """
    return _extremum("max", a, axis, out, keepdims, initial, where)


@documented(_EXTREMUM, returns="The minima.")
def min(
    a: ArrayLike,
    axis: NamedAxes = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Compute the minimum along axes. NaN propagates.

    Args:
        initial: an upper bound of the result, which is also the minimum of no elements.

    Example:
        >>> jnp.min(jnp.array([[1, 5], [3, 4]]), axis=0)
        Array([1, 4], dtype=int32)
    """
    return _extremum("min", a, axis, out, keepdims, initial, where)


@documented(_EXTREMUM, returns="The minima and the maxima.")
def minmax(
    a: ArrayLike,
    axis: NamedAxes = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
    where: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Compute the minimum and the maximum along axes. NaN propagates.

    Args:
        initial: an upper bound of the minimum and a lower bound of the maximum, or one number for both. They are also
            the results for no elements.

    Example:
        >>> jnp.minmax(jnp.array([[1, 5], [3, 4]]), axis=0)
        (Array([1, 4], dtype=int32), Array([3, 5], dtype=int32))
    """
    lowest, highest = initial if isinstance(initial, tuple) else (initial, initial)
    return min(a, axis, out, keepdims, lowest, where), max(a, axis, out, keepdims, highest, where)


def _extremum(
    name: str,
    a: ArrayLike,
    axis: NamedAxes,
    out: None,
    keepdims: bool,
    initial: ArrayLike | None,
    where: ArrayLike | None,
) -> Any:
    reject_out(name, out)
    if where is not None:
        if initial is None:
            raise ValueError(f"{name}: `where` needs `initial`, because it may mask out all elements")
        a = _mask(where, a, _cast_like(a, initial))
    reduce, collective, combine = (
        (reductions.amax, pmax, arithmetic.maximum) if name == "max" else (reductions.amin, pmin, arithmetic.minimum)
    )
    dims, names = named_axes.split_axis_names(axis)
    result = reduce(a, axis=dims, keepdims=keepdims, allow_empty=initial is not None)
    result = collective(result, names) if names else result
    return result if initial is None else combine(result, _cast_like(result, initial))


@documented(_NAMED_AXES, returns="A boolean array. The result for no elements is True.")
def all(
    a: ArrayLike, axis: NamedAxes = None, out: None = None, keepdims: bool = False, *, where: ArrayLike | None = None
) -> Array:
    """Return whether all elements along axes are nonzero.

    Example:
        >>> jnp.all(jnp.array([[1, 0], [3, 4]]), axis=1)
        Array([False,  True], dtype=bool)
    """
    reject_out("all", out)
    included = a if where is None else _mask(where, a, 1)
    dims, names = named_axes.split_axis_names(axis)
    result = reductions.alltrue(included, axis=dims, keepdims=keepdims)
    return pmin(result, names) if names else result


@documented(_NAMED_AXES, returns="A boolean array. The result for no elements is False.")
def any(
    a: ArrayLike, axis: NamedAxes = None, out: None = None, keepdims: bool = False, *, where: ArrayLike | None = None
) -> Array:
    """Return whether any element along axes is nonzero.

    Example:
        >>> jnp.any(jnp.array([[0, 0], [3, 0]]), axis=1)
        Array([False,  True], dtype=bool)
    """
    reject_out("any", out)
    included = a if where is None else _mask(where, a, 0)
    dims, names = named_axes.split_axis_names(axis)
    result = reductions.sometrue(included, axis=dims, keepdims=keepdims)
    return pmax(result, names) if names else result


@documented(_SEARCH)
def argmax(a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Array:
    """Return the index of the maximum along an axis.

    Args:
        a: the array. Of equal maxima the first counts; NaN counts as the maximum.

    Example:
        >>> jnp.argmax(jnp.array([[1, 5], [7, 4]]), axis=1)
        Array([1, 0], dtype=int32)
    """
    reject_out("argmax", out)
    return reductions.argmax(a, axis=static_axes(axis), keepdims=bool(keepdims))


@documented(_SEARCH)
def argmin(a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Array:
    """Return the index of the minimum along an axis.

    Args:
        a: the array. Of equal minima the first counts; NaN counts as the minimum.

    Example:
        >>> jnp.argmin(jnp.array([[1, 5], [7, 4]]), axis=1)
        Array([0, 1], dtype=int32)
    """
    reject_out("argmin", out)
    return reductions.argmin(a, axis=static_axes(axis), keepdims=bool(keepdims))


@documented(_MEAN, returns="The means; NaN where there are no elements.")
def mean(
    a: ArrayLike,
    axis: NamedAxes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array:
    """Compute the arithmetic mean along axes.

    Example:
        >>> jnp.mean(jnp.array([[1, 2], [3, 4]]), axis=0)
        Array([2., 3.], dtype=float32)
    """
    reject_out("mean", out)
    out_dtype = requested_dtype("mean", dtype)
    dims, names = named_axes.split_axis_names(axis)
    if names:
        return named_axes.mean(a, dims, names, out_dtype, keepdims, where)
    if where is None:
        return reductions.mean(a, axis=dims, dtype=out_dtype, keepdims=keepdims)
    return reductions.mean_where(a, where, axis=dims, dtype=out_dtype, keepdims=keepdims)


@documented(_MEAN, returns="The variances, real.")
def var(
    a: ArrayLike,
    axis: NamedAxes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    correction: float | None = None,
) -> Array:
    """Compute the variance along axes.

    Example:
        >>> jnp.var(jnp.array([1.0, 2.0, 6.0]))
        Array(4.666667, dtype=float32)
    """
    reject_out("var", out)
    return _variance("var", a, axis, dtype, ddof, keepdims, where, mean, correction)


@documented(_MEAN, returns="The square roots of the variances.")
def std(
    a: ArrayLike,
    axis: NamedAxes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    correction: float | None = None,
) -> Array:
    """Compute the standard deviation along axes.

    Example:
        >>> jnp.std(jnp.array([1.0, 3.0]))
        Array(1., dtype=float32)
    """
    reject_out("std", out)
    return _variance("std", a, axis, dtype, ddof, keepdims, where, mean, correction)


def _result_dtype(name: str, a: ArrayLike, dtype: DTypeLike | None, promote_integers: bool) -> Any:
    """Return the dtype of a sum or product; None for the default."""
    if dtype is None and not promote_integers:
        return type_of(a, name).dtype
    return requested_dtype(name, dtype)


def _variance(
    name: str,
    a: ArrayLike,
    axis: NamedAxes,
    dtype: DTypeLike | None,
    ddof: float,
    keepdims: bool,
    where: ArrayLike | None,
    mean: ArrayLike | None,
    correction: float | None,
) -> Any:
    """Compute the variance, or its root if `name` is "std"."""
    if correction is not None and ddof:
        raise ValueError(f"{name}: ddof and correction are the same parameter; pass only one of them")
    ddof = ddof if correction is None else correction
    out_dtype = requested_dtype(name, dtype)
    axes, names = named_axes.split_axis_names(axis)
    if names:
        result = named_axes.variance(a, axes, names, out_dtype, ddof, keepdims, where, mean)
        return Sqrt()(result) if name == "std" else result
    if where is None and mean is None and isinstance(ddof, int):
        reduce = reductions.var if name == "var" else reductions.std
        return reduce(a, axis=axes, dtype=out_dtype, ddof=ddof, keepdims=keepdims)
    optional = [x for x in (where, mean) if x is not None]
    return variance(
        a,
        *optional,
        has=(where is not None, mean is not None),
        axis=axes,
        dtype=out_dtype,
        ddof=ddof,
        keepdims=keepdims,
        skips_nan=False,
        is_root=name == "std",
    )


@documented(ARRAYS, returns="An array of the shape and dtype of `a`.")
def round(a: ArrayLike, decimals: int = 0, out: None = None) -> Array:
    """Round element-wise to a number of decimals, ties to even.

    Args:
        a: the array. Integers and booleans are returned unchanged.
        decimals: the number of decimals; negative for floats rounds to tens, hundreds and so on.

    Raises:
        NotImplementedError: if `out` is given, or if `a` is of integers and `decimals` is negative.

    Example:
        >>> jnp.round(jnp.array([1.25, 2.375]), 1)
        Array([1.2, 2.4], dtype=float32)
    """
    reject_out("round", out)
    return arithmetic.around(a, decimals=decimals)


@documented(BINARY)
def clip(arr: ArrayLike | None = None, /, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Array:
    """Limit elements to an interval.

    Args:
        arr: the array.
        min: the lower bound, broadcast against `arr`; None for no bound.
        max: the upper bound, broadcast against `arr`; None for no bound. It is applied last.

    Example:
        >>> jnp.clip(jnp.array([1, 5, 9]), 2, 6)
        Array([2, 5, 6], dtype=int32)
    """
    return arithmetic.clip(arr, min, max)


def _mask(where: ArrayLike, a: ArrayLike, other: ArrayLike) -> Any:
    """Return `a` where the mask is true, else `other`."""
    return methods.where(where, a, _cast_like(a, other))


def _cast_like(like: ArrayLike, value: ArrayLike) -> Any:
    """Cast a number or an array to the dtype of `like`."""
    return methods.astype(value, dtype=type_of(like).dtype)
