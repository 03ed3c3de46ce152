"""Determinants, solvers and least squares: gradients at singular matrices, shapes, and sharded batches."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.numpy.linalg.test_linalg import dominant, real


def test_gradient_of_det_is_the_cofactor_matrix_at_singular_matrices():
    """Zero pivots at the first and at a middle position, and ranks below n - 1."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=(4, 4)).astype(np.float32)
    first[:, 0] = 0
    middle = rng.normal(size=(4, 4)).astype(np.float32)
    middle[2] = middle[0] - middle[1]
    matrices = np.stack([first, middle, np.ones((4, 4), np.float32), np.zeros((4, 4), np.float32)])
    gradients = sw.jit(sw.grad(lambda x: jnp.linalg.det(x).sum()))(matrices)
    for x, gradient in zip(matrices, np.asarray(gradients), strict=True):
        minors = [[np.linalg.det(np.delete(np.delete(x, i, 0), j, 1)) for j in range(4)] for i in range(4)]
        signs = (-1.0) ** np.add.outer(np.arange(4), np.arange(4))
        np.testing.assert_allclose(gradient, signs * minors, rtol=1e-3, atol=1e-4)


def test_numpy_resid_is_empty_for_wide_matrices():
    wide = jnp.linalg.lstsq(jnp.array(real(3, 5)), jnp.array(real(3)), numpy_resid=True)
    assert wide[1].shape == (0,)
    tall = jnp.linalg.lstsq(jnp.array(real(5, 3)), jnp.array(real(5)), numpy_resid=True)
    assert tall[1].shape == (1,)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("size", [16, 13], ids=["even", "uneven"])
def test_sharded_batch_stays_sharded(size):
    """Each device decomposes the matrices of its own shard (jax#13081, #15680, #13087)."""
    mesh = sw.make_mesh((8,), ("x",))
    a, b = dominant(size, 3, 3), real(size, 3, 2)
    placed = [sw.device_put(x, NamedSharding(mesh, P("x"))) for x in (a, b)]
    names = ("inv", "pinv", "det", "slogdet", "svdvals", "cholesky", "qr", "eigh", "eigvals", "cond", "matrix_norm")

    def run(a, b):
        return [jnp.linalg.solve(a, b), *(getattr(jnp.linalg, name)(a) for name in names)]

    for got, want in zip(sw.tree.leaves(sw.jit(run)(*placed)), sw.tree.leaves(sw.jit(run)(a, b)), strict=True):
        assert got.sharding.spec[0] == "x"
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
