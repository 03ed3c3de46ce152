"""What distributions share: the standard form of one that was moved and stretched, and logarithms of shares."""

import math
from typing import Any

import shardwise.numpy as jnp
from shardwise.numpy.elementwise import floats


def standard(name: str, x: Any, loc: Any, scale: Any, *shapes: Any) -> list[Any]:
    """`(x - loc) / scale`, then `scale` and the parameters of shape: floats, broadcast to one shape."""
    x, loc, scale, *rest = floats(name, x, loc, scale, *shapes)
    return [(x - loc) / scale, scale, *rest]


def log_rest(x: Any) -> Any:
    """`log(1 - exp(-x))` of positive `x`: what is left of 1, exact where that is nearly nothing or nearly all."""
    is_small = x < math.log(2)
    small, large = jnp.where(is_small, x, 1), jnp.where(is_small, 1, x)
    return jnp.where(is_small, jnp.log(-jnp.expm1(-small)), jnp.log1p(-jnp.exp(-large)))


def is_share(q: Any) -> Any:
    """Whether it lies between 0 and 1."""
    return (q >= 0) & (q <= 1)
