"""Multivariate normal distribution along the last axis, with a mean vector and a covariance matrix.

Leading axes are batch axes and broadcast. A scalar `cov` is the variance of independent components. Where `mean` is a
scalar too, the distribution is univariate and the density is elementwise in `x`.
"""

import math
from typing import Any

import shardwise.numpy as jnp
from shardwise.base.docstrings import Family, documented
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function, type_of
from shardwise.compiler.arrays.promotion import default_dtype, promote_dtypes
from shardwise.scipy import linalg
from shardwise.typing import ArrayLike

_MULTIVARIATE_NORMAL = Family(
    {
        "x": "the points, with their components along the last axis.",
        "mean": "the mean vectors along the last axis, or a scalar.",
        "cov": "the covariance matrices along the last two axes, or a scalar variance.",
    },
    raises=[
        "ValueError: if `cov` is neither a scalar nor a matrix of the size of the mean vector.",
        "TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.",
    ],
)


@documented(_MULTIVARIATE_NORMAL, returns="The log density of each point.")
def logpdf(x: ArrayLike, mean: ArrayLike, cov: ArrayLike, allow_singular: None = None) -> Array:
    """Compute the log probability density function of the multivariate normal distribution.

    Leading axes are batch axes and broadcast.

    Args:
        allow_singular: not supported; must be None.

    Raises:
        NotImplementedError: if `allow_singular` is not None.

    Example:
        >>> f"{jax.scipy.stats.multivariate_normal.logpdf(jnp.ones(2), jnp.zeros(2), jnp.eye(2)):.4f}"
        '-2.8379'
    """
    if allow_singular is not None:
        raise NotImplementedError("multivariate_normal: allow_singular is not supported; cov must have full rank")
    mean_type, cov_type = type_of(mean, "multivariate_normal"), type_of(cov, "multivariate_normal")
    if cov_type.ndim and (cov_type.ndim < 2 or not mean_type.ndim or cov_type.shape[-2:] != (mean_type.shape[-1],) * 2):
        raise ValueError(
            "multivariate_normal: cov must be a scalar or a matrix of the size of the mean vector: "
            f"cov is {cov_type}, mean is {mean_type}"
        )
    return _logpdf(x, mean, cov)


@compiled_function
def _logpdf(x: ArrayLike, mean: ArrayLike, cov: ArrayLike) -> Any:
    dtype, _ = promote_dtypes("multivariate_normal", [type_of(x), type_of(mean), type_of(cov)])
    dtype = dtype if jnp.issubdtype(dtype, jnp.inexact) else default_dtype("float*")
    x, mean, cov = (jnp.asarray(y, dtype) for y in (x, mean, cov))
    deviation = x - mean
    if not mean.ndim:
        return -0.5 * (deviation * deviation / cov + math.log(2 * math.pi) + jnp.log(cov))
    size = mean.shape[-1]
    if not cov.ndim:
        squared_distance = jnp.sum(deviation * deviation, axis=-1) / cov
        half_log_det = 0.5 * size * jnp.log(cov)
    else:
        factor = jnp.linalg.cholesky(cov)
        batch = jnp.broadcast_shapes(deviation.shape[:-1], cov.shape[:-2])
        factors = jnp.broadcast_to(factor, (*batch, size, size))
        columns = jnp.broadcast_to(deviation, (*batch, size))[..., None]
        whitened = linalg.solve_triangular(factors, columns, lower=True)[..., 0]
        squared_distance = jnp.sum(whitened * whitened, axis=-1)
        half_log_det = jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)
    return -0.5 * squared_distance - 0.5 * size * math.log(2 * math.pi) - half_log_det


@documented(_MULTIVARIATE_NORMAL, returns="The density of each point.")
def pdf(x: ArrayLike, mean: ArrayLike, cov: ArrayLike) -> Array:
    """Compute the probability density function of the multivariate normal distribution.

    Leading axes are batch axes and broadcast.

    Example:
        >>> f"{jax.scipy.stats.multivariate_normal.pdf(jnp.ones(2), jnp.zeros(2), jnp.eye(2)):.4f}"
        '0.0585'
    """
    return jnp.exp(logpdf(x, mean, cov))


publish(__name__)
