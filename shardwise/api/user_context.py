"""make_user_context: values of the user's that are part of the cache key of jitted functions."""

from contextlib import AbstractContextManager
from typing import Any, final

from shardwise.base.config import config


@final
class UserContext:
    """A value that traced functions may read, as `make_user_context` returns it. Functions are traced per value.

    Calling it returns a context manager, which is also a decorator, in which it has another value in this thread.
    """

    def __init__(self, default_value: Any):
        self._default_value = default_value

    @property
    def value(self) -> Any:
        """The value in this thread."""
        return config.user_contexts.get(self, self._default_value)

    def get_global(self) -> Any:
        """Return the value in threads that do not override it."""
        return type(config).user_contexts.get(self, self._default_value)

    def set_global(self, new_value: Any) -> None:
        """Set the value in threads that do not override it."""
        config.update_user_context(self, new_value)

    def __call__(self, new_value: Any) -> AbstractContextManager[None]:
        return config.override_user_context(self, new_value)


def make_user_context(default_value: Any = None) -> UserContext:
    """Create a context whose value is part of the cache key of jitted functions.

    Args:
        default_value: the value outside of its context managers.

    Returns:
        A function from a hashable value to a context manager in which the context has this value; its attribute `value`
        is the current one.

    Raises:
        TypeError: on entry, if the value is not hashable.

    Example:
        >>> scale = jax.make_user_context(1.0)
        >>> f = jax.jit(lambda x: scale.value * x)
        >>> with scale(3.0):
        ...     print(f(2.0))
        6.0
        >>> print(f(2.0))
        2.0
    """
    return UserContext(default_value)
