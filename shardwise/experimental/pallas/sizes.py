"""Arithmetic with sizes of blocks: integers, some of which may be traced."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise import lax
from shardwise.compiler.arrays.methods import Array


def _are_static(*values: object) -> bool:
    return all(isinstance(value, (int, np.integer)) for value in values)


def cdiv(a: int | Array, b: int | Array) -> Any:
    """Divide integers and round up.

    Args:
        a: a nonnegative integer, which may be traced.
        b: a positive integer, which may be traced.

    Returns:
        The least integer that is at least `a / b`.

    Raises:
        ZeroDivisionError: if both are static and `b` is 0.

    Example:
        >>> pallas.cdiv(9, 4)
        3
    """
    return (a + b - 1) // b if _are_static(a, b) else lax.div(a + (b - 1), b)


def align_to(a: int | Array, alignment: int | Array) -> Any:
    """Round an integer up to a multiple of another one.

    Args:
        a: a nonnegative integer, which may be traced.
        alignment: a positive integer, which may be traced.

    Returns:
        The least multiple of `alignment` that is at least `a`.

    Raises:
        ZeroDivisionError: if both are static and `alignment` is 0.

    Example:
        >>> pallas.align_to(9, 4)
        12
    """
    return cdiv(a, alignment) * alignment


def next_power_of_2(x: int) -> int:
    """Return the least power of two that is at least an integer.

    Args:
        x: a nonnegative integer.

    Returns:
        The power of two; 1 for 0.

    Raises:
        ValueError: if `x` is negative.

    Example:
        >>> pallas.next_power_of_2(9)
        16
    """
    if x < 0:
        raise ValueError(f"next_power_of_2: {x} is negative: pass a size of at least 0")
    return 1 if x == 0 else 1 << (int(x) - 1).bit_length()


def strides_from_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the distance of neighbours along each dim of a row-major array.

    Args:
        shape: the sizes of the dims.

    Returns:
        The number of elements between neighbours, for each dim.

    Raises:
        TypeError: if a size is not an integer.

    Example:
        >>> pallas.strides_from_shape((2, 3, 4))
        (12, 4, 1)
    """
    sizes = [int(size) for size in shape]
    return tuple(int(np.prod(sizes[dim + 1 :], dtype=int)) for dim in range(len(sizes)))
