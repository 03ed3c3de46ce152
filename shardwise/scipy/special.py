"""scipy's special functions, with JAX's promotion: integers become floats, operands broadcast.

All but those along an axis work on each element alone, so that an array that is cut stays where it is.
"""

import math
import operator
from typing import Any, NoReturn

import numpy as np
import scipy

import shardwise.numpy as jnp
from shardwise import nn
from shardwise.compiler.ops import fitted, hypergeometric, incomplete, special
from shardwise.compiler.ops.elementwise import like
from shardwise.compiler.ops.formula import Term
from shardwise.compiler.ops.operands import as_inexact, composed, composed_list, type_of
from shardwise.compiler.ops.promote import default_dtype
from shardwise.compiler.ops.transcendental import Logistic
from shardwise.errors import not_here
from shardwise.numpy.elementwise import floats
from shardwise.scipy.recurrences import bessel_jn, loggamma, sph_harm_y

__all__ = [
    "bernoulli",
    "bessel_jn",
    "beta",
    "betainc",
    "betaln",
    "boxcox",
    "boxcox1p",
    "comb",
    "dawsn",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "exp1",
    "expi",
    "expit",
    "expn",
    "factorial",
    "fresnel",
    "gamma",
    "gammainc",
    "gammaincc",
    "gammaln",
    "gammasgn",
    "hyp1f1",
    "hyp2f1",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "kl_div",
    "log_ndtr",
    "log_softmax",
    "loggamma",
    "logit",
    "logsumexp",
    "multigammaln",
    "ndtr",
    "ndtri",
    "owens_t",
    "poch",
    "polygamma",
    "rel_entr",
    "sici",
    "softmax",
    "spence",
    "sph_harm_y",
    "wofz",
    "xlog1py",
    "xlogy",
    "zeta",
]


def gammaln(x: Any) -> Any:
    """The logarithm of the magnitude of the gamma function.

    >>> f"{jax.scipy.special.gammaln(5.0):.4f}"
    '3.1781'
    """
    return special.Lgamma()(as_inexact(x, "gammaln"))


@composed
def gammasgn(x: Any) -> Any:
    """The sign of the gamma function: of 0 that of the zero; NaN at its poles, the negative whole numbers.

    >>> jax.scipy.special.gammasgn(jnp.array([1.5, -0.5, -1.5]))
    Array([ 1., -1.,  1.], dtype=float32)
    """
    x = as_inexact(x, "gammasgn")
    below = jnp.floor(x)
    sign = jnp.where((x < 0) & (jnp.remainder(below, 2) != 0), -1.0, 1.0)
    sign = jnp.where((x == 0) & jnp.signbit(x), -1.0, sign)
    return jnp.where((x < 0) & (x == below) | jnp.isnan(x), np.nan, sign).astype(x.dtype)


@composed
def gamma(x: Any) -> Any:
    """The gamma function: of whole n the factorial of n - 1.

    >>> f"{jax.scipy.special.gamma(5.0):.2f}"
    '24.00'
    """
    x = as_inexact(x, "gamma")
    return gammasgn(x) * jnp.exp(special.Lgamma()(x))


@composed
def betaln(a: Any, b: Any) -> Any:
    """The logarithm of the magnitude of the beta function.

    >>> f"{jax.scipy.special.betaln(2.0, 3.0):.4f}"
    '-2.4849'
    """
    x, y = floats("betaln", a, b)
    plain = special.Lgamma()(x) + special.Lgamma()(y) - special.Lgamma()(x + y)
    is_positive = (x > 0) & (y > 0)
    p, q = (jnp.where(is_positive, z, like(z, 1)) for z in (x, y))
    return jnp.where(is_positive, incomplete.log_beta(Term(p), Term(q)).array, plain)


@composed
def beta(a: Any, b: Any) -> Any:
    """The beta function: Γ(a) Γ(b) / Γ(a + b).

    >>> f"{jax.scipy.special.beta(2.0, 3.0):.4f}"
    '0.0833'
    """
    x, y = floats("beta", a, b)
    return gammasgn(x) * gammasgn(y) * gammasgn(x + y) * jnp.exp(betaln(x, y))


@composed
def betainc(a: Any, b: Any, x: Any) -> Any:
    """The share of the beta function's integral, of exponents `a` and `b`, that lies below `x`.

    It can be differentiated along `x` alone.

    >>> f"{jax.scipy.special.betainc(2.0, 1.0, 0.5):.4f}"
    '0.2500'
    """
    return incomplete.Betainc()(*floats("betainc", a, b, x))


def digamma(x: Any) -> Any:
    """The derivative of `gammaln`.

    >>> f"{jax.scipy.special.digamma(1.0):.4f}"
    '-0.5772'
    """
    return special.Digamma()(as_inexact(x, "digamma"))


@composed
def polygamma(n: Any, x: Any) -> Any:
    """The derivative of `digamma` of order `n`, which is whole. It can be differentiated along `x` alone.

    >>> f"{jax.scipy.special.polygamma(1, 2.0):.4f}"
    '0.6449'
    """
    return special.Polygamma()(*floats("polygamma", n, x))


def zeta(x: Any, q: Any = None) -> Any:
    """Hurwitz's zeta function: the sum of (q + n)^-x over all whole n from 0.

    >>> f"{jax.scipy.special.zeta(2.0, 1.0):.4f}"
    '1.6449'
    """
    if q is None:
        raise NotImplementedError("zeta: pass q = 1 for Riemann's zeta function")
    return _zeta(x, q)


@composed
def _zeta(x: Any, q: Any) -> Any:
    return special.Zeta()(*floats("zeta", x, q))


@composed
def gammainc(a: Any, x: Any) -> Any:
    """The share of the gamma function's integral, of exponent `a`, that lies below `x`.

    >>> f"{jax.scipy.special.gammainc(1.0, 1.0):.4f}"
    '0.6321'
    """
    return incomplete.Igamma()(*floats("gammainc", a, x))


@composed
def gammaincc(a: Any, x: Any) -> Any:
    """The share of the gamma function's integral, of exponent `a`, that lies above `x`.

    >>> f"{jax.scipy.special.gammaincc(1.0, 1.0):.4f}"
    '0.3679'
    """
    return incomplete.Igammac()(*floats("gammaincc", a, x))


def factorial(n: Any, exact: bool = False) -> Any:
    """The product of the numbers from 1 to `n`, as a float; of other numbers Γ(n + 1), and 0 below 0.

    >>> f"{jax.scipy.special.factorial(5):.2f}"
    '120.00'
    """
    if exact:
        raise NotImplementedError("factorial: only `exact=False` is supported: results are floats")
    return _factorial(n)


@composed
def _factorial(n: Any) -> Any:
    x = as_inexact(n, "factorial")
    return jnp.where(x < 0, like(x, 0), jnp.exp(special.Lgamma()(x + 1)))


def comb(N: Any, k: Any, *, repetition: bool = False) -> Any:
    """In how many ways `k` of `N` things can be chosen, as a float; with `repetition` each more than once.

    >>> f"{jax.scipy.special.comb(5, 2):.2f}"
    '10.00'
    """
    return _comb(N, k, repetition=bool(repetition))


@composed
def _comb(N: Any, k: Any, *, repetition: bool) -> Any:
    n, k = floats("comb", N, k)
    if repetition:
        n = n + k - 1
    is_choice = (k <= n) & (n >= 0) & (k >= 0)
    n, k = jnp.where(is_choice, n, like(n, 1)), jnp.where(is_choice, k, like(k, 1))
    return jnp.where(is_choice, jnp.exp(-jnp.log(n + 1) - betaln(n - k + 1, k + 1)), like(n, 0))


@composed
def poch(z: Any, m: Any) -> Any:
    """Γ(z + m) / Γ(z): of whole m the product of the m numbers from `z` on.

    >>> f"{jax.scipy.special.poch(2.0, 3.0):.2f}"
    '24.00'
    """
    x, y = floats("poch", z, m)
    found = jnp.exp(special.Lgamma()(x + y) - special.Lgamma()(x)) * gammasgn(x + y) * gammasgn(x)
    return jnp.where(y == 0, like(x, 1), found)


def multigammaln(a: Any, d: Any) -> Any:
    """The logarithm of the gamma function of `d` dimensions; `d` is a Python integer.

    >>> f"{jax.scipy.special.multigammaln(3.0, 2):.4f}"
    '1.5502'
    """
    return _multigammaln(a, count=operator.index(d))


@composed
def _multigammaln(a: Any, *, count: int) -> Any:
    x = as_inexact(a, "multigammaln")
    total = like(x, count * (count - 1) / 4 * math.log(math.pi))
    for number in range(count):
        total = total + special.Lgamma()(x - number / 2)
    return total


def bernoulli(n: int) -> Any:
    """Bernoulli's numbers from 0 to `n`.

    >>> jax.scipy.special.bernoulli(2)
    Array([ 1.        , -0.5       ,  0.16666667], dtype=float32)
    """
    count = operator.index(n)
    if count < 0:
        raise ValueError(f"bernoulli: n must be 0 or more, not {count}")
    return jnp.asarray(scipy.special.bernoulli(max(count, 1))[: count + 1], default_dtype("float*"))


def erf(x: Any) -> Any:
    """The error function.

    >>> f"{jax.scipy.special.erf(0.5):.4f}"
    '0.5205'
    """
    return special.Erf()(as_inexact(x, "erf"))


def erfc(x: Any) -> Any:
    """One minus the error function.

    >>> f"{jax.scipy.special.erfc(0.5):.4f}"
    '0.4795'
    """
    return special.Erfc()(as_inexact(x, "erfc"))


def erfinv(x: Any) -> Any:
    """The number whose error function is the element.

    >>> f"{jax.scipy.special.erfinv(0.5):.4f}"
    '0.4769'
    """
    return special.ErfInv()(as_inexact(x, "erfinv"))


def erfcx(x: Any) -> Any:
    """exp(x²) times one minus the error function.

    >>> f"{jax.scipy.special.erfcx(100.0):.6f}"
    '0.005642'
    """
    return fitted.Erfcx()(as_inexact(x, "erfcx"))


def dawsn(x: Any) -> Any:
    """Dawson's integral: exp(-x²) times the integral of exp(t²) from 0 to x.

    >>> f"{jax.scipy.special.dawsn(1.0):.4f}"
    '0.5381'
    """
    return fitted.Dawsn()(as_inexact(x, "dawsn"))


@composed
def wofz(z: Any) -> Any:
    """exp(-z²) times one minus the error function of -iz, of complex numbers: Faddeeva's function.

    >>> f"{jax.scipy.special.wofz(1.0).real:.4f}"
    '0.3679'
    """
    z = as_inexact(z, "wofz")
    z = z if jnp.iscomplexobj(z) else z.astype(jnp.complex128 if z.dtype == np.float64 else jnp.complex64)
    is_below = z.imag < 0
    upper = jnp.where(is_below, -z, z)
    # Weideman's expansion (1994): a polynomial on the disk to which the upper half plane is turned.
    scale, coefficients = _weideman(32)
    away = scale - 1j * upper
    turned = (scale + 1j * upper) / away
    total = jnp.zeros_like(z)
    for coefficient in coefficients:
        total = total * turned + coefficient
    found = 2 * total / (away * away) + 1 / math.sqrt(math.pi) / away
    below = jnp.where(is_below, z, jnp.zeros_like(z))
    return jnp.where(is_below, 2 * jnp.exp(-below * below) - found, found)


def _weideman(count: int) -> tuple[float, list[float]]:
    """The half plane's scale, and the coefficients from the highest power."""
    double = 2 * count
    scale = math.sqrt(count / math.sqrt(2))
    angle = np.arange(-double + 1, double) * math.pi / double
    t = scale * np.tan(angle / 2)
    values = np.concatenate([[0.0], np.exp(-t * t) * (scale * scale + t * t)])
    found = np.real(np.fft.fft(np.fft.fftshift(values))) / (2 * double)
    return scale, [float(c) for c in found[1 : count + 1][::-1]]


@composed
def ndtr(x: Any) -> Any:
    """The share of the standard normal distribution that lies below `x`.

    >>> f"{jax.scipy.special.ndtr(1.0):.4f}"
    '0.8413'
    """
    x = as_inexact(x, "ndtr")
    return special.Erfc()(x * -math.sqrt(0.5)) * 0.5


def ndtri(p: Any) -> Any:
    """The number below which the share `p` of the standard normal distribution lies.

    >>> f"{jax.scipy.special.ndtri(0.975):.4f}"
    '1.9600'
    """
    return fitted.Ndtri()(as_inexact(p, "ndtri"))


def log_ndtr(x: Any, series_order: int = 3) -> Any:
    """The logarithm of `ndtr`, exact where that vanishes. `series_order` is how JAX does it; here it changes nothing.

    >>> f"{jax.scipy.special.log_ndtr(-20.0):.3f}"
    '-203.917'
    """
    return _log_ndtr(x)


@composed
def _log_ndtr(x: Any) -> Any:
    x = as_inexact(x, "log_ndtr")
    near, far = jnp.where(x > -1, x, like(x, -1)), jnp.where(x > -1, like(x, -1), x)
    above = jnp.log1p(-0.5 * special.Erfc()(near * math.sqrt(0.5)))
    finite = jnp.maximum(far, like(x, -1e18))
    below = jnp.log(0.5 * fitted.Erfcx()(finite * -math.sqrt(0.5))) - 0.5 * far * far
    return jnp.where(x > -1, above, below)


@composed
def logit(x: Any) -> Any:
    """log(x / (1 - x)): the number whose `expit` is the element.

    >>> f"{jax.scipy.special.logit(0.75):.4f}"
    '1.0986'
    """
    x = as_inexact(x, "logit")
    return jnp.log(x) - jnp.log1p(-x)


def expit(x: Any) -> Any:
    """1 / (1 + exp(-x)).

    >>> f"{jax.scipy.special.expit(0.0):.4f}"
    '0.5000'
    """
    return Logistic()(as_inexact(x, "expit"))


@composed
def xlogy(x: Any, y: Any) -> Any:
    """x log(y), but 0 where `x` is 0.

    >>> jax.scipy.special.xlogy(0.0, 0.0)
    Array(0., dtype=float32)
    """
    return special.Xlogy()(*floats("xlogy", x, y))


@composed
def xlog1py(x: Any, y: Any) -> Any:
    """x log(1 + y), but 0 where `x` is 0.

    >>> jax.scipy.special.xlog1py(0.0, -1.0)
    Array(0., dtype=float32)
    """
    return special.Xlog1py()(*floats("xlog1py", x, y))


def entr(x: Any) -> Any:
    """-x log(x): 0 at 0, and -inf below it.

    >>> jax.scipy.special.entr(jnp.array([0.0, 1.0]))
    Array([ 0., -0.], dtype=float32)
    """
    return special.Entr()(as_inexact(x, "entr"))


@composed
def rel_entr(p: Any, q: Any) -> Any:
    """p log(p / q): 0 where `p` is 0, and infinite where either is negative, or `q` alone is 0.

    >>> f"{jax.scipy.special.rel_entr(1.0, 0.5):.4f}"
    '0.6931'
    """
    x, y = floats("rel_entr", p, q)
    both = (x > 0) & (y > 0)
    one, other = jnp.where(both, x, like(x, 1)), jnp.where(both, y, like(y, 1))
    neither = jnp.where((x == 0) & (y >= 0), like(x, 0), like(x, np.inf))
    found = jnp.where(both, one * (jnp.log(one) - jnp.log(other)), neither)
    return jnp.where(jnp.isnan(x) | jnp.isnan(y), like(x, np.nan), found)


@composed
def kl_div(p: Any, q: Any) -> Any:
    """p log(p / q) - p + q: what a term of the divergence of Kullback and Leibler is without its sign.

    >>> f"{jax.scipy.special.kl_div(1.0, 0.5):.4f}"
    '0.1931'
    """
    x, y = floats("kl_div", p, q)
    return rel_entr(x, y) - x + y


@composed
def boxcox(x: Any, lmbda: Any) -> Any:
    """(x^lmbda - 1) / lmbda, and log(x) where `lmbda` is 0.

    >>> f"{jax.scipy.special.boxcox(2.0, 0.5):.4f}"
    '0.8284'
    """
    x, power = floats("boxcox", x, lmbda)
    return _box(jnp.log(x), power)


@composed
def boxcox1p(x: Any, lmbda: Any) -> Any:
    """((1 + x)^lmbda - 1) / lmbda, and log(1 + x) where `lmbda` is 0.

    >>> f"{jax.scipy.special.boxcox1p(1.0, 0.5):.4f}"
    '0.8284'
    """
    x, power = floats("boxcox1p", x, lmbda)
    return _box(jnp.log1p(x), power)


def _box(log: Any, power: Any) -> Any:
    is_zero = power == 0
    by = jnp.where(is_zero, like(power, 1), power)
    return jnp.where(is_zero, log, jnp.expm1(by * log) / by)


@composed
def i0(x: Any) -> Any:
    """The modified Bessel function of order 0.

    >>> f"{jax.scipy.special.i0(1.0):.4f}"
    '1.2661'
    """
    x = as_inexact(x, "i0")
    return jnp.exp(jnp.abs(x)) * fitted.BesselI0e()(x)


def i0e(x: Any) -> Any:
    """The modified Bessel function of order 0, times exp(-|x|).

    >>> f"{jax.scipy.special.i0e(1.0):.4f}"
    '0.4658'
    """
    return fitted.BesselI0e()(as_inexact(x, "i0e"))


@composed
def i1(x: Any) -> Any:
    """The modified Bessel function of order 1.

    >>> f"{jax.scipy.special.i1(1.0):.4f}"
    '0.5652'
    """
    x = as_inexact(x, "i1")
    return jnp.exp(jnp.abs(x)) * fitted.BesselI1e()(x)


def i1e(x: Any) -> Any:
    """The modified Bessel function of order 1, times exp(-|x|).

    >>> f"{jax.scipy.special.i1e(1.0):.4f}"
    '0.2079'
    """
    return fitted.BesselI1e()(as_inexact(x, "i1e"))


def expi(x: Any) -> Any:
    """The exponential integral: of exp(t) / t from minus infinity to x.

    >>> f"{jax.scipy.special.expi(1.0):.4f}"
    '1.8951'
    """
    return fitted.Expi()(as_inexact(x, "expi"))


def exp1(x: Any) -> Any:
    """The exponential integral: of exp(-t) / t from x to infinity.

    >>> f"{jax.scipy.special.exp1(1.0):.4f}"
    '0.2194'
    """
    return fitted.Exp1()(as_inexact(x, "exp1"))


@composed
def expn(n: Any, x: Any) -> Any:
    """The exponential integral of order `n`: of exp(-xt) / t^n over all t from 1.

    >>> f"{jax.scipy.special.expn(2, 1.0):.4f}"
    '0.1485'
    """
    return incomplete.Expn()(*floats("expn", n, x))


@composed
def hyp1f1(a: Any, b: Any, x: Any) -> Any:
    """Kummer's hypergeometric function: the sum of (a)ₖ xᵏ / (b)ₖ k! over all k, where (a)ₖ is a (a + 1) … (a + k - 1).

    Infinite where b is 0, -1, -2 and so on, unless the sum has ended before, which is so where a is one of these too.

    >>> f"{jax.scipy.special.hyp1f1(1.0, 2.0, 1.0):.4f}"
    '1.7183'
    """
    return hypergeometric.Hyp1f1()(*floats("hyp1f1", a, b, x))


@composed
def hyp2f1(a: Any, b: Any, c: Any, x: Any) -> Any:
    """Gauss's hypergeometric function: the sum of (a)ₖ (b)ₖ xᵏ / (c)ₖ k! over all k, continued to all x below 1.

    Where the sum does not end, it is infinite above 1, and where c is 0, -1, -2 and so on.

    >>> f"{jax.scipy.special.hyp2f1(1.0, 1.0, 2.0, 0.5):.4f}"
    '1.3863'
    """
    return hypergeometric.Hyp2f1()(*floats("hyp2f1", a, b, c, x))


def sici(x: Any) -> tuple[Any, Any]:
    """The sine integral and the cosine integral; of negative numbers, the second is NaN.

    >>> [f"{y:.4f}" for y in jax.scipy.special.sici(1.0)]
    ['0.9461', '0.3374']
    """
    sine, cosine = _sici(x)
    return sine, cosine


@composed_list
def _sici(x: Any) -> list[Any]:
    x = as_inexact(x, "sici")
    return [fitted.SineIntegral()(x), fitted.CosineIntegral()(x)]


def fresnel(x: Any) -> tuple[Any, Any]:
    """The integrals of sin(πt²/2) and of cos(πt²/2) from 0 to x.

    >>> [f"{y:.4f}" for y in jax.scipy.special.fresnel(1.0)]
    ['0.4383', '0.7799']
    """
    sine, cosine = _fresnel(x)
    return sine, cosine


@composed_list
def _fresnel(x: Any) -> list[Any]:
    x = as_inexact(x, "fresnel")
    return [fitted.Fresnel(False)(x), fitted.Fresnel(True)(x)]


def spence(x: Any) -> Any:
    """The dilogarithm of 1 - x: the integral of log(t) / (1 - t) from 1 to x.

    >>> f"{jax.scipy.special.spence(2.0):.4f}"
    '-0.8225'
    """
    return fitted.Spence()(as_inexact(x, "spence"))


@composed
def owens_t(h: Any, a: Any) -> Any:
    """Owen's function: the integral of exp(-h²(1 + t²)/2) / 2π(1 + t²) from 0 to `a`.

    >>> f"{jax.scipy.special.owens_t(1.0, 0.5):.4f}"
    '0.0431'
    """
    h, a = floats("owens_t", h, a)
    h, magnitude = jnp.abs(h), jnp.abs(a)
    is_large = magnitude > 1
    # T(h, a) with a large a is made of T(ah, 1/a), whose integral is short.
    near = jnp.where(is_large, 1 / jnp.where(is_large, magnitude, like(a, 1)), magnitude)
    scaled = jnp.where(is_large, jnp.where(h == 0, like(h, 0), h * magnitude), h)
    points, weights = np.polynomial.legendre.leggauss(24)
    total = like(a, 0)
    for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
        square = 1 + (near * float(point)) ** 2
        total = total + float(weight) / (2 * math.pi) * near * jnp.exp(-0.5 * scaled * scaled * square) / square
    below, above = ndtr(h), ndtr(-h)
    both = ndtr(jnp.where(h == 0, like(h, 0), h * magnitude)), ndtr(-jnp.where(h == 0, like(h, 0), h * magnitude))
    turned = 0.5 * (below * both[1] + above * both[0]) - total
    at_zero = jnp.arctan(magnitude) / (2 * math.pi)
    found = jnp.where(h == 0, at_zero, jnp.where(is_large, turned, total))
    return jnp.where(a < 0, -found, found)


def logsumexp(
    a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False, where: Any = None
) -> Any:
    """log(sum(b · exp(a))) along `axis` (all dims where none is given), of the elements `where` says, without overflow.

    With `return_sign`, the logarithm of the magnitude of the sum, and its sign; without, NaN where it is negative.

    >>> f"{jax.scipy.special.logsumexp(jnp.array([1000.0, 1000.0])):.3f}"
    '1000.693'
    """
    return nn.logsumexp(a, axis, b, keepdims, return_sign, where)


def softmax(x: Any, /, *, axis: Any = None) -> Any:
    """exp(x) as shares of its sum along `axis` (all dims where none is given).

    >>> jax.scipy.special.softmax(jnp.array([0.0, 0.0, 1000.0]))
    Array([0., 0., 1.], dtype=float32)
    """
    return nn.softmax(x, _all_axes(x, axis))


def log_softmax(x: Any, /, *, axis: Any = None) -> Any:
    """The logarithm of `softmax`.

    >>> jax.scipy.special.log_softmax(jnp.array([0.0, 1000.0]))
    Array([-1000.,     0.], dtype=float32)
    """
    return nn.log_softmax(x, _all_axes(x, axis))


def _all_axes(x: Any, axis: Any) -> Any:
    return tuple(range(type_of(x, "softmax").ndim)) if axis is None else axis


def __getattr__(name: str) -> NoReturn:
    raise not_here("shardwise.scipy.special", name, __all__)
