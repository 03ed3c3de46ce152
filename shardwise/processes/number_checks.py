"""Checks of external numbers: options of commands, and arguments of `distributed.initialize`."""

import math
import operator
from numbers import Real

# Three years, and less than 2**31, because XLA counts seconds in 32 bits.
MAX_SECONDS = 10**8
MIN_SECONDS = 0.001
MAX_PROCESSES = 2**16  # XLA's ids of CPU devices have 20 bits for the process
# A Python process needs about 100 MB.
MAX_PROCESSES_PER_NODE = 1024


def check_integer(name: str, value: object, minimum: int, maximum: int) -> int:
    """Return an integer after checking its range.

    Args:
        name: the name of the option or argument, for errors.
        value: the value.
        minimum: the smallest valid value.
        maximum: the largest valid value.

    Raises:
        TypeError: if it is not an integer.
        ValueError: if it is out of range.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, not {value!r}")
    number = operator.index(value)
    if not minimum <= number <= maximum:
        raise ValueError(f"{name} must be from {minimum} to {maximum}, not {number}")
    return number


def check_seconds(name: str, value: object, minimum: float = MIN_SECONDS) -> float:
    """Return a number of seconds.

    Args:
        name: the name of the option or argument, for errors.
        value: the value.
        minimum: the smallest valid value.

    Raises:
        TypeError: if it is not a number.
        ValueError: if it is out of range, or NaN.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    try:
        seconds = float(value)
    except OverflowError:  # an integer
        seconds = math.inf
    if not minimum <= seconds <= MAX_SECONDS:  # true for NaN too
        raise ValueError(f"{name} must be from {minimum} to {MAX_SECONDS} seconds, not {seconds}")
    return seconds
