"""Special functions of one to three operands. Each stages one elementwise op.

They do not promote dtypes: all operands must have the same dtype. Scalars and dims of size 1 broadcast.
"""

from typing import Any

from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, compiled_function
from shardwise.compiler.special import approximations, gamma_erf, incomplete
from shardwise.lax.elementwise import broadcast_operands
from shardwise.typing import ArrayLike

_SPECIAL = Family(
    {
        "x": "an array of floats, or a scalar.",
        "a": "the exponent, positive floats.",
    },
    returns="An array of the broadcast shape and of the operands' dtype.",
    raises=[
        "TypeError: if the dtypes or ranks differ, the shapes do not broadcast, or the dtype is not a\nfloat dtype."
    ],
)


@documented(_SPECIAL, returns="An array of the same shape and dtype.")
def bessel_i0e(x: ArrayLike) -> Array:
    """Compute the exponentially scaled modified Bessel function of order 0: `exp(-|x|) * I0(x)`.

    Raises:
        TypeError: if `x` does not hold floats.

    Example:
        >>> f"{lax.bessel_i0e(1.0):.4f}"
        '0.4658'
    """
    return approximations.BesselI0e()(as_operand(x, "bessel_i0e"))


@documented(_SPECIAL, returns="An array of the same shape and dtype.")
def bessel_i1e(x: ArrayLike) -> Array:
    """Compute the exponentially scaled modified Bessel function of order 1: `exp(-|x|) * I1(x)`.

    Raises:
        TypeError: if `x` does not hold floats.

    Example:
        >>> f"{lax.bessel_i1e(1.0):.4f}"
        '0.2079'
    """
    return approximations.BesselI1e()(as_operand(x, "bessel_i1e"))


@compiled_function
@documented(_SPECIAL)
def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Compute the regularized incomplete beta function.

    It is differentiable with respect to `x` only.

    Args:
        a, b: the exponents, positive floats.
        x: the upper limit of the integral, in [0, 1].

    Raises:
        NotImplementedError: if it is differentiated with respect to `a` or `b`.

    Example:
        >>> f"{lax.betainc(2.0, 1.0, 0.5):.4f}"
        '0.2500'
    """
    return incomplete.Betainc()(*broadcast_operands("betainc", a, b, x))


@compiled_function
@documented(_SPECIAL)
def igamma(a: ArrayLike, x: ArrayLike) -> Array:
    """Compute the lower regularized incomplete gamma function.

    Args:
        x: the upper limit of the integral, non-negative.

    Example:
        >>> f"{lax.igamma(1.0, 1.0):.4f}"
        '0.6321'
    """
    return incomplete.Igamma()(*broadcast_operands("igamma", a, x))


@compiled_function
@documented(_SPECIAL)
def igammac(a: ArrayLike, x: ArrayLike) -> Array:
    """Compute the upper regularized incomplete gamma function `1 - igamma(a, x)`.

    Args:
        x: the lower limit of the integral, non-negative.

    Example:
        >>> f"{lax.igammac(1.0, 1.0):.4f}"
        '0.3679'
    """
    return incomplete.Igammac()(*broadcast_operands("igammac", a, x))


@compiled_function
@documented(_SPECIAL, raises=["NotImplementedError: if it is differentiated."])
def igamma_grad_a(a: ArrayLike, x: ArrayLike) -> Array:
    """Compute the derivative of `igamma(a, x)` with respect to `a`. It is not differentiable itself.

    Args:
        x: the upper limit of the integral, non-negative.

    Example:
        >>> f"{lax.igamma_grad_a(1.0, 1.0):.4f}"
        '-0.4317'
    """
    return incomplete.IgammaGradA()(*broadcast_operands("igamma_grad_a", a, x))


@compiled_function
def _random_gamma_grad(a: ArrayLike, x: ArrayLike) -> Any:
    return incomplete.RandomGammaGrad()(*broadcast_operands("random_gamma_grad", a, x))


@documented(_SPECIAL)
def random_gamma_grad(*args: Any) -> Array:
    """Compute the derivative of a sample of a gamma distribution with respect to its shape parameter.

    It is not differentiable itself.

    Args:
        *args: two arrays of floats: the shape parameter `a`, and the sample `x`.

    Raises:
        TypeError: if there are not two operands, they do not hold floats, or their types do not agree.
        NotImplementedError: if it is differentiated.

    Example:
        >>> f"{lax.random_gamma_grad(jnp.array(1.0), jnp.array(1.0)):.4f}"
        '1.1736'
    """
    if len(args) != 2:
        raise TypeError(f"lax.random_gamma_grad: needs two arrays, a and x, not {len(args)}")
    return _random_gamma_grad(*args)


@compiled_function
@documented(_SPECIAL)
def polygamma(m: ArrayLike, x: ArrayLike) -> Array:
    """Compute the polygamma function: the derivative of order `m` of `digamma`.

    It is differentiable with respect to `x` only.

    Args:
        m: the order, an integral float. Order 0 is `digamma`.
        x: an array of floats.

    Raises:
        NotImplementedError: if it is differentiated with respect to `m`.

    Example:
        >>> f"{lax.polygamma(1.0, 2.0):.4f}"
        '0.6449'
    """
    return gamma_erf.Polygamma()(*broadcast_operands("polygamma", m, x))


@compiled_function
@documented(_SPECIAL)
def zeta(x: ArrayLike, q: ArrayLike) -> Array:
    """Compute the Hurwitz zeta function: the sum of (q + n)^-x over n = 0, 1, 2, ...

    It is NaN for `x` below 1.

    Args:
        x: the exponent, an array of floats.
        q: the offset, an array of floats.

    Example:
        >>> f"{lax.zeta(2.0, 1.0):.4f}"
        '1.6449'
    """
    return gamma_erf.Zeta()(*broadcast_operands("zeta", x, q))
