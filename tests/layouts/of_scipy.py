"""Calls of the functions of `shardwise.scipy` on arrays of `n` rows and columns."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise.scipy import linalg, special, stats
from tests.layouts.call import Call, above, call, complexes, dominant, floats, inside, integers, symmetric
from tests.scipy.test_stats import AT

ONE = (
    *("dawsn", "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp1", "expi", "expit", "factorial", "fresnel"),
    *("gamma", "gammaln", "gammasgn", "i0", "i0e", "i1", "i1e", "log_ndtr", "loggamma", "logit", "ndtr", "ndtri"),
    *("sici", "spence"),
)
TWO = (
    *("beta", "betaln", "boxcox", "boxcox1p", "comb", "gammainc", "gammaincc", "kl_div", "owens_t", "poch"),
    *("rel_entr", "xlog1py", "xlogy"),
)


def calls(n: int) -> Iterator[Call]:
    for table in (of_special, of_linalg, of_distributions, of_samples):
        yield from table(n)


def of_special(n: int) -> Iterator[Call]:
    x, y, share = above(n, n), above(n, n, seed=9), inside(n, n)
    loose = {"rtol": 1e-4, "atol": 1e-5}
    for name in ONE:
        function = getattr(special, name)
        yield call(f"scipy.special.{name}", lambda x, y, f=function: [f(x), f(y)], share, x, **loose)
    for name in TWO:
        yield call(f"scipy.special.{name}", getattr(special, name), x, y, **loose)
    for name in ("softmax", "log_softmax", "logsumexp"):
        function = getattr(special, name)
        yield call(
            f"scipy.special.{name}",
            lambda x, f=function: [f(x, axis=axis) for axis in (0, 1, None)],
            x,
            **loose,
        )
    yield call("scipy.special.bernoulli", lambda: special.bernoulli(n - 1))
    yield call("scipy.special.bessel_jn", lambda x: special.bessel_jn(x, v=3), x, **loose)
    yield call("scipy.special.betainc", special.betainc, x, y, share, **loose)
    yield call("scipy.special.expn", special.expn, x.round(), y, **loose)
    yield call("scipy.special.hyp1f1", special.hyp1f1, x, y, floats(n, n), **loose)
    yield call("scipy.special.hyp2f1", special.hyp2f1, x, y, x + y, share, **loose)
    yield call("scipy.special.multigammaln", lambda x: special.multigammaln(x + 2, 3), x, **loose)
    yield call("scipy.special.polygamma", special.polygamma, x.round(), y, **loose)
    yield call(
        "scipy.special.sph_harm_y",
        lambda i, j, x, y: special.sph_harm_y(i, j, x, y, n_max=4),
        integers(n, low=0, high=5),
        np.zeros(n, np.int32),
        floats(n),
        floats(n, seed=1),
        **loose,
    )
    yield call("scipy.special.wofz", special.wofz, complexes(n, n), **loose)
    yield call("scipy.special.zeta", special.zeta, x + 1, y, **loose)


def of_linalg(n: int) -> Iterator[Call]:
    x, y, z, row = dominant(n, n), floats(n, n, seed=1), symmetric(n, n), floats(n)
    loose = {"rtol": 1e-3, "atol": 1e-3}
    square: dict[str, Any] = {
        "cho_factor": lambda x: jnp.triu(linalg.cho_factor(x)[0]),
        "cholesky": linalg.cholesky,
        "eigh": lambda x: linalg.eigh(x, eigvals_only=True),
        "expm": lambda x: linalg.expm(x / 40),
        "expm_frechet": lambda x: linalg.expm_frechet(x / 40, x.T / 9),
        "funm": lambda x: linalg.funm(x, jnp.sin),
        "hessenberg": linalg.hessenberg,
        "schur": lambda x: abs(linalg.schur(x)[0]),
        "sqrtm": linalg.sqrtm,
        "polar": linalg.polar,
        "rsf2csf": lambda x: abs(linalg.rsf2csf(jnp.triu(x), jnp.eye(n))[0]),
    }
    for name, function in square.items():
        yield call(f"scipy.linalg.{name}", function, z, **loose)
    both: dict[str, Any] = {
        "cho_solve": lambda x, y: linalg.cho_solve((jnp.tril(x), True), y),
        "det": lambda x, y: linalg.det(x / n),
        "inv": lambda x, y: linalg.inv(x),
        "lu": lambda x, y: linalg.lu(x),
        "lu_factor": lambda x, y: linalg.lu_factor(x),
        "lu_solve": lambda x, y: linalg.lu_solve(linalg.lu_factor(x), y),
        "qr": lambda x, y: linalg.qr(x),
        "qr_multiply": linalg.qr_multiply,
        "solve": linalg.solve,
        "solve_triangular": linalg.solve_triangular,
        "svd": lambda x, y: linalg.svd(x, compute_uv=False),
    }
    for name, function in both.items():
        yield call(f"scipy.linalg.{name}", function, x, y, **loose)
    yield call("scipy.linalg.solve_sylvester", linalg.solve_sylvester, z, z, y, **loose)
    yield call(
        "scipy.linalg.eigh_tridiagonal",
        lambda d, e: linalg.eigh_tridiagonal(d, e[1:], eigvals_only=True),
        row,
        row,
        **loose,
    )
    yield call("scipy.linalg.block_diag", linalg.block_diag, x, y[:3], exact=True)
    for name in ("circulant", "companion", "fiedler", "fiedler_companion", "hankel", "toeplitz"):
        yield call(f"scipy.linalg.{name}", getattr(linalg, name), row + 5)
    yield call("scipy.linalg.leslie", lambda f, s: linalg.leslie(f, s[1:]), row, row + 1)
    yield call(
        "scipy.linalg.convolution_matrix",
        lambda a: [linalg.convolution_matrix(a, n, mode) for mode in ("full", "same", "valid")],
        row,
    )
    for name in ("dft", "helmert", "hilbert", "invpascal", "pascal"):
        function = getattr(linalg, name)
        yield call(f"scipy.linalg.{name}", lambda f=function: f(n))
    yield call("scipy.linalg.hadamard", lambda: linalg.hadamard(8))
    yield call("scipy.linalg.invhilbert", lambda: linalg.invhilbert(n))


def of_distributions(n: int) -> Iterator[Call]:
    """The arguments are those of the family's own table, as often as they fill the array."""
    loose = {"rtol": 1e-4, "atol": 1e-5}
    for name, args in AT.items():
        given = [np.resize(x, (n, n)) for x in args]
        for function in getattr(stats, name).__all__:
            if function == "entropy":
                continue
            mine = [np.resize(inside(7), (n, n)), *given[1:]] if function in ("ppf", "isf") else given
            if (name, function) == ("bernoulli", "cdf"):
                mine = given[:2]
            yield call(f"scipy.stats.{name}.{function}", getattr(getattr(stats, name), function), *mine, **loose)
    yield call("scipy.stats.poisson.entropy", stats.poisson.entropy, above(n, n), **loose)
    for function in ("pdf", "logpdf"):
        of_each = getattr(stats.dirichlet, function)
        yield call(
            f"scipy.stats.dirichlet.{function}",
            lambda x, a, f=of_each: f(x / x.sum(0), a),
            inside(n, n),
            above(n) / 2,
            rtol=1e-3,
        )
        yield call(
            f"scipy.stats.multivariate_normal.{function}",
            getattr(stats.multivariate_normal, function),
            floats(n, n),
            floats(n),
            symmetric(n, n) / 9,
            rtol=1e-3,
        )
    whole = integers(n, n, low=0, high=4)
    for function in ("pmf", "logpmf"):
        of_each = getattr(stats.multinomial, function)
        yield call(
            f"scipy.stats.multinomial.{function}",
            lambda x, p, f=of_each: f(x, x.sum(-1), p / p.sum()),
            whole,
            inside(n),
            **loose,
        )


def of_samples(n: int) -> Iterator[Call]:
    x, i = floats(n, n), integers(n, n, low=0, high=4)
    yield call("scipy.stats.mode", lambda x: [stats.mode(x, axis=axis) for axis in (0, 1, None)], i)
    yield call("scipy.stats.rankdata", lambda x: [stats.rankdata(x, axis=axis) for axis in (0, 1, None)], i)
    yield call("scipy.stats.sem", lambda x: [stats.sem(x, axis=axis) for axis in (0, 1, None)], x)
    yield call(
        "scipy.stats.gaussian_kde", lambda x, at: stats.gaussian_kde(x[:2])(at[:2]), x, x[::-1].copy(), rtol=1e-4
    )


def distributions() -> list[ModuleType]:
    return [found for name in stats.__all__ if isinstance(found := getattr(stats, name), ModuleType)]
