"""Compare gaussian_kde with scipy and JAX."""

import numpy as np
import pytest
import scipy.stats

import shardwise as sw
from shardwise.scipy import stats
from tests.agreement import (
    Case,
    assert_equal,
)
from tests.scipy.stats.test_stats import MATRIX, ROWS, floats

try:
    import jax
except ImportError:
    jax = None


@pytest.mark.slow
def test_gaussian_kde_equals_that_of_scipy():
    data, weights = ROWS.T, floats(1, 2, 3, 1)
    points = np.array([[0.1, 0.9], [0.2, -0.5], [0.3, 0.1]], np.float32)
    for method in (None, "silverman", 0.7):
        ours = stats.gaussian_kde(data, method, weights)
        theirs = scipy.stats.gaussian_kde(data, method, weights)
        np.testing.assert_allclose(ours.covariance, theirs.covariance, rtol=1e-5)
        np.testing.assert_allclose(ours.inv_cov, theirs.inv_cov, rtol=1e-4)
        np.testing.assert_allclose(ours(points), theirs(points), rtol=1e-4)
        np.testing.assert_allclose(ours.logpdf(points), theirs.logpdf(points), rtol=1e-4)
        mean, cov = ROWS[0], MATRIX
        np.testing.assert_allclose(ours.integrate_gaussian(mean, cov), theirs.integrate_gaussian(mean, cov), rtol=1e-4)
        np.testing.assert_allclose(ours.integrate_kde(ours), theirs.integrate_kde(theirs), rtol=1e-4)
    univariate = stats.gaussian_kde(data[0])
    expected = scipy.stats.gaussian_kde(data[0]).integrate_box_1d(-1, 0.5)
    np.testing.assert_allclose(univariate.integrate_box_1d(-1, 0.5), expected, rtol=1e-5)
    np.testing.assert_allclose(sw.jit(lambda kde, x: kde(x))(univariate, 0.5), univariate(0.5), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.jax
@pytest.mark.skipif(jax is None, reason="needs JAX")
def test_gaussian_kde_resample_equals_that_of_jax():
    ours, theirs = (space.gaussian_kde(ROWS.T) for space in (stats, jax.scipy.stats))
    for shape in ((), (3,)):
        mine, other = ours.resample(sw.random.key(3), shape), theirs.resample(jax.random.key(3), shape)
        assert_equal(mine, other, Case("resample", rtol=1e-4, atol=1e-5))
    assert ours.resample(sw.random.key(3), (2, 5)).shape == (3, 2, 5)
