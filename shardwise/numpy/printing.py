"""array_repr and array_str. They follow `np.set_printoptions`, as `repr` and `str` of arrays do."""

from typing import Any

import numpy as np

from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays.methods import Array
from shardwise.runtime.array import ArrayImpl

_PRINTED = "an array of this library or of numpy."
_PRINTING = Family(
    {
        "arr": _PRINTED,
        "a": _PRINTED,
        "max_line_width": "the number of characters after which a line is broken.",
        "precision": "the number of digits after the decimal point.",
        "suppress_small": "whether numbers close to 0 are printed as 0 instead of in scientific notation.",
    },
    returns="The string.",
    raises=["TypeError: if the argument is not an array, or `precision` is not an integer."],
)


@documented(_PRINTING)
def array_repr(
    arr: Array | np.ndarray,
    max_line_width: int | None = None,
    precision: int | None = None,
    suppress_small: bool | None = None,
) -> str:
    """Return the `repr` of an array with the given print options.

    Options that are None keep the values of `np.printoptions`.

    Example:
        >>> jnp.array_repr(jnp.array([1.23456, 2.0]), precision=2)
        'Array([1.23, 2.  ], dtype=float32)'
    """
    _check_array("array_repr", arr)
    with _print_options(max_line_width, precision, suppress_small):
        return repr(arr) if isinstance(arr, ArrayImpl) else np.array_repr(arr)  # type: ignore[arg-type]  # a tracer raises


@documented(_PRINTING)
def array_str(
    a: Array | np.ndarray,
    max_line_width: int | None = None,
    precision: int | None = None,
    suppress_small: bool | None = None,
) -> str:
    """Return the `str` of an array with the given print options.

    Options that are None keep the values of `np.printoptions`.

    Example:
        >>> jnp.array_str(jnp.array([1.23456, 2.0]), precision=2)
        '[1.23 2.  ]'
    """
    _check_array("array_str", a)
    with _print_options(max_line_width, precision, suppress_small):
        return str(a) if isinstance(a, ArrayImpl) else np.array_str(a)  # type: ignore[arg-type]  # a tracer raises


def _check_array(name: str, x: object) -> None:
    if not isinstance(x, (Array, np.ndarray, np.generic)):
        raise TypeError(f"{name}: needs an array, not {x!r} of type {type(x).__name__}; convert it with `jnp.asarray`")


def _print_options(max_line_width: int | None, precision: int | None, suppress_small: bool | None) -> Any:
    options = {"linewidth": max_line_width, "precision": precision, "suppress": suppress_small}
    return np.printoptions(**{name: value for name, value in options.items() if value is not None})  # type: ignore[arg-type]
