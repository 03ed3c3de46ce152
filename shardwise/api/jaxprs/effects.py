"""Effects of jaxprs, as libraries match on them."""

from typing import final


class Effect:
    """Base class of effects, which libraries derive from. Effects of one class are equal."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


@final
class DebugEffect(Effect):
    """The effect of `debug.print` and `debug.callback`.

    Example:
        >>> jax.make_jaxpr(lambda x: jax.debug.print("{}", x))(1.0).effects == {jax.debug.DebugEffect()}
        True
    """

    def __str__(self) -> str:
        return "Debug"


@final
class OrderedDebugEffect(Effect):
    """The effect of `debug.print` and `debug.callback` with `ordered=True`.

    Example:
        >>> str(jax.debug.OrderedDebugEffect())
        'OrderedDebug'
    """

    def __str__(self) -> str:
        return "OrderedDebug"
