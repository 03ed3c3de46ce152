"""Student's distribution with `df` degrees of freedom, around `loc` and times `scale`."""

from typing import Any

import shardwise.numpy as jnp
from shardwise.compiler.ops.operands import composed
from shardwise.scipy import special
from shardwise.scipy.stats.standard import standard

__all__ = ["logpdf", "pdf"]


@composed
def logpdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the density at `x`.

    >>> f"{jax.scipy.stats.t.logpdf(1.0, 4.0):.4f}"
    '-1.5387'
    """
    z, scale, df = standard("t.logpdf", x, loc, scale, df)
    height = -special.betaln(0.5 * df, 0.5) - 0.5 * jnp.log(df) - jnp.log(scale)
    return height - 0.5 * (df + 1) * jnp.log1p(z * z / df)


@composed
def pdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The density at `x`.

    >>> f"{jax.scipy.stats.t.pdf(1.0, 4.0):.4f}"
    '0.2147'
    """
    return jnp.exp(logpdf(x, df, loc, scale))
