"""Compare map_coordinates, RegularGridInterpolator, vq and trapezoid with JAX and scipy."""

import numpy as np
import pytest
import scipy.interpolate
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.scipy import cluster, integrate, ndimage
from shardwise.scipy.interpolate import RegularGridInterpolator
from tests.agreement import Case, gradients_like, mesh_like_one_device, values_like

try:
    import jax
    import jax.scipy.cluster.vq
    import jax.scipy.integrate
    import jax.scipy.ndimage
except ImportError:  # one of the oracles
    jax = None

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8, 6)).astype(np.float32)
AT = [RANDOM.uniform(-12, 18, 24).astype(np.float32), RANDOM.uniform(-12, 18, 24).astype(np.float32)]
MODES = ("constant", "nearest", "wrap", "mirror", "reflect")
COORDINATES = [
    *(Case("map_coordinates", (X, AT, order, mode), {"cval": 2.0}) for mode in MODES for order in (1, 0)),
    Case("map_coordinates", ((X * 10).astype(np.int32), AT, 1, "wrap")),
    # half-way between two elements or integers
    Case("map_coordinates", (np.arange(6.0, dtype=np.float32), [np.arange(-2.5, 7.5, dtype=np.float32)], 0, "wrap")),
    Case("map_coordinates", (np.arange(-6, 6, 1), [np.arange(0.5, 10.5, dtype=np.float32)], 1, "wrap")),
]


@pytest.mark.slow
@pytest.mark.jax
def test_map_coordinates_like_jax():
    pytest.importorskip("jax")
    values_like(ndimage, jax.scipy.ndimage, COORDINATES, jax)
    gradients_like(ndimage, jax.scipy.ndimage, COORDINATES[::2][:5], jax)


def test_map_coordinates_sharded(mesh):
    mesh_like_one_device(mesh, ndimage, COORDINATES[::3], "first")


def test_map_coordinates_errors():
    with pytest.raises(ValueError, match="an array of rank 2 needs 2 arrays of coordinates, not 1"):
        ndimage.map_coordinates(X, AT[:1], 1)
    with pytest.raises(NotImplementedError, match="order must be 0 or 1, not 3"):
        ndimage.map_coordinates(X, AT, 3)
    with pytest.raises(NotImplementedError, match="mode 'grid' is not supported"):
        ndimage.map_coordinates(X, AT, 1, "grid")


@settings(max_examples=10, deadline=None)
@given(
    sizes=st.lists(st.integers(2, 5), min_size=1, max_size=3),
    method=st.sampled_from(["linear", "nearest"]),
    fill=st.sampled_from([np.nan, 3.0, None]),
    further=st.sampled_from([(), (2,)]),
)
def test_grid_interpolation_like_scipy(sizes, method, fill, further):
    random = np.random.default_rng(sum(sizes))
    points = [np.cumsum(random.uniform(0.2, 1, size)).astype(np.float32) for size in sizes]
    values = random.normal(size=(*sizes, *further)).astype(np.float32)
    at = random.uniform(-0.5, 4, (7, len(sizes))).astype(np.float32)
    ours = RegularGridInterpolator(points, values, method, fill_value=fill)
    theirs = scipy.interpolate.RegularGridInterpolator(points, values, method, bounds_error=False, fill_value=fill)
    np.testing.assert_allclose(ours(at), theirs(at), atol=2e-4)


@pytest.mark.slow
def test_grid_interpolator_is_a_pytree_and_checks():
    grid = RegularGridInterpolator([np.arange(4.0), np.arange(3.0)], np.arange(12.0).reshape(4, 3))
    result = sw.jit(lambda grid, x: grid(x))(grid, np.array([[1.5, 0.5]], np.float32))
    np.testing.assert_allclose(result, [5.0])
    np.testing.assert_allclose(grid((np.array([1.5]), np.array([0.5]))), [5.0])
    assert sw.grad(grid)(np.array([1.5, 0.5], np.float32)).tolist() == [3, 1]
    with pytest.raises(ValueError, match="do not fit to values"):
        RegularGridInterpolator([np.arange(4.0)], np.ones(3))
    with pytest.raises(ValueError, match="method must be"):
        RegularGridInterpolator([np.arange(4.0)], np.ones(4), "cubic")
    with pytest.raises(ValueError, match="positions need a last axis of 2"):
        grid(np.ones((2, 3)))
    with pytest.raises(NotImplementedError, match="bounds_error"):
        RegularGridInterpolator([np.arange(4.0)], np.ones(4), bounds_error=True)


@pytest.mark.jax
def test_vq_and_trapezoid_like_jax():
    pytest.importorskip("jax")
    codes = RANDOM.normal(size=(5, 6)).astype(np.float32)
    values_like(cluster.vq, jax.scipy.cluster.vq, [Case("vq", (X, codes)), Case("vq", (X[0], codes[0]))], jax)
    values_like(integrate, jax.scipy.integrate, [Case("trapezoid", (X,), {"axis": 0})], jax)
    with pytest.raises(ValueError, match="must have as many features"):
        cluster.vq.vq(X, codes[:, :3])
    with pytest.raises(ValueError, match="must both be of rank 1 or 2"):
        cluster.vq.vq(X, codes[0])
