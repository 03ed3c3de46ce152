"""is_integer and positive_integer: check numbers of stages, microbatches and so on."""

from typing import Any, TypeGuard

import numpy as np

from shardwise.errors import StrategyError


def is_integer(number: object) -> TypeGuard[int | np.integer[Any]]:
    """Return whether a number is an integer, of Python or of numpy, and not a boolean."""
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool)


def positive_integer(number: object, label: str) -> int:
    """Return a number as an integer of Python.

    Args:
        number: the number.
        label: the function and its parameter, for errors.

    Raises:
        StrategyError: if it is not a positive integer.
    """
    if not is_integer(number) or number < 1:
        raise StrategyError(f"{label} must be a positive integer, not {number!r}")
    return int(number)
