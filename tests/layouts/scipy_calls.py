"""Calls of the functions of `shardwise.scipy` on arrays of `n` rows and columns."""

from collections.abc import Iterator
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise import image
from shardwise.scipy import cluster, fft, linalg, ndimage, signal, sparse, special, stats
from tests.layouts.call import (
    Call,
    above_one,
    call,
    complex_numbers,
    floats,
    integers,
    positive_definite,
    probabilities,
    well_conditioned,
)
from tests.scipy.stats.test_stats import AT

UNARY = (
    *(
        "dawsn",
        "digamma",
        "entr",
        "erf",
        "erfc",
        "erfcinv",
        "erfcx",
        "erfinv",
        "exp1",
        "expi",
        "expit",
        "factorial",
        "fresnel",
    ),
    *("gamma", "gammaln", "gammasgn", "i0", "i0e", "i1", "i1e", "log_ndtr", "loggamma", "logit", "ndtr", "ndtri"),
    *("sici", "spence"),
)
BINARY = (
    *("beta", "betaln", "boxcox", "boxcox1p", "comb", "gammainc", "gammaincc", "kl_div", "owens_t", "poch"),
    *("rel_entr", "xlog1py", "xlogy"),
)


def special_functions(n: int) -> Iterator[Call]:
    x, y, fractions = above_one(n, n), above_one(n, n, seed=9), probabilities(n, n)
    loose = {"rtol": 1e-4, "atol": 1e-5}
    for name in UNARY:
        function = getattr(special, name)
        yield call(f"scipy.special.{name}", lambda x, y, f=function: [f(x), f(y)], fractions, x, **loose)
    for name in BINARY:
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
    yield call("scipy.special.betainc", special.betainc, x, y, fractions, **loose)
    yield call("scipy.special.expn", special.expn, x.round(), y, **loose)
    yield call("scipy.special.hyp1f1", special.hyp1f1, x, y, floats(n, n), **loose)
    yield call("scipy.special.hyp2f1", special.hyp2f1, x, y, x + y, fractions, **loose)
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
    yield call("scipy.special.wofz", special.wofz, complex_numbers(n, n), **loose)
    yield call("scipy.special.zeta", special.zeta, x + 1, y, **loose)


def linalg_functions(n: int) -> Iterator[Call]:
    x, y, z, row = well_conditioned(n, n), floats(n, n, seed=1), positive_definite(n, n), floats(n)
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


def distribution_functions(n: int) -> Iterator[Call]:
    """The arguments are those of tests/scipy/stats/test_stats.py, repeated to fill the array."""
    loose = {"rtol": 1e-4, "atol": 1e-5}
    for name, args in AT.items():
        arguments = [np.resize(x, (n, n)) for x in args]
        for function in getattr(stats, name).__all__:
            if function == "entropy":
                continue
            arguments_of_function = (
                [np.resize(probabilities(7), (n, n)), *arguments[1:]] if function in ("ppf", "isf") else arguments
            )
            if (name, function) == ("bernoulli", "cdf"):
                arguments_of_function = arguments[:2]
            yield call(
                f"scipy.stats.{name}.{function}",
                getattr(getattr(stats, name), function),
                *arguments_of_function,
                **loose,
            )
    yield call("scipy.stats.poisson.entropy", stats.poisson.entropy, above_one(n, n), **loose)
    for function in ("pdf", "logpdf"):
        function_of_one = getattr(stats.dirichlet, function)
        yield call(
            f"scipy.stats.dirichlet.{function}",
            lambda x, a, f=function_of_one: f(x / x.sum(0), a),
            probabilities(n, n),
            above_one(n) / 2,
            rtol=1e-3,
        )
        yield call(
            f"scipy.stats.multivariate_normal.{function}",
            getattr(stats.multivariate_normal, function),
            floats(n, n),
            floats(n),
            positive_definite(n, n) / 9,
            rtol=1e-3,
        )
    counts = integers(n, n, low=0, high=4)
    for function in ("pmf", "logpmf"):
        function_of_one = getattr(stats.multinomial, function)
        yield call(
            f"scipy.stats.multinomial.{function}",
            lambda x, p, f=function_of_one: f(x, x.sum(-1), p / p.sum()),
            counts,
            probabilities(n),
            **loose,
        )


def statistics(n: int) -> Iterator[Call]:
    x, i = floats(n, n), integers(n, n, low=0, high=4)
    yield call("scipy.stats.mode", lambda x: [stats.mode(x, axis=axis) for axis in (0, 1, None)], i)
    yield call("scipy.stats.rankdata", lambda x: [stats.rankdata(x, axis=axis) for axis in (0, 1, None)], i)
    yield call("scipy.stats.sem", lambda x: [stats.sem(x, axis=axis) for axis in (0, 1, None)], x)
    yield call(
        "scipy.stats.gaussian_kde", lambda x, at: stats.gaussian_kde(x[:2])(at[:2]), x, x[::-1].copy(), rtol=1e-4
    )


def cosine_transforms(n: int) -> Iterator[Call]:
    x = floats(n, n)
    for name in ("dct", "idct"):
        function = getattr(fft, name)
        yield call(f"scipy.fft.{name}", lambda x, f=function: [f(x, axis=0), f(x, axis=1, norm="ortho")], x, atol=1e-4)
    for name in ("dctn", "idctn"):
        yield call(f"scipy.fft.{name}", getattr(fft, name), x, atol=1e-3)


def krylov_solvers(n: int) -> Iterator[Call]:
    right = floats(n)
    for name in ("bicgstab", "cg", "gmres"):
        solver, matrix = (
            getattr(sparse.linalg, name),
            positive_definite(n, n) if name == "cg" else well_conditioned(n, n),
        )
        yield call(f"scipy.sparse.linalg.{name}", lambda a, b, f=solver: f(a, b)[0], matrix, right, atol=1e-4)


def signal_functions(n: int) -> Iterator[Call]:
    x, kernel = floats(n, n), floats(n, 3, seed=1)
    loose = {"rtol": 1e-4, "atol": 1e-4}
    for name in ("convolve", "correlate", "convolve2d", "correlate2d", "fftconvolve"):
        function = getattr(signal, name)
        yield call(f"scipy.signal.{name}", lambda x, y, f=function: f(x, y, "same"), x, kernel, **loose)
    yield call("scipy.signal.detrend", lambda x: [signal.detrend(x, axis=axis) for axis in (0, 1)], x, **loose)
    for name in ("welch", "stft"):
        function = getattr(signal, name)
        yield call(f"scipy.signal.{name}", lambda x, f=function: f(x, nperseg=4), x, **loose)
    yield call("scipy.signal.csd", lambda x, y: signal.csd(x, y, nperseg=4), x, x[::-1].copy(), **loose)
    yield call("scipy.signal.istft", lambda x: signal.istft(x, nperseg=2 * n - 2), complex_numbers(n, n), **loose)


def resampling_functions(n: int) -> Iterator[Call]:
    x, positions = floats(n, n), above_one(n)
    yield call("image.resize", lambda x: [image.resize(x, (5, n), "cubic"), image.resize(x, (n, 5), "nearest")], x)
    scale, shift = np.array([0.7], np.float32), np.array([0.3], np.float32)
    yield call(
        "image.scale_and_translate",
        lambda x: [image.scale_and_translate(x, (n, n), (dim,), scale, shift, "linear") for dim in (0, 1)],
        x,
        atol=1e-5,
    )
    yield call(
        "scipy.ndimage.map_coordinates", lambda x, y: ndimage.map_coordinates(x, [y, y], 1, "wrap"), x, positions
    )
    yield call("scipy.cluster.vq.vq", cluster.vq.vq, x, floats(n, n, seed=1), atol=1e-5)


FAMILIES = (
    *(special_functions, linalg_functions, distribution_functions, statistics),
    *(cosine_transforms, krylov_solvers, signal_functions, resampling_functions),
)
