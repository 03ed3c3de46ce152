"""Compare vq, and trapezoid of scipy.integrate, with JAX."""

import numpy as np
import pytest

from shardwise.scipy import cluster, integrate
from tests.agreement import Case, values_like

try:
    import jax
    import jax.scipy.cluster.vq
    import jax.scipy.integrate
except ImportError:  # one of the oracles
    jax = None

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8, 6)).astype(np.float32)


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
