"""jax.experimental.scheduling_groups: names for parts of a program, which XLA's scheduler keeps together.

JAX attaches the attributes to one call; here calls are inlined, and each op of the part has them.
"""

from collections.abc import Callable
from typing import Any

from shardwise.base.lazy import publish
from shardwise.experimental.xla_metadata import set_xla_metadata


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


def xla_metadata_call(f: Callable[..., Any] | None = None, **meta: str) -> Callable[..., Any]:
    """Attach attributes to the ops of a function.

    Args:
        f: the function; None to use it as a decorator.
        **meta: the attributes.

    Returns:
        The function, or a decorator.

    Raises:
        NotImplementedError: if a value is not a string.

    Example:
        >>> double = jax.experimental.scheduling_groups.xla_metadata_call(lambda x: x * 2, mark="here")
        >>> '"mark" = "here"' in jax.jit(double).lower(1.0).as_text()
        True
    """
    if wrong := [name for name, value in meta.items() if not isinstance(value, str)]:
        raise NotImplementedError(f"xla_metadata_call: the value of {wrong[0]!r} must be a string")
    decorate: Callable[..., Any] = set_xla_metadata(**meta)
    return decorate if f is None else decorate(f)


publish(__name__)
