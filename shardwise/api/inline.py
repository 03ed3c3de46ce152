"""Inline: when the ops of a jitted function that another traced function calls become ops of the caller."""

from enum import Enum
from typing import final


@final
class Inline(Enum):
    """A stage at which the call of a jitted function is inlined, for `jit(inline=...)`.

    `JAX_EARLY` stages the ops of the function in the caller's program, as `inline=True` does. With all others, the
    caller's program has one op for the call, and the compiler inlines it before it plans layouts.

    Example:
        >>> negate = jax.jit(lambda x: -x, inline=jax.Inline.JAX_EARLY)
        >>> [eqn.primitive.name for eqn in jax.make_jaxpr(negate)(1.0).eqns]
        ['neg']
    """

    JAX_EARLY = "jax_early"
    JAX_LATE = "jax_late"
    XLA_EARLY = "xla_early"
    XLA_LATE = "xla_late"
    AUTO = "auto"


def inlines_early(inline: bool | Inline) -> bool:
    """Return whether the argument `inline` of `jit` stages the function's ops in the caller.

    Raises:
        ValueError: if `inline` is neither a bool nor an `Inline`.
    """
    if not isinstance(inline, bool | Inline):
        raise ValueError(f"jit: inline must be a bool or a member of Inline, such as Inline.AUTO, not {inline!r}")
    return inline is True or inline is Inline.JAX_EARLY
