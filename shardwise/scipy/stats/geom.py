"""Geometric distribution: the number of trials up to the first success, each with success probability `p`."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.numpy.elementwise import promote_inexact
from shardwise.scipy import special

__all__ = ["logpmf", "pmf"]


@compiled_function
def logpmf(k: Any, p: Any, loc: Any = 0) -> Array:
    """Compute the log probability mass function of the geometric distribution.

    Args:
        k: the outcomes.
        p: the success probability of a trial.
        loc: the shift of the distribution.

    Returns:
        The log probability of each `k`; -inf where `k - loc` is below 1.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.geom.logpmf(2, 0.3):.4f}"
        '-1.5606'
    """
    k, p, loc = promote_inexact("geom.logpmf", k, p, loc)
    failures = k - loc - 1
    return jnp.where(failures < 0, -np.inf, special.xlog1py(failures, -p) + jnp.log(p))


@compiled_function
def pmf(k: Any, p: Any, loc: Any = 0) -> Array:
    """Compute the probability mass function of the geometric distribution.

    Args:
        k: the outcomes.
        p: the success probability of a trial.
        loc: the shift of the distribution.

    Returns:
        The probability of each `k`; 0 where `k - loc` is below 1.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.geom.pmf(2, 0.3):.4f}"
        '0.2100'
    """
    return jnp.exp(logpmf(k, p, loc))


set_public_names(__name__, __all__)
