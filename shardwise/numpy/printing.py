"""Arrays as text. What numpy's options say about numbers holds for arrays too."""

from typing import Any

import numpy as np

from shardwise.runtime.array import Array


def array_repr(
    arr: Any, max_line_width: int | None = None, precision: int | None = None, suppress_small: bool | None = None
) -> str:
    """The text that `repr` gives, with other options for this once.

    >>> jnp.array_repr(jnp.array([1.23456, 2.0]), precision=2)
    'Array([1.23, 2.  ], dtype=float32)'
    """
    with _options(max_line_width, precision, suppress_small):
        return repr(arr) if isinstance(arr, Array) else np.array_repr(arr)


def array_str(
    a: Any, max_line_width: int | None = None, precision: int | None = None, suppress_small: bool | None = None
) -> str:
    """The text that `str` gives, with other options for this once.

    >>> jnp.array_str(jnp.array([1.23456, 2.0]), precision=2)
    '[1.23 2.  ]'
    """
    with _options(max_line_width, precision, suppress_small):
        return str(a) if isinstance(a, Array) else np.array_str(a)


def _options(max_line_width: int | None, precision: int | None, suppress_small: bool | None) -> Any:
    given = {"linewidth": max_line_width, "precision": precision, "suppress": suppress_small}
    return np.printoptions(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
