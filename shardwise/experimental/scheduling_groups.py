"""jax.experimental.scheduling_groups: names for parts of a program, which XLA's scheduler keeps together."""

from collections.abc import Callable
from typing import Any

from shardwise.base.lazy import publish
from shardwise.experimental.xla_metadata import xla_metadata_call


def scheduling_group(name: str) -> Callable[..., Any]:
    """Return a decorator that puts the ops of a function into a scheduling group.

    Args:
        name: the name of the group.

    Returns:
        The decorator.

    Raises:
        Nothing.

    Example:
        >>> double = jax.experimental.scheduling_groups.scheduling_group("first")(lambda x: x * 2)
        >>> '"scheduling_group" = "first"' in jax.jit(double).lower(1.0).as_text()
        True
    """
    return xla_metadata_call(scheduling_group=name)


publish(__name__, "xla_metadata_call")
