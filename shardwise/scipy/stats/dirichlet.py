"""The Dirichlet distribution: shares of a whole, along the first dim; `alpha` has one number for each."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed, type_of
from shardwise.numpy.elementwise import floats
from shardwise.scipy import special

__all__ = ["logpdf", "pdf"]

_TOLERANCE = 1e-6  # by how much the sum of the shares may miss 1


def logpdf(x: Any, alpha: Any) -> Any:
    """The logarithm of the density at `x`; the last of the shares may be left out.

    >>> f"{jax.scipy.stats.dirichlet.logpdf(jnp.array([0.3, 0.7]), jnp.array([1.0, 2.0])):.4f}"
    '0.3365'
    """
    given, parameters = type_of(x, "dirichlet.logpdf"), type_of(alpha, "dirichlet.logpdf")
    if parameters.ndim != 1:
        raise ValueError(f"dirichlet: alpha must be a row of numbers, not {parameters}")
    if not given.ndim or given.shape[0] not in (parameters.size, parameters.size - 1):
        raise ValueError(
            f"dirichlet: x must have as many shares along its first dim as alpha has numbers, or one less: {given} and "
            f"{parameters}"
        )
    return _logpdf(x, alpha)


@composed
def _logpdf(x: Any, alpha: Any) -> Any:
    rank = type_of(x).ndim
    alpha = jnp.reshape(alpha, (-1, *(1,) * (rank - 1)))
    if type_of(x).shape[0] != alpha.shape[0]:
        x = jnp.concatenate([x, 1 - jnp.sum(x, axis=0, keepdims=True)])
    x, alpha = floats("dirichlet.logpdf", x, alpha)
    inside = jnp.all(x > 0, axis=0) & (jnp.abs(jnp.sum(x, axis=0) - 1) < _TOLERANCE)
    shares = jnp.where(inside, x, 1)
    height = special.gammaln(jnp.sum(alpha, axis=0)) - jnp.sum(special.gammaln(alpha), axis=0)
    return jnp.where(inside, height + jnp.sum(special.xlogy(alpha - 1, shares), axis=0), -np.inf)


def pdf(x: Any, alpha: Any) -> Any:
    """The density at `x`; the last of the shares may be left out.

    >>> f"{jax.scipy.stats.dirichlet.pdf(jnp.array([0.3, 0.7]), jnp.array([1.0, 2.0])):.4f}"
    '1.4000'
    """
    return jnp.exp(logpdf(x, alpha))
