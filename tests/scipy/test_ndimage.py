"""Compare map_coordinates with JAX, and 8 devices with one."""

import numpy as np
import pytest

from shardwise.scipy import ndimage
from tests.agreement import Case, gradients_like, mesh_like_one_device, values_like

try:
    import jax
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
