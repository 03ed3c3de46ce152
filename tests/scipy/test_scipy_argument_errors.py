"""Wrong arguments of scipy functions: the typed error and its text."""

import numpy as np
import pytest

from shardwise import numpy as jnp
from shardwise.scipy import interpolate, linalg, signal
from shardwise.scipy.stats import gaussian_kde

V, X, EYE = np.ones(3, np.float32), np.ones((2, 3), np.float32), np.eye(3, dtype=np.float32)
GRID = np.arange(3.0)


def interpolator(points=(GRID,), **keywords):
    return interpolate.RegularGridInterpolator(points, V, **keywords)


def kde(dataset=((1.0, 2.0, 4.0),), **keywords):
    return gaussian_kde(np.asarray(dataset), **keywords)


CASES = [
    # interpolate
    (lambda: interpolator(method="cubic"), ValueError, "RegularGridInterpolator: method must be 'linear' or 'nearest'"),
    (lambda: interpolator(bounds_error=True), NotImplementedError, "RegularGridInterpolator: bounds_error is not supp"),
    (
        lambda: interpolator((GRID, GRID)),
        ValueError,
        r"RegularGridInterpolator: points of shapes \(\(3,\), \(3,\)\) do",
    ),
    (lambda: interpolator()(V, method="cubic"), ValueError, "RegularGridInterpolator: method must be 'linear'"),
    (lambda: interpolator()(X), ValueError, "RegularGridInterpolator: positions need a last axis of 1 coordinates"),
    # linalg
    (lambda: linalg.eigh(EYE, EYE), NotImplementedError, r"eigh: generalized problems \(b, type\) and subsets"),
    (lambda: linalg.eigh_tridiagonal(V, V), TypeError, "eigh_tridiagonal: d must be a vector, and e a vector of one"),
    (lambda: linalg.eigh_tridiagonal(V, V[1:], select="v"), NotImplementedError, "eigh_tridiagonal: select='v' is not"),
    (
        lambda: linalg.eigh_tridiagonal(V, V[1:], select="i"),
        ValueError,
        "eigh_tridiagonal: select='i' and select_range",
    ),
    (lambda: linalg.polar(EYE, method="newton"), ValueError, "polar: method must be 'qdwh' or 'svd', not 'newton'"),
    (lambda: linalg.leslie(V, V), ValueError, "leslie: f must have at least two elements, and s one element less"),
    (
        lambda: linalg.convolution_matrix(V, 2, mode="all"),
        ValueError,
        "convolution_matrix: mode must be 'full', 'same'",
    ),
    (lambda: linalg.convolution_matrix(V, 0), ValueError, "convolution_matrix: n must be positive and a not empty"),
    (lambda: linalg.block_diag(np.ones((1, 1, 1))), ValueError, "block_diag: blocks must have rank 2 or less"),
    (lambda: linalg.pascal(3, kind="both"), ValueError, "pascal: kind must be 'symmetric', 'lower' or 'upper', not"),
    (lambda: linalg.dft(3, scale="m"), ValueError, "dft: scale must be None, 'sqrtn' or 'n', not 'm'"),
    (lambda: linalg.lu_solve((EYE, np.arange(3)), V, trans=3), ValueError, "lu_solve: trans must be 0, 1 or 2, not 3"),
    (
        lambda: linalg.solve_sylvester(EYE, EYE, EYE, method="qr"),
        ValueError,
        "solve_sylvester: method must be 'schur' or 'eigen', not 'qr'",
    ),
    (lambda: linalg.expm_frechet(EYE, EYE, method="x"), ValueError, "expm_frechet: method must be 'SPS' or 'blockEnl"),
    (lambda: linalg.sqrtm(EYE, blocksize=2), NotImplementedError, "sqrtm: blocksize=2 is not supported"),
    # signal
    (lambda: signal.detrend(V, overwrite_data=True), NotImplementedError, "detrend: overwrite_data is not supported"),
    (lambda: signal.welch(V, nperseg=0), ValueError, "welch: nperseg must be positive, not 0"),
    (lambda: signal.welch(V, window=np.ones(4)), ValueError, "welch: window must be a vector of at most 3 elements"),
    (lambda: signal.welch(V, window=V, nperseg=2), ValueError, "welch: nperseg is 2, but the window has 3 elements"),
    (lambda: signal.istft(V), ValueError, "istft: Zxx needs an axis of frequencies and one of segments"),
    (lambda: signal.convolve(V, np.ones(0)), ValueError, "convolve: arrays must have elements, not the shapes"),
    # kernel density estimates
    (lambda: kde([[1j, 2j]]), NotImplementedError, "gaussian_kde: complex datasets are not supported"),
    (lambda: kde(weights=np.ones(2)), ValueError, "gaussian_kde: .*weights"),
    (lambda: kde().integrate_gaussian(V, 1.0), ValueError, r"gaussian_kde: the mean must have shape \(1,\)"),
    (lambda: kde().integrate_gaussian(0.0, EYE), ValueError, r"gaussian_kde: the covariance must have shape \(1, 1\)"),
    (
        lambda: kde([[1.0, 2.0, 4.0], [2.0, 5.0, 3.0]]).integrate_box_1d(0.0, 1.0),
        ValueError,
        "gaussian_kde: integrate_box_1d needs a dataset of dimension 1, not 2",
    ),
    (
        lambda: kde().integrate_box_1d(V, 1.0),
        ValueError,
        "gaussian_kde: the bounds of integrate_box_1d must be scalars",
    ),
    (lambda: kde().integrate_kde(kde([[1.0, 2.0, 4.0], [2.0, 5.0, 3.0]])), ValueError, "gaussian_kde: .*dimension"),
]


@pytest.mark.parametrize(("call", "error", "text"), CASES, ids=[text.replace("\\", "")[:40] for _, _, text in CASES])
def test_wrong_arguments_raise(call, error, text):
    with pytest.raises(error, match=f"^{text}"):
        call()


def test_a_density_estimate_is_a_pytree_and_prints_its_fields():
    estimate = kde()
    assert str(estimate).startswith("gaussian_kde(")
    np.testing.assert_allclose(estimate.logpdf(jnp.array([1.5])), np.log(estimate(jnp.array([1.5]))), rtol=1e-5)
    np.testing.assert_allclose(estimate.integrate_box_1d(-50.0, 50.0), 1.0, rtol=1e-5)
