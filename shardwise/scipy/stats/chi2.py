"""The distribution of the sum of `df` squares of normal numbers, from `loc` on and times `scale`."""

from typing import Any

from shardwise.compiler.ops.operands import composed
from shardwise.numpy.elementwise import floats
from shardwise.scipy.stats import gamma

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]


def _as_gamma(name: str, x: Any, df: Any, loc: Any, scale: Any) -> tuple[Any, Any, Any]:
    """Shape, place and width of the gamma distribution that it is."""
    _, df, loc, scale = floats(name, x, df, loc, scale)
    return 0.5 * df, loc, 2 * scale


@composed
def cdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies at or below `x`.

    >>> f"{jax.scipy.stats.chi2.cdf(1.5, 3.0):.4f}"
    '0.3177'
    """
    return gamma.cdf(x, *_as_gamma("chi2.cdf", x, df, loc, scale))


@composed
def logcdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies at or below `x`.

    >>> f"{jax.scipy.stats.chi2.logcdf(1.5, 3.0):.4f}"
    '-1.1466'
    """
    return gamma.logcdf(x, *_as_gamma("chi2.logcdf", x, df, loc, scale))


@composed
def logpdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the density at `x`.

    >>> f"{jax.scipy.stats.chi2.logpdf(1.5, 3.0):.4f}"
    '-1.4662'
    """
    return gamma.logpdf(x, *_as_gamma("chi2.logpdf", x, df, loc, scale))


@composed
def logsf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The logarithm of the share that lies above `x`.

    >>> f"{jax.scipy.stats.chi2.logsf(1.5, 3.0):.4f}"
    '-0.3823'
    """
    return gamma.logsf(x, *_as_gamma("chi2.logsf", x, df, loc, scale))


@composed
def pdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The density at `x`.

    >>> f"{jax.scipy.stats.chi2.pdf(1.5, 3.0):.4f}"
    '0.2308'
    """
    return gamma.pdf(x, *_as_gamma("chi2.pdf", x, df, loc, scale))


@composed
def sf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The share that lies above `x`.

    >>> f"{jax.scipy.stats.chi2.sf(1.5, 3.0):.4f}"
    '0.6823'
    """
    return gamma.sf(x, *_as_gamma("chi2.sf", x, df, loc, scale))
