"""Multinomial distribution: the counts of each outcome in `n` trials, along the last axis."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.docstrings import Family, documented
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, compiled_function, type_of
from shardwise.compiler.arrays.promotion import promote_dtypes
from shardwise.compiler.dtypes import is_integer
from shardwise.scipy import special
from shardwise.typing import ArrayLike

_MULTINOMIAL = Family(
    {
        "x": "the counts of the outcomes along the last axis, integers.",
        "n": "the number of trials, integers.",
        "p": "the probabilities of the outcomes along the last axis.",
    },
    raises=[
        "ValueError: if `x` or `n` are not integers.",
        "TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.",
    ],
)


@documented(_MULTINOMIAL)
def logpmf(x: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """Compute the log probability mass function of the multinomial distribution.

    Returns:
        The log probability of the counts; -inf where they do not sum to `n`.

    Example:
        >>> f"{jax.scipy.stats.multinomial.logpmf(jnp.array([1, 2]), 3, jnp.array([0.5, 0.5])):.4f}"
        '-0.9808'
    """
    dtype, _ = promote_dtypes("multinomial", [type_of(x, "multinomial"), type_of(n, "multinomial")])
    if not is_integer(dtype):
        raise ValueError(f"multinomial: x and n must be integers, not {type_of(x)} and {type_of(n)}")
    return _logpmf(x, n, p)


@compiled_function
def _logpmf(x: ArrayLike, n: ArrayLike, p: ArrayLike) -> Any:
    p = as_inexact(p, "multinomial")
    counts, total = jnp.asarray(x, p.dtype), jnp.asarray(n, p.dtype)
    log_coefficient = special.gammaln(total + 1) - jnp.sum(special.gammaln(counts + 1), axis=-1)
    log_mass = log_coefficient + jnp.sum(special.xlogy(counts, p), axis=-1)
    return jnp.where(jnp.equal(n, jnp.sum(x, axis=-1)), log_mass, -np.inf)


@documented(_MULTINOMIAL)
def pmf(x: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """Compute the probability mass function of the multinomial distribution.

    Returns:
        The probability of the counts; 0 where they do not sum to `n`.

    Example:
        >>> f"{jax.scipy.stats.multinomial.pmf(jnp.array([1, 2]), 3, jnp.array([0.5, 0.5])):.4f}"
        '0.3750'
    """
    return jnp.exp(logpmf(x, n, p))


publish(__name__)
