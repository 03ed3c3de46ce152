"""numpy's spelling of functions whose options are positional there."""

from typing import Any

import numpy as np

from shardwise.compiler.ops import methods


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


def square(x: Any) -> Any:
    """`x * x`, element by element; booleans count as integers."""
    if methods.type_of(x, "square").dtype == np.bool_:
        x = methods.astype(x, dtype=np.int32)
    return methods.multiply(x, x)


def sum(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """The sum along `axis` (all dims where none is given)."""
    return methods.sum(a, axis=methods.static_axes(axis), dtype=dtype, keepdims=keepdims)


def mean(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """The mean along `axis` (all dims where none is given); integers become floats."""
    return methods.mean(a, axis=methods.static_axes(axis), dtype=dtype, keepdims=keepdims)


def reshape(a: Any, shape: Any) -> Any:
    """The same elements in another shape; one size may be -1 and is worked out."""
    return methods.reshape(a, shape=methods.static_axes(shape))


def transpose(a: Any, axes: Any = None) -> Any:
    """Dims in the order `axes`; reversed where none is given."""
    return methods.transpose(a, axes=methods.static_axes(axes))


def broadcast_to(array: Any, shape: Any) -> Any:
    """`array` repeated to `shape`, by numpy's rule."""
    return methods.broadcast_to(array, shape=methods.static_axes(shape))
