"""Wrong arguments of the functions of sparse arrays raise typed errors that say what to do."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.experimental import sparse
from shardwise.experimental.sparse import BCOO, BCSR, COO, CSR

X = np.eye(3, dtype=np.float32)
DIMS = (((1,), (0,)), ((), ()))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: BCOO((m.data, m.indices)), TypeError, "need a shape"),
        (lambda m: BCOO((m.data, m.indices), shape=(2,)), ValueError, r"an array of shape \(2,\) needs elements"),
        (lambda m: BCOO((m.data[:2], m.indices), shape=(3, 3)), ValueError, r"the shapes \(2,\) and \(3, 2\)"),
        (lambda m: BCOO((m.data, m.data[:, None]), shape=(2,)), TypeError, "coordinates must be integers"),
        (lambda m: BCOO.fromdense(X, n_batch=3), ValueError, "n_batch=3 and n_dense=0 must not be negative"),
        (lambda m: BCOO.from_scipy_sparse(None, n_batch=1), NotImplementedError, "n_dense and n_batch must be 0"),
        (lambda m: m @ jnp.ones(4), TypeError, "the last dim of the left, 3"),
        (lambda m: m + 1, NotImplementedError, "a dense operand with fewer elements is dense; use `sparse.todense"),
        (lambda m: 1 / m, NotImplementedError, "division by a sparse array divides by zeros"),
        (lambda m: m**0, NotImplementedError, r"the result of `x \*\* 0` is dense"),
        (lambda m: m > 0, NotImplementedError, "'gt' of a sparse array is not supported"),
        (lambda m: m == m, NotImplementedError, "'eq' of a sparse array"),
        (sparse.sparsify(jnp.exp), NotImplementedError, "'exp' of a sparse array"),
        (lambda m: m + BCOO.fromdense(X, n_batch=1), NotImplementedError, "needs equal shapes, batch dims and dense"),
        (lambda m: sparse.sparsify(jnp.concatenate)([m, X]), NotImplementedError, "cannot be concatenated"),
        (hash, TypeError, "unhashable"),
        (lambda m: BCOO.fromdense(X, n_batch=1).T, NotImplementedError, "exchanges dims of different kinds"),
        (lambda m: BCOO.fromdense(X, n_batch=1).reshape(9), ValueError, "mixes batch dims"),
        (lambda m: sparse.bcoo_reshape(m, new_sizes=(4,)), ValueError, r"has 9 elements, which shape \(4,\) cannot"),
        (lambda m: m.update_layout(n_batch=1), sparse.SparseEfficiencyError, "increasing n_batch from 0 to 1 stores"),
        (lambda m: m.update_layout(n_dense=3), ValueError, "n_dense=3 must not be negative"),
        (lambda m: m.update_layout(on_inefficient="x"), ValueError, "must be 'error', 'warn' or None, not 'x'"),
        (lambda m: sparse.bcoo_concatenate([], dimension=0), ValueError, "needs one or more BCOO arrays"),
        (lambda m: sparse.bcoo_squeeze(m, dimensions=(0,)), ValueError, r"the dims \(0,\) of .* must have size 1"),
        (lambda m: sparse.bcoo_reduce_sum(m, axes=(2,)), ValueError, r"a dim of \(2,\) does not exist"),
        (lambda m: sparse.bcoo_reduce_sum(m, axes=(1, -1)), ValueError, "a dim repeats"),
        (lambda m: sparse.bcoo_transpose(m, permutation=(0, 0)), ValueError, "is not a permutation"),
        (
            lambda m: sparse.bcoo_slice(m, start_indices=(0, 0), limit_indices=(4, 1)),
            ValueError,
            "0:4:1 is not inside of a dim of size 3",
        ),
        (lambda m: sparse.bcoo_dynamic_slice(m, (0,), (1,)), ValueError, "needs 2 start indices and sizes"),
        (lambda m: sparse.bcoo_extract(m, jnp.ones(3)), ValueError, r"the shapes \(3, 3\) and \(3,\) must be equal"),
        (lambda m: sparse.bcoo_multiply_dense(m, jnp.ones((2, 3, 3))), NotImplementedError, "broadcast it first"),
        (lambda m: sparse.bcoo_dot_general(X, X, dimension_numbers=DIMS), TypeError, "must be a BCOO"),
        (lambda m: sparse.bcoo_dot_general(m, jnp.ones(2), dimension_numbers=DIMS), TypeError, "equal sizes"),
        (sw.vmap(lambda row: row.sum()), ValueError, "map batch dims only"),
        (lambda m: sw.jit(BCOO.fromdense)(X), sw.errors.ConcretizationTypeError, "pass `nse`"),
        (sw.jit(sparse.bcoo_sum_duplicates), sw.errors.ConcretizationTypeError, "pass `nse`"),
        (sparse.jacfwd(lambda m: 2 * m), NotImplementedError, "derivatives of sparse values"),
        (sparse.grad(lambda m: m.sum(), argnums=1), TypeError, "there are 1 positional arguments"),
        (lambda m: sparse.eye(3, sparse_format="x"), ValueError, "must be one of bcoo, bcsr, coo, csr, csc, not 'x'"),
        (lambda m: BCSR.fromdense(jnp.ones(3)), ValueError, "needs two sparse dims"),
        (lambda m: BCSR.fromdense(X) + 1, NotImplementedError, r"addition is not supported; `to_bcoo\(\)`"),
        (lambda m: CSR.fromdense(X)[0], NotImplementedError, "CSR: indexing is not supported"),
        (lambda m: COO.fromdense(X) @ jnp.ones(4), TypeError, r"needs an operand of shape \(3,\), not \(4,\)"),
        (lambda m: COO.fromdense(X) @ COO.fromdense(X), NotImplementedError, "a product with a sparse array"),
        (lambda m: COO.fromdense(X).transpose((0, 1)), NotImplementedError, "axes must be None"),
        (lambda m: COO((m.data, m.data, m.data[:1]), shape=(3, 3)), ValueError, "vectors of the same length"),
        (lambda m: CSR((m.data, m.data, m.data), shape=(3, 3)), ValueError, r"pointers of shape \(4,\)"),
    ],
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(BCOO.fromdense(X))


def test_inefficient_layouts_warn():
    with pytest.warns(sparse.SparseEfficiencyWarning, match="increasing n_dense from 0 to 1 stores many zeros"):
        mat = BCOO.fromdense(X).update_layout(n_dense=1, on_inefficient="warn")
    np.testing.assert_array_equal(mat.todense(), X)


def test_gather_rejects_other_fill_values():
    rows = lax.GatherDimensionNumbers((1,), (0,), (0,))
    with pytest.raises(NotImplementedError, match="fill_value must be None or 0, not 1"):
        sparse.bcoo_gather(BCOO.fromdense(X), jnp.array([[0]]), rows, (1, 3), fill_value=1)
