"""Special functions beyond those of one operand: one elementwise op each.

They do not promote: operands have one dtype. A scalar, and a dim of size 1, is repeated to fit the others.
"""

from typing import Any

from shardwise.compiler.arrays.operands import as_operand, compiled_function
from shardwise.compiler.ops.special import approximations as approximated
from shardwise.compiler.ops.special import gamma_erf, incomplete
from shardwise.lax.elementwise import fitted


def bessel_i0e(x: Any) -> Any:
    """The modified Bessel function of order 0, times exp(-|x|).

    >>> f"{lax.bessel_i0e(1.0):.4f}"
    '0.4658'
    """
    return approximated.BesselI0e()(as_operand(x, "bessel_i0e"))


def bessel_i1e(x: Any) -> Any:
    """The modified Bessel function of order 1, times exp(-|x|).

    >>> f"{lax.bessel_i1e(1.0):.4f}"
    '0.2079'
    """
    return approximated.BesselI1e()(as_operand(x, "bessel_i1e"))


@compiled_function
def betainc(a: Any, b: Any, x: Any) -> Any:
    """The share of the beta function's integral, of exponents `a` and `b`, that lies below `x`.

    It can be differentiated along `x` alone.

    >>> f"{lax.betainc(2.0, 1.0, 0.5):.4f}"
    '0.2500'
    """
    return incomplete.Betainc()(*fitted("betainc", a, b, x))


@compiled_function
def igamma(a: Any, x: Any) -> Any:
    """The share of the gamma function's integral, of exponent `a`, that lies below `x`.

    >>> f"{lax.igamma(1.0, 1.0):.4f}"
    '0.6321'
    """
    return incomplete.Igamma()(*fitted("igamma", a, x))


@compiled_function
def igammac(a: Any, x: Any) -> Any:
    """The share of the gamma function's integral, of exponent `a`, that lies above `x`.

    >>> f"{lax.igammac(1.0, 1.0):.4f}"
    '0.3679'
    """
    return incomplete.Igammac()(*fitted("igammac", a, x))


@compiled_function
def igamma_grad_a(a: Any, x: Any) -> Any:
    """The derivative of `igamma` along `a`; it has none of its own.

    >>> f"{lax.igamma_grad_a(1.0, 1.0):.4f}"
    '-0.4317'
    """
    return incomplete.IgammaGradA()(*fitted("igamma_grad_a", a, x))


@compiled_function
def _random_gamma_grad(a: Any, x: Any) -> Any:
    return incomplete.RandomGammaGrad()(*fitted("random_gamma_grad", a, x))


def random_gamma_grad(*args: Any) -> Any:
    """By how much a draw `x` from the gamma distribution moves with its parameter `a`; it has no derivative of its own.

    >>> f"{lax.random_gamma_grad(jnp.array(1.0), jnp.array(1.0)):.4f}"
    '1.1736'
    """
    if len(args) != 2:
        raise TypeError(f"lax.random_gamma_grad: needs two arrays, a and x, not {len(args)}")
    return _random_gamma_grad(*args)


@compiled_function
def polygamma(m: Any, x: Any) -> Any:
    """The derivative of `digamma` of order `m`, which is whole; of order 0 it is `digamma`.

    It can be differentiated along `x` alone.

    >>> f"{lax.polygamma(1.0, 2.0):.4f}"
    '0.6449'
    """
    return gamma_erf.Polygamma()(*fitted("polygamma", m, x))


@compiled_function
def zeta(x: Any, q: Any) -> Any:
    """Hurwitz's zeta function: the sum of (q + n)^-x over all whole n from 0; NaN of `x` below 1.

    It can be differentiated along `q` alone.

    >>> f"{lax.zeta(2.0, 1.0):.4f}"
    '1.6449'
    """
    return gamma_erf.Zeta()(*fitted("zeta", x, q))
