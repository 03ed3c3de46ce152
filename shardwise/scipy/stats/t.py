"""Student's t distribution with `df` degrees of freedom, shifted by `loc` and scaled by `scale`."""

from typing import Any

import shardwise.numpy as jnp
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.scipy import special
from shardwise.scipy.stats.standardize import standardize

__all__ = ["logpdf", "pdf"]


@compiled_function
def logpdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log probability density function of Student's t distribution.

    Args:
        x: the points at which to evaluate the log density.
        df: the degrees of freedom.
        loc: the location.
        scale: the scale.

    Returns:
        The log density at each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.t.logpdf(1.0, 4.0):.4f}"
        '-1.5387'
    """
    z, scale, df = standardize("t.logpdf", x, loc, scale, df)
    log_normalizer = -special.betaln(0.5 * df, 0.5) - 0.5 * jnp.log(df) - jnp.log(scale)
    return log_normalizer - 0.5 * (df + 1) * jnp.log1p(z * z / df)


@compiled_function
def pdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the probability density function of Student's t distribution.

    Args:
        x: the points at which to evaluate the density.
        df: the degrees of freedom.
        loc: the location.
        scale: the scale.

    Returns:
        The density at each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.t.pdf(1.0, 4.0):.4f}"
        '0.2147'
    """
    return jnp.exp(logpdf(x, df, loc, scale))


set_public_names(__name__, __all__)
