"""Helpers shared by the distributions: standardization by `loc` and `scale`, `log1mexp`, a range check."""

import math
from typing import Any

import shardwise.numpy as jnp
from shardwise.numpy.elementwise import promote_inexact


def standardize(name: str, x: Any, loc: Any, scale: Any, *shape_parameters: Any) -> list[Any]:
    """Return `(x - loc) / scale`, `scale` and the shape parameters, promoted to floats and broadcast together.

    `name` is the public function, for error messages.
    """
    x, loc, scale, *promoted = promote_inexact(name, x, loc, scale, *shape_parameters)
    return [(x - loc) / scale, scale, *promoted]


def log1mexp(x: Any) -> Any:
    """Compute `log(1 - exp(-x))` for positive `x` without cancellation, for small and for large `x`."""
    is_small = x < math.log(2)
    small, large = jnp.where(is_small, x, 1), jnp.where(is_small, 1, x)
    return jnp.where(is_small, jnp.log(-jnp.expm1(-small)), jnp.log1p(-jnp.exp(-large)))


def in_unit_interval(q: Any) -> Any:
    """Return whether each element is between 0 and 1."""
    return (q >= 0) & (q <= 1)
