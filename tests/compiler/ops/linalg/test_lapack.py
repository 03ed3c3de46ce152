"""Large batches of matrices, which LAPACK gets in sub-batches."""

import numpy as np
import pytest

import shardwise as sw
from shardwise.compiler.ops.linalg import lapack
from shardwise.compiler.ops.linalg.eigen import Eig, Eigh
from shardwise.compiler.ops.linalg.hessenberg_schur import Hessenberg, Schur, Tridiagonal
from shardwise.compiler.ops.linalg.householder import Geqrf, HouseholderProduct, Ormqr, Qr
from shardwise.compiler.ops.linalg.lu import Lu
from shardwise.compiler.ops.linalg.svd import Svd
from shardwise.compiler.ops.linalg.triangular import Cholesky, TriangularSolve, TridiagonalSolve

RNG = np.random.default_rng(0)


def matrices(*shape, dtype=np.float32):
    x = RNG.normal(size=shape)
    return (x + 1j * RNG.normal(size=shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def positive_definite(batch, size, dtype):
    x = matrices(*batch, size, size, dtype=dtype)
    return x @ np.conj(np.swapaxes(x, -1, -2)) + size * np.eye(size, dtype=dtype)


# (op, operands): small matrices, of which one call factors many, and larger ones, of which it factors one.
CASES = [
    (Cholesky(), (positive_definite((250,), 4, np.float32),)),
    (Cholesky(), (positive_definite((3, 5), 20, np.complex64),)),
    (TriangularSolve(left_side=True, is_lower=True), (positive_definite((9,), 24, np.float32), matrices(9, 24, 2))),
    (TridiagonalSolve(), (*(matrices(3, 1100) for _ in range(3)), matrices(3, 1100, 3))),
    (Lu(), (matrices(2, 9, 18, 25),)),
    (Qr(full=False), (matrices(2, 9, 25, 18, dtype=np.complex64),)),
    (Qr(full=True), (matrices(11, 20, 18),)),
    (Geqrf(), (matrices(11, 20, 18),)),
    (HouseholderProduct(), (matrices(11, 20, 18), matrices(11, 18))),
    (Ormqr(), (matrices(11, 20, 18), matrices(11, 18), matrices(11, 20, 30))),
    (Eigh(), (positive_definite((300,), 4, np.float32),)),
    (Eig(left=True, right=True), (matrices(7, 19, 19),)),
    (Svd(full=False, vectors=True), (matrices(3, 4, 22, 19),)),
    (Svd(full=False, vectors=False), (matrices(3, 4, 19, 22, dtype=np.complex64),)),
    (Hessenberg(), (matrices(7, 19, 19),)),
    (Schur(), (matrices(7, 19, 19),)),
    (Tridiagonal(), (positive_definite((7,), 19, np.float32),)),
]


@pytest.mark.table(default=6)
@pytest.mark.parametrize(("op", "operands"), CASES, ids=[f"{op.name}-{xs[0].dtype}{xs[0].shape}" for op, xs in CASES])
def test_a_large_batch_equals_its_matrices_one_at_a_time(op, operands, monkeypatch):
    monkeypatch.setattr(lapack, "jaxlib_version", lambda: "0.11.0")

    def apply(*operands):
        results = op(*operands)
        return results if isinstance(results, tuple | list) else (results,)

    batch = operands[0].shape[: operands[0].ndim - op.core_ranks[0]]
    together = sw.jit(apply)(*operands)
    one_at_a_time = sw.jit(apply)
    lowered = sw.jit(apply).lower(*operands).as_text()
    assert "stablehlo.while" in lowered
    for index in np.ndindex(*batch):
        for result, expected in zip(together, one_at_a_time(*(x[index] for x in operands)), strict=True):
            np.testing.assert_array_equal(np.asarray(result)[index], np.asarray(expected))


@pytest.mark.parametrize(
    ("version", "loops"), [("0.10.2", 1), ("0.11.1", 1), ("0.12.0", 0), ("0.12.1", 0), ("1.0.0", 0)]
)
def test_batches_are_divided_only_if_jaxlib_divides_them_into_tasks(version, loops, monkeypatch):
    monkeypatch.setattr(lapack, "jaxlib_version", lambda: version)
    lowered = sw.jit(lambda x: 2 * Cholesky()(x)).lower(positive_definite((250,), 4, np.float32)).as_text()
    assert lowered.count("stablehlo.while") == loops
    assert lowered.count("lapack_spotrf_ffi") == 1


def test_matrices_without_elements_are_not_divided(monkeypatch):
    monkeypatch.setattr(lapack, "jaxlib_version", lambda: "0.11.0")
    assert lapack.matrices_at_once([(0, 2), (0, 0), (0, 2)]) is None
    q, r = sw.jit(Qr(full=False))(np.zeros((3, 0, 2), np.float32))
    assert q.shape == (3, 0, 0)
    assert r.shape == (3, 0, 2)
