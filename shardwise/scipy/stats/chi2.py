"""Chi-squared distribution with `df` degrees of freedom, shifted by `loc` and scaled by `scale`."""

from typing import Any

from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.numpy.elementwise import promote_inexact
from shardwise.scipy.stats import gamma

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]


def _as_gamma(name: str, x: Any, df: Any, loc: Any, scale: Any) -> tuple[Any, Any, Any]:
    """Return `a`, `loc` and `scale` of the equivalent gamma distribution."""
    _, df, loc, scale = promote_inexact(name, x, df, loc, scale)
    return 0.5 * df, loc, 2 * scale


@compiled_function
def cdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the cumulative distribution function of the chi-squared distribution.

    Args:
        x: the points at which to evaluate the function.
        df: the degrees of freedom.
        loc: the lower end of the support.
        scale: the scale.

    Returns:
        The probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.chi2.cdf(1.5, 3.0):.4f}"
        '0.3177'
    """
    return gamma.cdf(x, *_as_gamma("chi2.cdf", x, df, loc, scale))


@compiled_function
def logcdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log cumulative distribution function of the chi-squared distribution.

    Args:
        x: the points at which to evaluate the function.
        df: the degrees of freedom.
        loc: the lower end of the support.
        scale: the scale.

    Returns:
        The log probability of a value at or below each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.chi2.logcdf(1.5, 3.0):.4f}"
        '-1.1466'
    """
    return gamma.logcdf(x, *_as_gamma("chi2.logcdf", x, df, loc, scale))


@compiled_function
def logpdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log probability density function of the chi-squared distribution.

    Args:
        x: the points at which to evaluate the log density.
        df: the degrees of freedom.
        loc: the lower end of the support.
        scale: the scale.

    Returns:
        The log density at each `x`; -inf below `loc`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.chi2.logpdf(1.5, 3.0):.4f}"
        '-1.4662'
    """
    return gamma.logpdf(x, *_as_gamma("chi2.logpdf", x, df, loc, scale))


@compiled_function
def logsf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the log survival function of the chi-squared distribution.

    Args:
        x: the points at which to evaluate the function.
        df: the degrees of freedom.
        loc: the lower end of the support.
        scale: the scale.

    Returns:
        The log probability of a value above each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.chi2.logsf(1.5, 3.0):.4f}"
        '-0.3823'
    """
    return gamma.logsf(x, *_as_gamma("chi2.logsf", x, df, loc, scale))


@compiled_function
def pdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the probability density function of the chi-squared distribution.

    Args:
        x: the points at which to evaluate the density.
        df: the degrees of freedom.
        loc: the lower end of the support.
        scale: the scale.

    Returns:
        The density at each `x`; 0 below `loc`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.chi2.pdf(1.5, 3.0):.4f}"
        '0.2308'
    """
    return gamma.pdf(x, *_as_gamma("chi2.pdf", x, df, loc, scale))


@compiled_function
def sf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Array:
    """Compute the survival function (1 - `cdf`) of the chi-squared distribution.

    Args:
        x: the points at which to evaluate the function.
        df: the degrees of freedom.
        loc: the lower end of the support.
        scale: the scale.

    Returns:
        The probability of a value above each `x`.

    Raises:
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.stats.chi2.sf(1.5, 3.0):.4f}"
        '0.6823'
    """
    return gamma.sf(x, *_as_gamma("chi2.sf", x, df, loc, scale))


set_public_names(__name__, __all__)
