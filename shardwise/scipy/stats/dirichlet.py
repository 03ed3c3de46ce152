"""Dirichlet distribution of points on the probability simplex, along the first axis, with concentrations `alpha`."""

from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.docstrings import Family, documented
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function, type_of
from shardwise.numpy.elementwise import promote_inexact
from shardwise.scipy import special
from shardwise.typing import ArrayLike

_TOLERANCE = 1e-6  # allowed deviation of the sum of a point's components from 1


_DIRICHLET = Family(
    {
        "x": "the points, with their components along the first axis.",
        "alpha": "the concentrations, one for each component.",
    },
    raises=[
        "ValueError: if `alpha` is not a vector, or if `x` does not have `alpha.size` or `alpha.size - 1`\ncomponents.",
        "TypeError: if an argument is not an array or a number.",
    ],
)


@documented(_DIRICHLET)
def logpdf(x: ArrayLike, alpha: ArrayLike) -> Array:
    """Compute the log probability density function of the Dirichlet distribution.

    The last component of the points may be left out; it is then 1 minus the sum of the others.

    Returns:
        The log density of each point; -inf unless all components are positive and sum to 1.

    Example:
        >>> f"{jax.scipy.stats.dirichlet.logpdf(jnp.array([0.3, 0.7]), jnp.array([1.0, 2.0])):.4f}"
        '0.3365'
    """
    x_type, alpha_type = type_of(x, "dirichlet.logpdf"), type_of(alpha, "dirichlet.logpdf")
    if alpha_type.ndim != 1:
        raise ValueError(f"dirichlet: alpha must have rank 1, not {alpha_type}")
    if not x_type.ndim or x_type.shape[0] not in (alpha_type.size, alpha_type.size - 1):
        raise ValueError(
            "dirichlet: the first axis of x must have the size of alpha, or one less: "
            f"x is {x_type}, alpha is {alpha_type}"
        )
    return _logpdf(x, alpha)


@compiled_function
def _logpdf(x: ArrayLike, alpha: ArrayLike) -> Any:
    rank = type_of(x).ndim
    alpha = jnp.reshape(alpha, (-1, *(1,) * (rank - 1)))
    if type_of(x).shape[0] != alpha.shape[0]:
        x = jnp.concatenate([x, 1 - jnp.sum(x, axis=0, keepdims=True)])
    x, alpha = promote_inexact("dirichlet.logpdf", x, alpha)
    in_support = jnp.all(x > 0, axis=0) & (jnp.abs(jnp.sum(x, axis=0) - 1) < _TOLERANCE)
    x = jnp.where(in_support, x, 1)
    log_normalizer = special.gammaln(jnp.sum(alpha, axis=0)) - jnp.sum(special.gammaln(alpha), axis=0)
    return jnp.where(in_support, log_normalizer + jnp.sum(special.xlogy(alpha - 1, x), axis=0), -np.inf)


@documented(_DIRICHLET)
def pdf(x: ArrayLike, alpha: ArrayLike) -> Array:
    """Compute the probability density function of the Dirichlet distribution.

    The last component of the points may be left out; it is then 1 minus the sum of the others.

    Returns:
        The density of each point; 0 unless all components are positive and sum to 1.

    Example:
        >>> f"{jax.scipy.stats.dirichlet.pdf(jnp.array([0.3, 0.7]), jnp.array([1.0, 2.0])):.4f}"
        '1.4000'
    """
    return jnp.exp(logpdf(x, alpha))


publish(__name__)
