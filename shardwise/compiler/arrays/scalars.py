"""Type checks, shared by arrays and tracers, before an array is converted to a Python scalar."""

from shardwise.compiler.dtypes import is_integer, is_key
from shardwise.compiler.ir.types import ArrayType


def check_truth_value(type: ArrayType) -> None:
    """Raise a ValueError unless an array of this type has one element, so that `bool(x)` is defined."""
    if type.size != 1:
        kind = "an empty array" if not type.size else "an array with more than one element"
        raise ValueError(f"the truth value of {kind}, {type}, is ambiguous: reduce it with `.any()` or `.all()`")


def check_scalar(type: ArrayType) -> None:
    """Raise a TypeError unless the type has rank 0, so that `int(x)`, `float(x)` and `complex(x)` are defined."""
    if type.ndim:
        raise TypeError(
            f"only arrays of rank 0 can be converted to Python scalars, not {type}: index it, or use `.item()`"
        )


def check_index(type: ArrayType) -> None:
    """Raise a TypeError unless the type is an integer of rank 0, so that Python can use it as an integer."""
    if type.ndim or is_key(type.dtype) or not (is_integer(type.dtype) or type.dtype.kind == "b"):
        raise TypeError(f"only integer arrays of rank 0 can be used as Python integers, not {type}")
