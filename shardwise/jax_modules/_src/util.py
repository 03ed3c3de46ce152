"""jax._src.util: positions of dims."""

import operator

from shardwise.base.missing_names import report_missing

__all__ = ["canonicalize_axis"]  # torchax


def canonicalize_axis(axis: int, num_dims: int) -> int:
    """Return the nonnegative position of an axis of an array of rank `num_dims`.

    Raises:
        ValueError: if there is no such axis.
    """
    position = operator.index(axis)
    if not -num_dims <= position < num_dims:
        raise ValueError(f"axis {position} is out of bounds for an array of rank {num_dims}")
    return position % num_dims


report_missing(__name__, __all__)
