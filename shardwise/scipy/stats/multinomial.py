"""How often each outcome comes in `n` trials, along the last dim; `p` are their chances."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.ir.types import is_integer
from shardwise.compiler.ops.operands import as_inexact, composed, type_of
from shardwise.compiler.ops.promote import meet
from shardwise.scipy import special

__all__ = ["logpmf", "pmf"]


def logpmf(x: Any, n: Any, p: Any) -> Any:
    """The logarithm of the chance of the counts `x`: minus infinity where they do not add up to `n`.

    >>> f"{jax.scipy.stats.multinomial.logpmf(jnp.array([1, 2]), 3, jnp.array([0.5, 0.5])):.4f}"
    '-0.9808'
    """
    dtype, _ = meet("multinomial", [type_of(x, "multinomial"), type_of(n, "multinomial")])
    if not is_integer(dtype):
        raise ValueError(f"multinomial: x and n must be integers, not {type_of(x)} and {type_of(n)}")
    return _logpmf(x, n, p)


@composed
def _logpmf(x: Any, n: Any, p: Any) -> Any:
    p = as_inexact(p, "multinomial")
    counts, total = jnp.asarray(x, p.dtype), jnp.asarray(n, p.dtype)
    ways = special.gammaln(total + 1) - jnp.sum(special.gammaln(counts + 1), axis=-1)
    found = ways + jnp.sum(special.xlogy(counts, p), axis=-1)
    return jnp.where(jnp.equal(n, jnp.sum(x, axis=-1)), found, -np.inf)


def pmf(x: Any, n: Any, p: Any) -> Any:
    """The chance of the counts `x`: 0 where they do not add up to `n`.

    >>> f"{jax.scipy.stats.multinomial.pmf(jnp.array([1, 2]), 3, jnp.array([0.5, 0.5])):.4f}"
    '0.3750'
    """
    return jnp.exp(logpmf(x, n, p))
