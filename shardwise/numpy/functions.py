"""numpy's spelling of functions whose options are positional there."""

from typing import Any

from shardwise.compiler.ops import along_axes, methods, numeric
from shardwise.compiler.ops.operands import composed, static_axes, type_of
from shardwise.compiler.ops.powers import Square


def equal(x: Any, y: Any) -> Any:
    """`x == y`, element by element."""
    return methods.compare(x, y, direction="EQ")


def not_equal(x: Any, y: Any) -> Any:
    """`x != y`, element by element."""
    return methods.compare(x, y, direction="NE")


def less(x: Any, y: Any) -> Any:
    """`x < y`, element by element."""
    return methods.compare(x, y, direction="LT")


def less_equal(x: Any, y: Any) -> Any:
    """`x <= y`, element by element."""
    return methods.compare(x, y, direction="LE")


def greater(x: Any, y: Any) -> Any:
    """`x > y`, element by element."""
    return methods.compare(x, y, direction="GT")


def greater_equal(x: Any, y: Any) -> Any:
    """`x >= y`, element by element."""
    return methods.compare(x, y, direction="GE")


@composed
def _square(x: Any) -> Any:
    (x,) = numeric.numbers("square", x)
    return Square()(x)


def square(x: Any) -> Any:
    """`x * x`, element by element; booleans count as integers."""
    return _square(x)


def sum(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The sum along `axis` (all dims where none is given), of the elements `where` says, and of `initial`."""
    _no_out("sum", out)
    chosen = a if where is None else _where(where, a, 0)
    total = along_axes.sum(chosen, axis=static_axes(axis), dtype=dtype, keepdims=keepdims)
    return total if initial is None else numeric.add(total, _as(total, initial))


def prod(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The product along `axis` (all dims where none is given), of the elements `where` says, and of `initial`."""
    _no_out("prod", out)
    chosen = a if where is None else _where(where, a, 1)
    total = along_axes.prod(chosen, axis=static_axes(axis), dtype=dtype, keepdims=keepdims)
    return total if initial is None else numeric.multiply(total, _as(total, initial))


def max(
    a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """The largest along `axis` (of all where none is given), of the elements `where` says, and of `initial`."""
    return _extreme("max", a, axis, out, keepdims, initial, where)


def min(
    a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """The smallest along `axis` (of all where none is given), of the elements `where` says, and of `initial`."""
    return _extreme("min", a, axis, out, keepdims, initial, where)


def _extreme(name: str, a: Any, axis: Any, out: None, keepdims: bool, initial: Any, where: Any) -> Any:
    _no_out(name, out)
    if where is not None:
        if initial is None:
            raise ValueError(f"{name}: `where` may leave no element: pass `initial` too")
        a = _where(where, a, _as(a, initial))
    found = along_axes.amax if name == "max" else along_axes.amin
    if initial is None:
        return found(a, axis=static_axes(axis), keepdims=keepdims)
    pair = numeric.maximum if name == "max" else numeric.minimum
    reduced = found(a, axis=static_axes(axis), keepdims=keepdims, or_none=True)
    return pair(reduced, _as(reduced, initial))


def all(a: Any, axis: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Any:
    """Whether all elements along `axis`, of those `where` says, differ from 0."""
    _no_out("all", out)
    chosen = a if where is None else _where(where, a, 1)
    return along_axes.alltrue(chosen, axis=static_axes(axis), keepdims=keepdims)


def any(a: Any, axis: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None) -> Any:
    """Whether any element along `axis`, of those `where` says, differs from 0."""
    _no_out("any", out)
    chosen = a if where is None else _where(where, a, 0)
    return along_axes.sometrue(chosen, axis=static_axes(axis), keepdims=keepdims)


def argmax(a: Any, axis: int | None = None, out: None = None, keepdims: bool = False) -> Any:
    """Where along `axis` the first of the largest elements is; without one, in the flattened array."""
    _no_out("argmax", out)
    return along_axes.argmax(a, axis=axis, keepdims=keepdims)


def argmin(a: Any, axis: int | None = None, out: None = None, keepdims: bool = False) -> Any:
    """Where along `axis` the first of the smallest elements is; without one, in the flattened array."""
    _no_out("argmin", out)
    return along_axes.argmin(a, axis=axis, keepdims=keepdims)


def mean(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, *, where: Any = None
) -> Any:
    """The mean along `axis` (all dims where none is given) of the elements `where` says; integers become floats."""
    _no_out("mean", out)
    axes = static_axes(axis)
    if where is None:
        return along_axes.mean(a, axis=axes, dtype=dtype, keepdims=keepdims)
    return along_axes.mean_where(a, where, axis=axes, dtype=dtype, keepdims=keepdims)


def var(a: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: int = 0, keepdims: bool = False) -> Any:
    """The mean square distance from the mean along `axis`; the squares are shared by `ddof` fewer than there are."""
    _no_out("var", out)
    return along_axes.var(a, axis=static_axes(axis), dtype=dtype, ddof=ddof, keepdims=keepdims)


def std(a: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: int = 0, keepdims: bool = False) -> Any:
    """The square root of the variance along `axis`."""
    _no_out("std", out)
    return along_axes.std(a, axis=static_axes(axis), dtype=dtype, ddof=ddof, keepdims=keepdims)


def round(a: Any, decimals: int = 0, out: None = None) -> Any:
    """The nearest number of so many decimals; halfway between two, the one whose last digit is even."""
    _no_out("round", out)
    return numeric.around(a, decimals=decimals)


def clip(arr: Any, /, min: Any = None, max: Any = None) -> Any:
    """`arr`, but no less than `min`, and then no more than `max`; None is no bound."""
    return numeric.clip(arr, min, max)


def _where(where: Any, a: Any, other: Any) -> Any:
    return methods.where(where, a, _as(a, other))


def _as(like: Any, number: Any) -> Any:
    """A number or an array with the dtype of another."""
    return methods.astype(number, dtype=type_of(like).dtype)


def _no_out(name: str, out: Any) -> None:
    if out is not None:
        raise NotImplementedError(f"{name}: arrays are not written to, so `out` must be None")


def reshape(a: Any, shape: Any) -> Any:
    """The same elements in another shape; one size may be -1 and is worked out."""
    return methods.reshape(a, shape=static_axes(shape))


def transpose(a: Any, axes: Any = None) -> Any:
    """Dims in the order `axes`; reversed where none is given."""
    return methods.transpose(a, axes=static_axes(axes))


def broadcast_to(array: Any, shape: Any) -> Any:
    """`array` repeated to `shape`, by numpy's rule."""
    return methods.broadcast_to(array, shape=static_axes(shape))
