"""The normal distribution of vectors, along the last dim, with a mean vector and a covariance matrix.

Dims in front broadcast. A covariance that is a number stands for independent parts of that variance each; where the
mean is a number too, `x` is not a vector but numbers, each with a density of its own.
"""

import math
from typing import Any

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed, type_of
from shardwise.compiler.ops.promote import default_dtype, meet
from shardwise.scipy import linalg

__all__ = ["logpdf", "pdf"]


def logpdf(x: Any, mean: Any, cov: Any, allow_singular: None = None) -> Any:
    """The logarithm of the density at `x`. There is no `allow_singular`: it must be None.

    >>> f"{jax.scipy.stats.multivariate_normal.logpdf(jnp.ones(2), jnp.zeros(2), jnp.eye(2)):.4f}"
    '-2.8379'
    """
    if allow_singular is not None:
        raise NotImplementedError("multivariate_normal: a covariance must have full rank; leave out allow_singular")
    center, spread = type_of(mean, "multivariate_normal"), type_of(cov, "multivariate_normal")
    if spread.ndim and (spread.ndim < 2 or not center.ndim or spread.shape[-2:] != (center.shape[-1],) * 2):
        raise ValueError(f"multivariate_normal: {spread} is no covariance matrix for a mean of {center}")
    return _logpdf(x, mean, cov)


@composed
def _logpdf(x: Any, mean: Any, cov: Any) -> Any:
    dtype, _ = meet("multivariate_normal", [type_of(x), type_of(mean), type_of(cov)])
    dtype = dtype if jnp.issubdtype(dtype, jnp.inexact) else default_dtype("float*")
    x, mean, cov = (jnp.asarray(y, dtype) for y in (x, mean, cov))
    apart = x - mean
    if not mean.ndim:
        return -0.5 * (apart * apart / cov + math.log(2 * math.pi) + jnp.log(cov))
    size = mean.shape[-1]
    if not cov.ndim:
        squares, log_size = jnp.sum(apart * apart, axis=-1) / cov, 0.5 * size * jnp.log(cov)
    else:
        factor = jnp.linalg.cholesky(cov)
        front = jnp.broadcast_shapes(apart.shape[:-1], cov.shape[:-2])
        factors = jnp.broadcast_to(factor, (*front, size, size))
        columns = jnp.broadcast_to(apart, (*front, size))[..., None]
        solved = linalg.solve_triangular(factors, columns, lower=True)[..., 0]
        squares = jnp.sum(solved * solved, axis=-1)
        log_size = jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)
    return -0.5 * squares - 0.5 * size * math.log(2 * math.pi) - log_size


def pdf(x: Any, mean: Any, cov: Any) -> Any:
    """The density at `x`.

    >>> f"{jax.scipy.stats.multivariate_normal.pdf(jnp.ones(2), jnp.zeros(2), jnp.eye(2)):.4f}"
    '0.0585'
    """
    return jnp.exp(logpdf(x, mean, cov))
