"""numpy's spelling of functions whose options are positional there."""

from typing import Any

from shardwise.compiler.ops import along_axes, methods, numeric
from shardwise.compiler.ops.operands import composed, no_out, static_axes, type_of
from shardwise.compiler.ops.powers import Sqrt, Square
from shardwise.lax.named import pmax, pmin, psum
from shardwise.numpy import named
from shardwise.numpy.statistics import variance


def equal(x: Any, y: Any, /) -> Any:
    """`x == y`, element by element.

    >>> jnp.equal(jnp.array([1, 2]), 2)
    Array([False,  True], dtype=bool)
    """
    return methods.compare(x, y, direction="EQ")


def not_equal(x: Any, y: Any, /) -> Any:
    """`x != y`, element by element.

    >>> jnp.not_equal(jnp.array([1, 2]), 2)
    Array([ True, False], dtype=bool)
    """
    return methods.compare(x, y, direction="NE")


def less(x: Any, y: Any, /) -> Any:
    """`x < y`, element by element.

    >>> jnp.less(jnp.array([1, 2]), 2)
    Array([ True, False], dtype=bool)
    """
    return methods.compare(x, y, direction="LT")


def less_equal(x: Any, y: Any, /) -> Any:
    """`x <= y`, element by element.

    >>> jnp.less_equal(jnp.array([1, 2]), 2)
    Array([ True,  True], dtype=bool)
    """
    return methods.compare(x, y, direction="LE")


def greater(x: Any, y: Any, /) -> Any:
    """`x > y`, element by element.

    >>> jnp.greater(jnp.array([1, 3]), 2)
    Array([False,  True], dtype=bool)
    """
    return methods.compare(x, y, direction="GT")


def greater_equal(x: Any, y: Any, /) -> Any:
    """`x >= y`, element by element.

    >>> jnp.greater_equal(jnp.array([1, 2]), 2)
    Array([False,  True], dtype=bool)
    """
    return methods.compare(x, y, direction="GE")


@composed
def _square(x: Any) -> Any:
    (x,) = numeric.numbers("square", x)
    return Square()(x)


def square(x: Any, /) -> Any:
    """`x * x`, element by element; booleans count as integers.

    >>> jnp.square(jnp.array([2, -3]))
    Array([4, 9], dtype=int32)
    """
    return _square(x)


def sum(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
    promote_integers: bool = True,
) -> Any:
    """The sum along `axis` (all dims where none is given), of the elements `where` says, and of `initial`.
    Integers narrower than the default become as wide, unless `promote_integers` is false.

    >>> jnp.sum(jnp.array([[1, 2], [3, 4]]), axis=0)
    Array([4, 6], dtype=int32)
    """
    no_out("sum", out)
    dtype = dtype if promote_integers or dtype is not None else type_of(a, "sum").dtype
    chosen = a if where is None else _where(where, a, 0)
    dims, names = named.apart(axis)
    total = along_axes.sum(chosen, axis=dims, dtype=dtype, keepdims=keepdims)
    total = psum(total, names) if names else total
    return total if initial is None else numeric.add(total, _as(total, initial))


def prod(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
    promote_integers: bool = True,
) -> Any:
    """The product along `axis` (all dims where none is given), of the elements `where` says, and of `initial`.
    Integers narrower than the default become as wide, unless `promote_integers` is false.

    >>> jnp.prod(jnp.array([[1, 2], [3, 4]]), axis=1)
    Array([ 2, 12], dtype=int32)
    """
    no_out("prod", out)
    dtype = dtype if promote_integers or dtype is not None else type_of(a, "prod").dtype
    chosen = a if where is None else _where(where, a, 1)
    total = along_axes.prod(chosen, axis=static_axes(axis), dtype=dtype, keepdims=keepdims)
    return total if initial is None else numeric.multiply(total, _as(total, initial))


def max(
    a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """The largest along `axis` (of all where none is given), of the elements `where` says, and of `initial`.

    >>> jnp.max(jnp.array([[1, 5], [3, 4]]), axis=0)
    Array([3, 5], dtype=int32)
    """
    return _extreme("max", a, axis, out, keepdims, initial, where)


def min(
    a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """The smallest along `axis` (of all where none is given), of the elements `where` says, and of `initial`.

    >>> jnp.min(jnp.array([[1, 5], [3, 4]]), axis=0)
    Array([1, 4], dtype=int32)
    """
    return _extreme("min", a, axis, out, keepdims, initial, where)


def _extreme(name: str, a: Any, axis: Any, out: None, keepdims: bool, initial: Any, where: Any) -> Any:
    no_out(name, out)
    if where is not None:
        if initial is None:
            raise ValueError(f"{name}: `where` may leave no element: pass `initial` too")
        a = _where(where, a, _as(a, initial))
    find, over, pair = (
        (along_axes.amax, pmax, numeric.maximum) if name == "max" else (along_axes.amin, pmin, numeric.minimum)
    )
    dims, names = named.apart(axis)
    found = find(a, axis=dims, keepdims=keepdims, or_none=initial is not None)
    found = over(found, names) if names else found
    return found if initial is None else pair(found, _as(found, initial))


def all(a: Any, axis: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Any:
    """Whether all elements along `axis`, of those `where` says, differ from 0.

    >>> jnp.all(jnp.array([[1, 0], [3, 4]]), axis=1)
    Array([False,  True], dtype=bool)
    """
    no_out("all", out)
    chosen = a if where is None else _where(where, a, 1)
    dims, names = named.apart(axis)
    found = along_axes.alltrue(chosen, axis=dims, keepdims=keepdims)
    return pmin(found, names) if names else found


def any(a: Any, axis: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Any:
    """Whether any element along `axis`, of those `where` says, differs from 0.

    >>> jnp.any(jnp.array([[0, 0], [3, 0]]), axis=1)
    Array([False,  True], dtype=bool)
    """
    no_out("any", out)
    chosen = a if where is None else _where(where, a, 0)
    dims, names = named.apart(axis)
    found = along_axes.sometrue(chosen, axis=dims, keepdims=keepdims)
    return pmax(found, names) if names else found


def argmax(a: Any, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Any:
    """Where along `axis` the first of the largest elements is; without one, in the flattened array.

    >>> jnp.argmax(jnp.array([[1, 5], [7, 4]]), axis=1)
    Array([1, 0], dtype=int32)
    """
    no_out("argmax", out)
    return along_axes.argmax(a, axis=axis, keepdims=bool(keepdims))


def argmin(a: Any, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> Any:
    """Where along `axis` the first of the smallest elements is; without one, in the flattened array.

    >>> jnp.argmin(jnp.array([[1, 5], [7, 4]]), axis=1)
    Array([0, 1], dtype=int32)
    """
    no_out("argmin", out)
    return along_axes.argmin(a, axis=axis, keepdims=bool(keepdims))


def mean(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None
) -> Any:
    """The mean along `axis` (all dims where none is given) of the elements `where` says; integers become floats.

    >>> jnp.mean(jnp.array([[1, 2], [3, 4]]), axis=0)
    Array([2., 3.], dtype=float32)
    """
    no_out("mean", out)
    dims, names = named.apart(axis)
    if names:
        return named.mean(a, dims, names, dtype, keepdims, where)
    if where is None:
        return along_axes.mean(a, axis=dims, dtype=dtype, keepdims=keepdims)
    return along_axes.mean_where(a, where, axis=dims, dtype=dtype, keepdims=keepdims)


def var(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: Any = None,
    mean: Any = None,
    correction: float | None = None,
) -> Any:
    """The mean square distance from the mean along `axis`; the squares are shared by `ddof` fewer than there are
    (`correction` is another name of it). `where`: of which elements; `mean`: theirs, where it is known.

    >>> jnp.var(jnp.array([1.0, 2.0, 6.0]))
    Array(4.666667, dtype=float32)
    """
    no_out("var", out)
    return _spread("var", a, axis, dtype, ddof, keepdims, where, mean, correction)


def std(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: Any = None,
    mean: Any = None,
    correction: float | None = None,
) -> Any:
    """The square root of the variance along `axis`, with the same options as `var`.

    >>> jnp.std(jnp.array([1.0, 3.0]))
    Array(1., dtype=float32)
    """
    no_out("std", out)
    return _spread("std", a, axis, dtype, ddof, keepdims, where, mean, correction)


def _spread(
    name: str,
    a: Any,
    axis: Any,
    dtype: Any,
    ddof: float,
    keepdims: bool,
    where: Any,
    mean: Any,
    correction: float | None,
) -> Any:
    if correction is not None and ddof:
        raise ValueError(f"{name}: ddof and correction are two names of one number: give one of them")
    fewer = ddof if correction is None else correction
    axes, names = named.apart(axis)
    if names:
        found = named.variance(a, axes, names, dtype, fewer, keepdims, where, mean)
        return Sqrt()(found) if name == "std" else found
    if where is None and mean is None and isinstance(fewer, int):
        find = along_axes.var if name == "var" else along_axes.std
        return find(a, axis=axes, dtype=dtype, ddof=fewer, keepdims=keepdims)
    given = [x for x in (where, mean) if x is not None]
    return variance(
        a,
        *given,
        has=(where is not None, mean is not None),
        axis=axes,
        dtype=dtype,
        ddof=fewer,
        keepdims=keepdims,
        skips_nan=False,
        is_root=name == "std",
    )


def round(a: Any, decimals: int = 0, out: None = None) -> Any:
    """The nearest number of so many decimals; halfway between two, the one whose last digit is even.

    >>> jnp.round(jnp.array([1.25, 2.375]), 1)
    Array([1.2, 2.4], dtype=float32)
    """
    no_out("round", out)
    return numeric.around(a, decimals=decimals)


def clip(arr: Any = None, /, min: Any = None, max: Any = None) -> Any:
    """`arr`, but no less than `min`, and then no more than `max`; None is no bound.

    >>> jnp.clip(jnp.array([1, 5, 9]), 2, 6)
    Array([2, 5, 6], dtype=int32)
    """
    return numeric.clip(arr, min, max)


def _where(where: Any, a: Any, other: Any) -> Any:
    return methods.where(where, a, _as(a, other))


def _as(like: Any, number: Any) -> Any:
    """A number or an array with the dtype of another."""
    return methods.astype(number, dtype=type_of(like).dtype)
