"""scipy.special: special functions, with JAX's type promotion (integers become floats).

All functions without an `axis` are elementwise, so sharded operands keep their sharding.
"""

import math
import operator
from typing import Any, Literal, SupportsIndex, overload

import numpy as np
import scipy

import shardwise.numpy as jnp
from shardwise import nn
from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.base.lazy import Deprecated, publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact, as_strong, compiled_function, compiled_list_function, type_of
from shardwise.compiler.arrays.promotion import default_dtype
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.expr import Expr
from shardwise.compiler.ops.elementwise.transcendental import Logistic
from shardwise.compiler.special import approximations, gamma_erf, hypergeometric, incomplete
from shardwise.numpy.elementwise import promote_inexact, promote_to_constants
from shardwise.numpy.families import NOT_AN_ARRAY, NOT_REAL
from shardwise.scipy import recurrences
from shardwise.typing import ArrayLike, Axes

bessel_jn = recurrences.bessel_jn
loggamma = recurrences.loggamma
sph_harm_y = recurrences.sph_harm_y

_REAL = Parameter("real numbers.", NOT_REAL)
_REAL_ARGUMENT = Family({"x": _REAL, "n": _REAL, "p": Parameter(error=NOT_REAL)})
_ARGUMENT = Family({"x": Parameter(error=NOT_AN_ARRAY), "z": Parameter("real or complex numbers.", NOT_AN_ARRAY)})
_LOGITS = Family(
    {"x": Parameter("the logits.", NOT_AN_ARRAY), "axis": Parameter(error="ValueError: if an axis is out of range.")}
)


@documented(_REAL_ARGUMENT)
def gammaln(x: ArrayLike) -> Array:
    """Compute the logarithm of the absolute value of the gamma function.

    Returns:
        log(|Γ(x)|); inf at the poles 0, -1, -2, and so on.

    Example:
        >>> f"{jax.scipy.special.gammaln(5.0):.4f}"
        '3.1781'
    """
    return gamma_erf.Lgamma()(as_inexact(x, "gammaln"))


@compiled_function
@documented(_REAL_ARGUMENT)
def gammasgn(x: ArrayLike) -> Array:
    """Compute the sign of the gamma function.

    Returns:
        1 or -1; NaN at the negative integers, and the sign of the zero at 0.

    Example:
        >>> jax.scipy.special.gammasgn(jnp.array([1.5, -0.5, -1.5]))
        Array([ 1., -1.,  1.], dtype=float32)
    """
    x = as_inexact(x, "gammasgn")
    floor = jnp.floor(x)
    sign = jnp.where((x < 0) & (jnp.remainder(floor, 2) != 0), -1.0, 1.0)
    sign = jnp.where((x == 0) & jnp.signbit(x), -1.0, sign)
    return jnp.where((x < 0) & (x == floor) | jnp.isnan(x), np.nan, sign).astype(x.dtype)


@compiled_function
@documented(_REAL_ARGUMENT)
def gamma(x: ArrayLike) -> Array:
    """Compute the gamma function.

    Returns:
        Γ(x), which is (x - 1)! for positive integers; NaN at the negative integers.

    Example:
        >>> f"{jax.scipy.special.gamma(5.0):.2f}"
        '24.00'
    """
    x = as_inexact(x, "gamma")
    return gammasgn(x) * jnp.exp(gamma_erf.Lgamma()(x))


_REAL_ARGUMENTS = Family(
    {"x": "real numbers.", "a, b": "real numbers."},
    raises=["TypeError: if an argument is not an array or a number or is complex, or if the shapes do not\nbroadcast."],
)
_ARGUMENTS = Family(
    {"p, q": "non-negative numbers.", "lmbda": "the exponents."},
    raises=["TypeError: if an argument is not an array or a number, or if the shapes do not broadcast."],
)


@compiled_function
@documented(_REAL_ARGUMENTS)
def betaln(a: ArrayLike, b: ArrayLike) -> Array:
    """Compute the logarithm of the absolute value of the beta function.

    Returns:
        log(|B(a, b)|).

    Example:
        >>> f"{jax.scipy.special.betaln(2.0, 3.0):.4f}"
        '-2.4849'
    """
    x, y = promote_inexact("betaln", a, b)
    by_gammaln = gamma_erf.Lgamma()(x) + gamma_erf.Lgamma()(y) - gamma_erf.Lgamma()(x + y)
    is_positive = (x > 0) & (y > 0)
    p, q = (jnp.where(is_positive, z, full_like(z, 1)) for z in (x, y))
    return jnp.where(is_positive, incomplete.log_beta(Expr(p), Expr(q)).array, by_gammaln)


@compiled_function
@documented(_REAL_ARGUMENTS)
def beta(a: ArrayLike, b: ArrayLike) -> Array:
    """Compute the beta function.

    Returns:
        Γ(a) Γ(b) / Γ(a + b).

    Example:
        >>> f"{jax.scipy.special.beta(2.0, 3.0):.4f}"
        '0.0833'
    """
    x, y = promote_inexact("beta", a, b)
    return gammasgn(x) * gammasgn(y) * gammasgn(x + y) * jnp.exp(betaln(x, y))


@compiled_function
@documented(_REAL_ARGUMENTS)
def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Compute the regularized incomplete beta function.

    It is the integral of tᵃ⁻¹ (1 - t)ᵇ⁻¹ from 0 to `x` divided by the beta function. It is differentiable with respect
    to `x` only.

    Args:
        a, b: the parameters, positive.
        x: the upper limit of the integral, from 0 to 1.

    Returns:
        The integral, between 0 and 1; NaN where an argument is out of range.

    Example:
        >>> f"{jax.scipy.special.betainc(2.0, 1.0, 0.5):.4f}"
        '0.2500'
    """
    return incomplete.Betainc()(*promote_inexact("betainc", a, b, x))


@documented(_REAL_ARGUMENT)
def digamma(x: ArrayLike) -> Array:
    """Compute the digamma function, the derivative of `gammaln`.

    Returns:
        ψ(x); NaN at the poles 0, -1, -2, and so on.

    Example:
        >>> f"{jax.scipy.special.digamma(1.0):.4f}"
        '-0.5772'
    """
    return gamma_erf.Digamma()(as_inexact(x, "digamma"))


@compiled_function
@documented(_REAL_ARGUMENTS)
def polygamma(n: ArrayLike, x: ArrayLike) -> Array:
    """Compute the polygamma function, the n-th derivative of `digamma`.

    It is differentiable with respect to `x` only.

    Args:
        n: the order of the derivative, non-negative integers.

    Returns:
        The n-th derivative of ψ at `x`; NaN where `n` is not an integer.

    Example:
        >>> f"{jax.scipy.special.polygamma(1, 2.0):.4f}"
        '0.6449'
    """
    return gamma_erf.Polygamma()(*promote_inexact("polygamma", n, x))


def zeta(x: ArrayLike, q: ArrayLike | None = None) -> Array:
    """Compute the Hurwitz zeta function.

    It is the sum of (q + k)⁻ˣ over all integers k from 0. With q = 1 it is the Riemann zeta function.

    Args:
        x: the exponent, greater than 1.
        q: the offset. It is required.

    Returns:
        The sum; inf at x = 1 and NaN below.

    Raises:
        NotImplementedError: if `q` is not passed.
        TypeError: if an argument is not an array or a number or is complex, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.special.zeta(2.0, 1.0):.4f}"
        '1.6449'
    """
    if q is None:
        raise NotImplementedError("zeta: q is required; pass q=1 for the Riemann zeta function")
    return _zeta(x, q)


@compiled_function
def _zeta(x: ArrayLike, q: ArrayLike) -> Any:
    return gamma_erf.Zeta()(*promote_inexact("zeta", x, q))


@compiled_function
@documented(_REAL_ARGUMENTS)
def gammainc(a: ArrayLike, x: ArrayLike) -> Array:
    """Compute the regularized lower incomplete gamma function.

    It is the integral of tᵃ⁻¹ exp(-t) from 0 to `x` divided by Γ(a).

    Args:
        a: the parameter, positive.
        x: the upper limit of the integral, non-negative.

    Returns:
        The integral, between 0 and 1; NaN where an argument is out of range.

    Example:
        >>> f"{jax.scipy.special.gammainc(1.0, 1.0):.4f}"
        '0.6321'
    """
    return incomplete.Igamma()(*promote_inexact("gammainc", a, x))


@compiled_function
@documented(_REAL_ARGUMENTS)
def gammaincc(a: ArrayLike, x: ArrayLike) -> Array:
    """Compute the regularized upper incomplete gamma function.

    It is the integral of tᵃ⁻¹ exp(-t) from `x` to infinity divided by Γ(a).

    Args:
        a: the parameter, positive.
        x: the lower limit of the integral, non-negative.

    Returns:
        The integral, between 0 and 1; NaN where an argument is out of range.

    Example:
        >>> f"{jax.scipy.special.gammaincc(1.0, 1.0):.4f}"
        '0.3679'
    """
    return incomplete.Igammac()(*promote_inexact("gammaincc", a, x))


def factorial(n: ArrayLike, exact: bool = False) -> Array:
    """Compute the factorial as a float.

    Args:
        n: real numbers.
        exact: only False is supported.

    Returns:
        Γ(n + 1), which is n! for integers; 0 where `n` is negative.

    Raises:
        NotImplementedError: if `exact` is True.
        TypeError: if `n` is not an array or a number, or is complex.

    Example:
        >>> f"{jax.scipy.special.factorial(5):.2f}"
        '120.00'
    """
    if exact:
        raise NotImplementedError("factorial: exact=True is not supported; the result is a float")
    return _factorial(n)


@compiled_function
def _factorial(n: ArrayLike) -> Any:
    x = as_inexact(n, "factorial")
    return jnp.where(x < 0, full_like(x, 0), jnp.exp(gamma_erf.Lgamma()(x + 1)))


@documented(_REAL_ARGUMENTS)
def comb(N: ArrayLike, k: ArrayLike, *, repetition: bool = False) -> Array:
    """Compute the binomial coefficient as a float: the number of ways to choose k of N elements.

    Args:
        N: the number of elements to choose from.
        k: the number of elements to choose.
        repetition: whether an element may be chosen more than once.

    Returns:
        The number of combinations; 0 where `k` or `N` is negative or, without `repetition`, where `k` exceeds `N`.

    Example:
        >>> f"{jax.scipy.special.comb(5, 2):.2f}"
        '10.00'
    """
    return _comb(N, k, repetition=bool(repetition))


@compiled_function
def _comb(N: ArrayLike, k: ArrayLike, *, repetition: bool) -> Any:
    n, k = promote_inexact("comb", N, k)
    if repetition:
        n = n + k - 1
    is_valid = (k <= n) & (n >= 0) & (k >= 0)
    n, k = jnp.where(is_valid, n, full_like(n, 1)), jnp.where(is_valid, k, full_like(k, 1))
    return jnp.where(is_valid, jnp.exp(-jnp.log(n + 1) - betaln(n - k + 1, k + 1)), full_like(n, 0))


@compiled_function
@documented(_REAL_ARGUMENTS)
def poch(z: ArrayLike, m: ArrayLike) -> Array:
    """Compute the Pochhammer symbol (rising factorial).

    Args:
        z, m: real numbers.

    Returns:
        Γ(z + m) / Γ(z), which is z (z + 1) … (z + m - 1) for positive integers m.

    Example:
        >>> f"{jax.scipy.special.poch(2.0, 3.0):.2f}"
        '24.00'
    """
    x, y = promote_inexact("poch", z, m)
    ratio = jnp.exp(gamma_erf.Lgamma()(x + y) - gamma_erf.Lgamma()(x)) * gammasgn(x + y) * gammasgn(x)
    return jnp.where(y == 0, full_like(x, 1), ratio)


def multigammaln(a: ArrayLike, d: SupportsIndex) -> Array:
    """Compute the logarithm of the multivariate gamma function.

    Args:
        a: real numbers, greater than (d - 1) / 2.
        d: the dimension, a Python integer.

    Returns:
        log(Γ_d(a)).

    Raises:
        TypeError: if `a` is not an array or a number or is complex, or if `d` is not an integer.

    Example:
        >>> f"{jax.scipy.special.multigammaln(3.0, 2):.4f}"
        '1.5502'
    """
    return _multigammaln(a, dimension=operator.index(d))


@compiled_function
def _multigammaln(a: ArrayLike, *, dimension: int) -> Any:
    x = as_inexact(a, "multigammaln")
    total = full_like(x, dimension * (dimension - 1) / 4 * math.log(math.pi))
    for index in range(dimension):
        total = total + gamma_erf.Lgamma()(x - index / 2)
    return total


def bernoulli(n: int) -> Array:
    """Return the Bernoulli numbers B₀ to Bₙ, with B₁ = -1/2.

    Args:
        n: the index of the last number.

    Returns:
        An array of `n + 1` elements, with the default float dtype.

    Raises:
        ValueError: if `n` is negative.
        TypeError: if `n` is not an integer.

    Example:
        >>> jax.scipy.special.bernoulli(2)
        Array([ 1.        , -0.5       ,  0.16666667], dtype=float32)
    """
    last = operator.index(n)
    if last < 0:
        raise ValueError(f"bernoulli: n must be 0 or more, not {last}")
    return jnp.asarray(scipy.special.bernoulli(max(last, 1))[: last + 1], default_dtype("float*"))


@documented(_REAL_ARGUMENT)
def erf(x: ArrayLike) -> Array:
    """Compute the error function.

    Returns:
        2/√π times the integral of exp(-t²) from 0 to `x`.

    Example:
        >>> f"{jax.scipy.special.erf(0.5):.4f}"
        '0.5205'
    """
    return gamma_erf.Erf()(as_inexact(x, "erf"))


@documented(_REAL_ARGUMENT)
def erfc(x: ArrayLike) -> Array:
    """Compute the complementary error function, accurate where `erf` is close to 1.

    Returns:
        1 - erf(x).

    Example:
        >>> f"{jax.scipy.special.erfc(0.5):.4f}"
        '0.4795'
    """
    return gamma_erf.Erfc()(as_inexact(x, "erfc"))


@documented(_REAL_ARGUMENT)
def erfinv(x: ArrayLike) -> Array:
    """Compute the inverse of the error function.

    Args:
        x: numbers from -1 to 1.

    Returns:
        The number whose error function is `x`; NaN where |x| > 1.

    Example:
        >>> f"{jax.scipy.special.erfinv(0.5):.4f}"
        '0.4769'
    """
    return gamma_erf.ErfInv()(as_inexact(x, "erfinv"))


@compiled_function
@documented(_REAL_ARGUMENT)
def erfcinv(y: ArrayLike) -> Array:
    """Compute the inverse of the complementary error function, accurate near 0.

    Args:
        y: numbers from 0 to 2.

    Returns:
        The number whose complementary error function is `y`; NaN where `y` is less than 0 or more than 2.

    Raises:
        TypeError: if `y` is not an array or a number, or is complex.

    Example:
        >>> f"{jax.scipy.special.erfcinv(0.5):.4f}"
        '0.4769'
    """
    y = as_inexact(y, "erfcinv")
    return approximations.Ndtri()(y / 2) / -math.sqrt(2)


@documented(_REAL_ARGUMENT)
def erfcx(x: ArrayLike) -> Array:
    """Compute the scaled complementary error function, which does not underflow for large `x`.

    Returns:
        exp(x²) erfc(x).

    Example:
        >>> f"{jax.scipy.special.erfcx(100.0):.6f}"
        '0.005642'
    """
    return approximations.Erfcx()(as_strong(as_inexact(x, "erfcx")))


@documented(_REAL_ARGUMENT)
def dawsn(x: ArrayLike) -> Array:
    """Compute Dawson's integral.

    Returns:
        exp(-x²) times the integral of exp(t²) from 0 to `x`.

    Example:
        >>> f"{jax.scipy.special.dawsn(1.0):.4f}"
        '0.5381'
    """
    return approximations.Dawsn()(as_strong(as_inexact(x, "dawsn")))


@compiled_function
@documented(_ARGUMENT)
def wofz(z: ArrayLike) -> Array:
    """Compute the Faddeeva function, the scaled complementary error function of complex numbers.

    Returns:
        exp(-z²) erfc(-iz), complex.

    Example:
        >>> f"{jax.scipy.special.wofz(1.0).real:.4f}"
        '0.3679'
    """
    z = as_strong(as_inexact(z, "wofz"))
    z = z if jnp.iscomplexobj(z) else z.astype(jnp.complex128 if z.dtype == np.float64 else jnp.complex64)
    is_below = z.imag < 0
    upper = jnp.where(is_below, -z, z)
    # Weideman's expansion (1994): a polynomial on the unit disk, to which a Möbius map takes the upper half plane.
    scale, coefficients = _weideman(32)
    denominator = scale - 1j * upper
    disk = (scale + 1j * upper) / denominator
    polynomial = jnp.zeros_like(z)
    for coefficient in coefficients:
        polynomial = polynomial * disk + coefficient
    value = 2 * polynomial / (denominator * denominator) + 1 / math.sqrt(math.pi) / denominator
    lower = jnp.where(is_below, z, jnp.zeros_like(z))
    return jnp.where(is_below, 2 * jnp.exp(-lower * lower) - value, value)


def _weideman(count: int) -> tuple[float, list[float]]:
    """Return the scale of the Möbius map and the `count` coefficients of the polynomial, highest power first."""
    double = 2 * count
    scale = math.sqrt(count / math.sqrt(2))
    angle = np.arange(-double + 1, double) * math.pi / double
    t = scale * np.tan(angle / 2)
    values = np.concatenate([[0.0], np.exp(-t * t) * (scale * scale + t * t)])
    coefficients = np.real(np.fft.fft(np.fft.fftshift(values))) / (2 * double)
    return scale, [float(c) for c in coefficients[1 : count + 1][::-1]]


@compiled_function
@documented(_REAL_ARGUMENT)
def ndtr(x: ArrayLike) -> Array:
    """Compute the cumulative distribution function of the standard normal distribution.

    Returns:
        The probability of a value at or below `x`.

    Example:
        >>> f"{jax.scipy.special.ndtr(1.0):.4f}"
        '0.8413'
    """
    x = as_strong(as_inexact(x, "ndtr"))
    return gamma_erf.Erfc()(x * -math.sqrt(0.5)) * 0.5


@documented(_REAL_ARGUMENT)
def ndtri(p: ArrayLike) -> Array:
    """Compute the quantile function of the standard normal distribution, the inverse of `ndtr`.

    Args:
        p: probabilities, from 0 to 1.

    Returns:
        The number whose `ndtr` is `p`; NaN where `p` is not between 0 and 1.

    Example:
        >>> f"{jax.scipy.special.ndtri(0.975):.4f}"
        '1.9600'
    """
    return approximations.Ndtri()(as_strong(as_inexact(p, "ndtri")))


@documented(_REAL_ARGUMENT)
def log_ndtr(x: ArrayLike, series_order: int = 3) -> Array:
    """Compute the log cumulative distribution function of the standard normal distribution.

    It is accurate in the lower tail, where `ndtr` underflows.

    Args:
        series_order: ignored; accepted for compatibility with JAX.

    Returns:
        log(ndtr(x)).

    Example:
        >>> f"{jax.scipy.special.log_ndtr(-20.0):.3f}"
        '-203.917'
    """
    return _log_ndtr(x)


@compiled_function
def _log_ndtr(x: ArrayLike) -> Any:
    x = as_strong(as_inexact(x, "log_ndtr"))
    # Each branch gets an argument of its own range, so that the gradient of the other one is finite.
    center, tail = jnp.where(x > -1, x, full_like(x, -1)), jnp.where(x > -1, full_like(x, -1), x)
    in_center = jnp.log1p(-0.5 * gamma_erf.Erfc()(center * math.sqrt(0.5)))
    finite = jnp.maximum(tail, full_like(x, -1e18))
    in_tail = jnp.log(0.5 * approximations.Erfcx()(finite * -math.sqrt(0.5))) - 0.5 * tail * tail
    return jnp.where(x > -1, in_center, in_tail)


@compiled_function
@documented(_ARGUMENT)
def logit(x: ArrayLike) -> Array:
    """Compute the logit function, the inverse of `expit`.

    Args:
        x: numbers from 0 to 1.

    Returns:
        log(x / (1 - x)).

    Example:
        >>> f"{jax.scipy.special.logit(0.75):.4f}"
        '1.0986'
    """
    x = as_inexact(x, "logit")
    return jnp.log(x) - jnp.log1p(-x)


@documented(_ARGUMENT)
def expit(x: ArrayLike) -> Array:
    """Compute the logistic sigmoid function.

    Args:
        x: real or complex numbers.

    Returns:
        1 / (1 + exp(-x)).

    Example:
        >>> f"{jax.scipy.special.expit(0.0):.4f}"
        '0.5000'
    """
    return Logistic()(as_inexact(x, "expit"))


@compiled_function
@documented(_REAL_ARGUMENTS)
def xlogy(x: ArrayLike, y: ArrayLike) -> Array:
    """Compute x log(y), with 0 where `x` is 0.

    Args:
        x: the factors.
        y: the arguments of the logarithm.

    Returns:
        x log(y), with 0 where `x` is 0 and `y` is not NaN.

    Example:
        >>> jax.scipy.special.xlogy(0.0, 0.0)
        Array(0., dtype=float32, weak_type=True)
    """
    return gamma_erf.Xlogy()(*promote_inexact("xlogy", x, y))


@compiled_function
@documented(_REAL_ARGUMENTS)
def xlog1py(x: ArrayLike, y: ArrayLike) -> Array:
    """Compute x log(1 + y), with 0 where `x` is 0.

    Args:
        x: the factors.
        y: the arguments of the logarithm, minus 1.

    Returns:
        x log(1 + y), with 0 where `x` is 0 and `y` is not NaN.

    Example:
        >>> jax.scipy.special.xlog1py(0.0, -1.0)
        Array(0., dtype=float32, weak_type=True)
    """
    return gamma_erf.Xlog1py()(*promote_inexact("xlog1py", x, y))


@documented(_REAL_ARGUMENT)
def entr(x: ArrayLike) -> Array:
    """Compute the elementwise entropy -x log(x).

    Returns:
        -x log(x); 0 at 0 and -inf for negative numbers.

    Example:
        >>> jax.scipy.special.entr(jnp.array([0.0, 1.0]))
        Array([ 0., -0.], dtype=float32)
    """
    return gamma_erf.Entr()(as_inexact(x, "entr"))


@compiled_function
@documented(_ARGUMENTS)
def rel_entr(p: ArrayLike, q: ArrayLike) -> Array:
    """Compute the elementwise relative entropy p log(p / q).

    Returns:
        p log(p / q); 0 where `p` is 0 and `q` is not negative, and inf where an argument is negative or only `q` is 0.

    Example:
        >>> f"{jax.scipy.special.rel_entr(1.0, 0.5):.4f}"
        '0.6931'
    """
    x, y = promote_to_constants("rel_entr", p, q)
    is_positive = (x > 0) & (y > 0)
    safe_x, safe_y = jnp.where(is_positive, x, full_like(x, 1)), jnp.where(is_positive, y, full_like(y, 1))
    boundary = jnp.where((x == 0) & (y >= 0), full_like(x, 0), full_like(x, np.inf))
    entropy = jnp.where(is_positive, safe_x * (jnp.log(safe_x) - jnp.log(safe_y)), boundary)
    return jnp.where(jnp.isnan(x) | jnp.isnan(y), full_like(x, np.nan), entropy)


@compiled_function
@documented(_ARGUMENTS)
def kl_div(p: ArrayLike, q: ArrayLike) -> Array:
    """Compute the elementwise Kullback-Leibler divergence p log(p / q) - p + q.

    Returns:
        p log(p / q) - p + q, which is non-negative; inf where an argument is negative or only `q` is 0.

    Example:
        >>> f"{jax.scipy.special.kl_div(1.0, 0.5):.4f}"
        '0.1931'
    """
    x, y = promote_to_constants("kl_div", p, q)
    return rel_entr(x, y) - x + y


@compiled_function
@documented(_ARGUMENTS)
def boxcox(x: ArrayLike, lmbda: ArrayLike) -> Array:
    """Compute the Box-Cox transformation.

    Args:
        x: positive numbers.

    Returns:
        (x^lmbda - 1) / lmbda, and log(x) where `lmbda` is 0.

    Example:
        >>> f"{jax.scipy.special.boxcox(2.0, 0.5):.4f}"
        '0.8284'
    """
    x, power = promote_inexact("boxcox", x, lmbda)
    return _boxcox_of_log(jnp.log(x), power)


@compiled_function
@documented(_ARGUMENTS)
def boxcox1p(x: ArrayLike, lmbda: ArrayLike) -> Array:
    """Compute the Box-Cox transformation of 1 + x.

    Args:
        x: numbers above -1.

    Returns:
        ((1 + x)^lmbda - 1) / lmbda, and log(1 + x) where `lmbda` is 0.

    Example:
        >>> f"{jax.scipy.special.boxcox1p(1.0, 0.5):.4f}"
        '0.8284'
    """
    x, power = promote_inexact("boxcox1p", x, lmbda)
    return _boxcox_of_log(jnp.log1p(x), power)


def _boxcox_of_log(log: Array, power: Array) -> Any:
    is_zero = power == 0
    safe_power = jnp.where(is_zero, full_like(power, 1), power)
    return jnp.where(is_zero, log, jnp.expm1(safe_power * log) / safe_power)


@compiled_function
@documented(_REAL_ARGUMENT)
def i0(x: ArrayLike) -> Array:
    """Compute the modified Bessel function of the first kind of order 0.

    Returns:
        I₀(x).

    Example:
        >>> f"{jax.scipy.special.i0(1.0):.4f}"
        '1.2661'
    """
    x = as_inexact(x, "i0")
    return jnp.exp(jnp.abs(x)) * approximations.BesselI0e()(x)


@documented(_REAL_ARGUMENT)
def i0e(x: ArrayLike) -> Array:
    """Compute the exponentially scaled modified Bessel function of the first kind of order 0.

    Returns:
        exp(-|x|) I₀(x).

    Example:
        >>> f"{jax.scipy.special.i0e(1.0):.4f}"
        '0.4658'
    """
    return approximations.BesselI0e()(as_inexact(x, "i0e"))


@compiled_function
@documented(_REAL_ARGUMENT)
def i1(x: ArrayLike) -> Array:
    """Compute the modified Bessel function of the first kind of order 1.

    Returns:
        I₁(x).

    Example:
        >>> f"{jax.scipy.special.i1(1.0):.4f}"
        '0.5652'
    """
    x = as_inexact(x, "i1")
    return jnp.exp(jnp.abs(x)) * approximations.BesselI1e()(x)


@documented(_REAL_ARGUMENT)
def i1e(x: ArrayLike) -> Array:
    """Compute the exponentially scaled modified Bessel function of the first kind of order 1.

    Returns:
        exp(-|x|) I₁(x).

    Example:
        >>> f"{jax.scipy.special.i1e(1.0):.4f}"
        '0.2079'
    """
    return approximations.BesselI1e()(as_inexact(x, "i1e"))


@documented(_REAL_ARGUMENT)
def expi(x: ArrayLike) -> Array:
    """Compute the exponential integral Ei.

    Returns:
        The principal value of the integral of exp(t) / t from -inf to `x`.

    Example:
        >>> f"{jax.scipy.special.expi(1.0):.4f}"
        '1.8951'
    """
    return approximations.Expi()(as_strong(as_inexact(x, "expi")))


@documented(_REAL_ARGUMENT)
def exp1(x: ArrayLike) -> Array:
    """Compute the exponential integral E₁.

    Returns:
        The integral of exp(-t) / t from `x` to inf; NaN where `x` is negative.

    Example:
        >>> f"{jax.scipy.special.exp1(1.0):.4f}"
        '0.2194'
    """
    return approximations.Exp1()(as_strong(as_inexact(x, "exp1")))


@compiled_function
@documented(_REAL_ARGUMENTS)
def expn(n: ArrayLike, x: ArrayLike) -> Array:
    """Compute the generalized exponential integral Eₙ.

    It is differentiable with respect to `x` only.

    Args:
        n: the order, non-negative integers.
        x: non-negative numbers.

    Returns:
        The integral of exp(-xt) / tⁿ over t from 1 to inf; NaN where `n` is not a non-negative integer.

    Example:
        >>> f"{jax.scipy.special.expn(2, 1.0):.4f}"
        '0.1485'
    """
    return incomplete.Expn()(*map(as_strong, promote_inexact("expn", n, x)))


@compiled_function
@documented(_REAL_ARGUMENTS)
def hyp1f1(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Compute Kummer's confluent hypergeometric function ₁F₁.

    It is the sum of (a)ₖ xᵏ / ((b)ₖ k!) over all k from 0, where (a)ₖ is the rising factorial `poch(a, k)`.

    Args:
        a, b: the parameters.

    Returns:
        ₁F₁(a; b; x); inf at the poles b = 0, -1, -2, and so on, unless the sum terminates before the pole.

    Example:
        >>> f"{jax.scipy.special.hyp1f1(1.0, 2.0, 1.0):.4f}"
        '1.7183'
    """
    return hypergeometric.Hyp1f1()(*promote_inexact("hyp1f1", a, b, x))


@compiled_function
@documented(_REAL_ARGUMENTS)
def hyp2f1(a: ArrayLike, b: ArrayLike, c: ArrayLike, x: ArrayLike) -> Array:
    """Compute Gauss's hypergeometric function ₂F₁.

    It is the sum of (a)ₖ (b)ₖ xᵏ / ((c)ₖ k!) over all k from 0, where (a)ₖ is the rising factorial `poch(a, k)`,
    continued analytically to all x below 1.

    Args:
        a, b, c: the parameters.

    Returns:
        ₂F₁(a, b; c; x); inf where x > 1 and at the poles c = 0, -1, -2, and so on, unless the sum terminates.

    Example:
        >>> f"{jax.scipy.special.hyp2f1(1.0, 1.0, 2.0, 0.5):.4f}"
        '1.3863'
    """
    return hypergeometric.Hyp2f1()(*promote_inexact("hyp2f1", a, b, c, x))


@documented(_REAL_ARGUMENT)
def sici(x: ArrayLike) -> tuple[Array, Array]:
    """Compute the sine and cosine integrals.

    Returns:
        The tuple `(Si(x), Ci(x))`; Ci of a negative number is the real part of its continuation, `Ci(-x)`.

    Example:
        >>> [f"{y:.4f}" for y in jax.scipy.special.sici(1.0)]
        ['0.9461', '0.3374']
    """
    sine, cosine = _sici(x)
    return sine, cosine


@compiled_list_function
def _sici(x: ArrayLike) -> list[Any]:
    x = as_strong(as_inexact(x, "sici"))
    return [approximations.SineIntegral()(x), approximations.CosineIntegral()(x)]


@documented(_REAL_ARGUMENT)
def fresnel(x: ArrayLike) -> tuple[Array, Array]:
    """Compute the Fresnel integrals.

    Returns:
        The tuple `(S(x), C(x))`: the integrals of sin(πt²/2) and cos(πt²/2) from 0 to `x`.

    Example:
        >>> [f"{y:.4f}" for y in jax.scipy.special.fresnel(1.0)]
        ['0.4383', '0.7799']
    """
    sine, cosine = _fresnel(x)
    return sine, cosine


@compiled_list_function
def _fresnel(x: ArrayLike) -> list[Any]:
    x = as_strong(as_inexact(x, "fresnel"))
    return [approximations.Fresnel(False)(x), approximations.Fresnel(True)(x)]


@documented(_REAL_ARGUMENT)
def spence(x: ArrayLike) -> Array:
    """Compute Spence's function, the dilogarithm of 1 - x.

    Args:
        x: non-negative numbers.

    Returns:
        The integral of log(t) / (1 - t) from 1 to `x`; NaN where `x` is negative.

    Example:
        >>> f"{jax.scipy.special.spence(2.0):.4f}"
        '-0.8225'
    """
    return approximations.Spence()(as_strong(as_inexact(x, "spence")))


@compiled_function
@documented(_ARGUMENTS)
def owens_t(h: ArrayLike, a: ArrayLike) -> Array:
    """Compute Owen's T function.

    Args:
        h: real numbers.
        a: the upper limit of the integral.

    Returns:
        The integral of exp(-h²(1 + t²)/2) / (2π(1 + t²)) from 0 to `a`.

    Example:
        >>> f"{jax.scipy.special.owens_t(1.0, 0.5):.4f}"
        '0.0431'
    """
    h, a = map(as_strong, promote_inexact("owens_t", h, a))
    h, magnitude = jnp.abs(h), jnp.abs(a)
    is_large = magnitude > 1
    # For a > 1, T(h, a) follows from T(ah, 1/a), whose interval of integration is within 0 to 1.
    limit = jnp.where(is_large, 1 / jnp.where(is_large, magnitude, full_like(a, 1)), magnitude)
    scaled = jnp.where(is_large, jnp.where(h == 0, full_like(h, 0), h * magnitude), h)
    points, weights = np.polynomial.legendre.leggauss(24)
    total = full_like(a, 0)
    for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
        square = 1 + (limit * float(point)) ** 2
        total = total + float(weight) / (2 * math.pi) * limit * jnp.exp(-0.5 * scaled * scaled * square) / square
    product = jnp.where(h == 0, full_like(h, 0), h * magnitude)
    reflected = 0.5 * (ndtr(h) * ndtr(-product) + ndtr(-h) * ndtr(product)) - total
    at_zero = jnp.arctan(magnitude) / (2 * math.pi)
    value = jnp.where(h == 0, at_zero, jnp.where(is_large, reflected, total))
    return jnp.where(a < 0, -value, value)


@overload
def logsumexp(
    a: ArrayLike,
    axis: Axes = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: Literal[False] = False,
    where: ArrayLike | None = None,
) -> Array: ...


@overload
def logsumexp(
    a: ArrayLike,
    axis: Axes = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
) -> Any: ...


def logsumexp(
    a: ArrayLike,
    axis: Axes = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
) -> Any:
    """Compute log(sum(b · exp(a))) without overflow.

    Args:
        a: the exponents.
        axis: the axis or axes to reduce; all by default.
        b: the factors of the exponentials; 1 by default.
        keepdims: whether the reduced axes are kept with size 1.
        return_sign: whether to return the sign of the sum separately.
        where: a mask of the elements to include; all by default.

    Returns:
        The logarithm of the sum, NaN where the sum is negative. With `return_sign`, a tuple of the logarithm of the
        absolute value of the sum and its sign.

    Raises:
        ValueError: if an axis is out of range.
        TypeError: if an argument is not an array or a number, or if the shapes do not broadcast.

    Example:
        >>> f"{jax.scipy.special.logsumexp(jnp.array([1000.0, 1000.0])):.3f}"
        '1000.693'
    """
    return nn.logsumexp(a, axis, b, keepdims, return_sign, where)


@documented(_LOGITS)
def softmax(x: ArrayLike, /, *, axis: Axes = None) -> Array:
    """Compute the softmax function exp(x) / sum(exp(x)) without overflow.

    Args:
        axis: the axis or axes over which the result sums to 1; all by default.

    Returns:
        The probabilities, in the shape of `x`.

    Example:
        >>> jax.scipy.special.softmax(jnp.array([0.0, 0.0, 1000.0]))
        Array([0., 0., 1.], dtype=float32)
    """
    return nn.softmax(x, _all_axes(x, axis))


@documented(_LOGITS)
def log_softmax(x: ArrayLike, /, *, axis: Axes = None) -> Array:
    """Compute the logarithm of the softmax function.

    Args:
        axis: the axis or axes over which the probabilities sum to 1; all by default.

    Returns:
        The log probabilities, in the shape of `x`.

    Example:
        >>> jax.scipy.special.log_softmax(jnp.array([0.0, 1000.0]))
        Array([-1000.,     0.], dtype=float32)
    """
    return nn.log_softmax(x, _all_axes(x, axis))


def _all_axes(x: ArrayLike, axis: Axes) -> Any:
    return tuple(range(type_of(x, "softmax").ndim)) if axis is None else axis


_LEGENDRE = Deprecated("shardwise.scipy.legendre", "JAX plans no replacement")

publish(
    __name__,
    *("bessel_jn", "loggamma", "sph_harm_y"),
    deprecated={"lpmn": _LEGENDRE, "lpmn_values": _LEGENDRE},
)
