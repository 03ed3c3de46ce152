"""UnreducedKind: the reduction that combines the terms of an unreduced array."""

from collections.abc import Collection
from enum import Enum
from typing import final

from shardwise.errors import ShardingError, UnsupportedError


@final
class UnreducedKind(Enum):
    """The reduction over devices that an unreduced array still needs. Only `sum` is supported.

    Example:
        >>> P(unreduced={"x"}).unreduced_kind
        UnreducedKind.sum
    """

    sum = "sum"
    max = "max"
    min = "min"

    def __repr__(self) -> str:
        return str(self)


def kind_of(unreduced: Collection[str], requested: UnreducedKind | None, owner: str) -> UnreducedKind | None:
    """Return the kind of an array that is unreduced over these axes: None if there are none, else `sum`.

    Args:
        unreduced: the axes.
        requested: the kind that the user passed to the class `owner`, or None.
        owner: the name of the class, for errors.

    Raises:
        TypeError: if `requested` is something else.
        ShardingError: if a kind is requested without unreduced axes.
        UnsupportedError: if the kind is not `sum`.
    """
    if requested is not None and not isinstance(requested, UnreducedKind):
        raise TypeError(f"{owner}: unreduced_kind must be an UnreducedKind or None, not {requested!r}")
    if requested is not None and not unreduced:
        raise ShardingError(f"{owner}: unreduced_kind={requested} needs unreduced axes, and there are none")
    if requested in (UnreducedKind.max, UnreducedKind.min):
        raise UnsupportedError(
            f"{owner}: unreduced_kind={requested} is not supported yet. Unreduced arrays are sums; reduce maxima and "
            "minima at once, with `jnp.max` or `lax.pmax`."
        )
    return UnreducedKind.sum if unreduced else None
