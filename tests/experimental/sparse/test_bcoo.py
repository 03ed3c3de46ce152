"""Compare the functions of BCOO arrays with those of dense arrays and with JAX: values, layouts, derivatives, vmap."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.experimental import sparse
from shardwise.experimental.sparse import BCOO
from tests.experimental.sparse.calls import LAYOUTS, Api, Layout, calls

OURS = Api(jnp, lax, sparse)


def dense(x):
    return x.todense() if hasattr(x, "todense") else x


def losses(api, layout, names):
    """Return the function from elements and coordinates to the sums of the sines of all results."""
    table = calls(layout)

    def compute(data, indices):
        mat = api.sparse.BCOO((data, indices), shape=layout.shape)
        return [api.jnp.sin(dense(table[name].sparse(api, mat))).sum() for name in names]

    return compute


@pytest.mark.table(default=1)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_values_like_dense_arrays(layout):
    data, indices = layout.arrays()
    x = layout.dense(data, indices)
    table = calls(layout)

    @sw.jit
    def compute(mat):
        return {name: dense(call.sparse(OURS, mat)) for name, call in table.items()}

    results = compute(BCOO((data, indices), shape=layout.shape))
    expected = sw.jit(lambda x: {name: call.expected(OURS, x) for name, call in table.items()})(x)
    for name in table:
        np.testing.assert_allclose(results[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_gradients_like_dense_arrays(layout):
    data, indices = layout.arrays()
    table = calls(layout)
    names = [name for name in table if name != "absolute"]  # its derivative is not continuous

    def dense_loss(data):
        x = BCOO((data, indices), shape=layout.shape).todense()
        return sum(jnp.sin(table[name].expected(OURS, x)).sum() for name in names)

    gradient = sw.jit(sw.grad(lambda data: sum(losses(OURS, layout, names)(data, indices))))(data)
    np.testing.assert_allclose(gradient, sw.jit(sw.grad(dense_loss))(data), rtol=1e-3, atol=2e-4)


@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_values_and_layouts_like_jax(layout):
    jax = pytest.importorskip("jax")
    peer = Api(jax.numpy, jax.lax, pytest.importorskip("jax.experimental.sparse"))
    data, indices = layout.arrays()
    table = {name: call for name, call in calls(layout).items() if call.jax_has_it}

    def layouts(api, transform):
        """Return the dense results, and the layouts of the sparse ones."""
        shapes = {}

        def compute(data, indices):
            mat = api.sparse.BCOO((data, indices), shape=layout.shape)
            results = {name: call.sparse(api, mat) for name, call in table.items()}
            for name, result in results.items():
                if hasattr(result, "nse"):
                    shapes[name] = (result.nse, result.n_batch, result.n_dense)
            return {name: dense(result) for name, result in results.items()}

        return transform(compute)(data, indices), shapes

    ours, our_layouts = layouts(OURS, sw.jit)
    expected, expected_layouts = layouts(peer, jax.jit)
    for name in table:
        np.testing.assert_allclose(ours[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
    # Products store no more elements than there are, and sums of arrays with the same coordinates no more than one.
    for name in ("multiply_sparse", "add_same_coordinates"):
        assert our_layouts.pop(name)[0] <= expected_layouts.pop(name)[0]
    assert our_layouts == expected_layouts


@pytest.mark.slow
@pytest.mark.jax
@pytest.mark.table(default=1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "uint8", "complex64"])
def test_dtypes_like_jax(dtype):
    jax = pytest.importorskip("jax")
    peer = pytest.importorskip("jax.experimental.sparse")
    x = np.array([[0, 1, 0, 3], [2, 0, 0, 0]])
    ours, theirs = BCOO.fromdense(jnp.asarray(x, dtype)), peer.BCOO.fromdense(jax.numpy.asarray(x, dtype))
    vector = np.array([1, 2, 3, 4], np.int8)
    for call in (
        lambda m: m,
        lambda m: m.todense(),
        lambda m: m @ vector,
        lambda m: m * vector,
        lambda m: m.sum(0),
        lambda m: m.T @ m,
        lambda m: m.astype("complex64") + m.astype("complex64"),
    ):
        result, expected = call(ours), call(theirs)
        assert (result.shape, str(result.dtype)) == (expected.shape, str(expected.dtype))
        np.testing.assert_array_equal(
            np.asarray(dense(result)).astype(complex), np.asarray(dense(expected)).astype(complex)
        )


def test_booleans_stay_booleans():
    x = np.array([[False, True], [True, False]])
    mat = BCOO.fromdense(x)
    assert mat.todense().dtype == mat.dtype == np.bool_
    np.testing.assert_array_equal(mat.todense(), x)
    np.testing.assert_array_equal((mat @ np.array([2, 3])), [3, 2])
    np.testing.assert_array_equal(mat.sum(0).todense(), x.sum(0))


@pytest.mark.slow
@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout.n_batch == 1][:1], ids=str)
def test_vmap_maps_batch_dims(layout):
    """vmap over a batch dim equals a loop over its entries, for sparse and dense results."""
    data, indices = layout.arrays()
    mat = BCOO((data, indices), shape=layout.shape)
    inner = Layout(layout.shape[1:], layout.n_batch - 1, layout.n_dense)
    table = calls(inner)

    def compute(mat):
        assert mat.shape == inner.shape
        return {name: call.sparse(OURS, mat) for name, call in table.items()}

    results = sw.jit(sw.vmap(compute))(mat)
    single = sw.jit(compute)
    for entry in range(layout.shape[0]):
        expected = single(BCOO((data[entry], indices[entry]), shape=inner.shape))
        for name in table:
            np.testing.assert_allclose(
                dense(results[name])[entry], dense(expected[name]), rtol=1e-4, atol=1e-5, err_msg=name
            )
            assert results[name].shape == (layout.shape[0], *expected[name].shape)


@pytest.mark.table(default=2)
@pytest.mark.parametrize(("n_batch", "n_dense"), [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (0, 2), (3, 0), (1, 2)])
def test_fromdense(n_batch, n_dense):
    random = np.random.default_rng(0)
    x = (random.normal(size=(2, 3, 4)) * (random.random((2, 3, 4)) < 0.3)).astype(np.float32)
    mat = BCOO.fromdense(x, n_batch=n_batch, n_dense=n_dense)
    np.testing.assert_array_equal(mat.todense(), x)
    assert (mat.n_batch, mat.n_sparse, mat.n_dense) == (n_batch, 3 - n_batch - n_dense, n_dense)
    assert mat.indices_sorted and mat.unique_indices
    padded = sw.jit(lambda x: sparse.bcoo_fromdense(x, nse=mat.nse + 2, n_batch=n_batch, n_dense=n_dense))(x)
    assert padded.nse == mat.nse + 2
    np.testing.assert_array_equal(padded.todense(), x)
    gradient = sw.grad(
        lambda x: (sparse.bcoo_fromdense(x, nse=mat.nse, n_batch=n_batch, n_dense=n_dense).todense() ** 2).sum()
    )(x)
    np.testing.assert_allclose(gradient, 2 * x, rtol=1e-6)


def test_extract():
    mat = BCOO((jnp.ones(5), jnp.array([[1, 1], [0, 0], [2, 1], [2, 1], [3, 4]])), shape=(3, 4))
    x = np.arange(12.0, dtype=np.float32).reshape(3, 4) + 1
    np.testing.assert_array_equal(sparse.bcoo_extract(mat, x).data, [6, 1, 10, 0, 0])
    np.testing.assert_array_equal(sparse.bcoo_extract(mat, x, assume_unique=True).data, [6, 1, 10, 10, 0])
    gradient = sw.grad(lambda x: sparse.bcoo_extract(mat, x).data.sum())(x)
    np.testing.assert_array_equal(gradient, (np.asarray(mat.todense()) != 0).astype(np.float32))
    assert sparse.bcoo_extract(mat, x).indices is mat.indices


def test_sum_duplicates_without_nse():
    data, indices = jnp.array([1.0, 2.0, 3.0, -3.0, 5.0, 0.0]), [[1, 1], [0, 0], [2, 1], [2, 1], [9, 9], [2, 3]]
    mat = BCOO((data, jnp.array(indices)), shape=(3, 4))
    merged = sparse.bcoo_sum_duplicates(mat)
    np.testing.assert_array_equal(merged.indices, [[0, 0], [1, 1], [2, 1], [2, 3]])
    np.testing.assert_array_equal(merged.data, [2, 1, 0, 0])
    assert mat.sum_duplicates().nse == 3 and mat.sum_duplicates(remove_zeros=False).nse == 4
    np.testing.assert_array_equal(mat.sum_duplicates(nse=1).todense(), [[2, 0, 0, 0], [0] * 4, [0] * 4])
    batched = BCOO((jnp.ones((2, 3)), jnp.array([[[0], [0], [1]], [[2], [2], [2]]])), shape=(2, 4))
    assert batched.sum_duplicates().nse == 2


def test_batch_dims_of_size_one_broadcast():
    mat = BCOO((jnp.ones((1, 2)), jnp.array([[[0], [1]], [[1], [2]], [[3], [3]]])), shape=(3, 4))
    expected = [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 2]]
    np.testing.assert_array_equal(mat.todense(), expected)
    np.testing.assert_array_equal((mat * np.arange(4.0, dtype=np.float32)).todense(), np.array(expected) * np.arange(4))
    same = BCOO((jnp.ones((1, 2)), jnp.array([[[0], [1]]])), shape=(3, 4))
    np.testing.assert_array_equal(sw.jit(lambda m: m @ jnp.ones(4))(same), [2, 2, 2])
    assert sw.tree.map(lambda x: x, same).shape == (3, 4)


@pytest.mark.slow
def test_convolution_like_dense():
    random = np.random.default_rng(0)
    x = (random.normal(size=(2, 3, 6, 5)) * (random.random((2, 3, 6, 5)) < 0.4)).astype(np.float32)
    kernel = (random.normal(size=(4, 3, 2, 3)) * (random.random((4, 3, 2, 3)) < 0.6)).astype(np.float32)
    for keywords in (
        {"window_strides": (1, 1), "padding": "SAME"},
        {"window_strides": (2, 1), "padding": "VALID", "rhs_dilation": (2, 1)},
        {"window_strides": (1, 2), "padding": [(1, 0), (2, 1)], "lhs_dilation": (2, 1)},
    ):
        expected = lax.conv_general_dilated(x, kernel, **keywords)
        for left, right in ((BCOO(x), BCOO(kernel)), (BCOO(x), kernel), (x, BCOO.fromdense(kernel, n_batch=1))):
            result = sparse.bcoo_conv_general_dilated(left, right, **keywords)
            np.testing.assert_allclose(result.todense(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_gather_and_sampled_products():
    x = np.arange(12.0, dtype=np.float32).reshape(3, 4) % 5
    mat = BCOO(x)
    rows = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
    starts = np.array([[2], [0], [7]])
    for mode in ("clip", "fill"):
        result = sparse.bcoo_gather(mat, starts, rows, (1, 4), mode=mode, fill_value=0)
        np.testing.assert_array_equal(result.todense(), lax.gather(x, starts, rows, (1, 4), mode=mode, fill_value=0))
    np.testing.assert_array_equal(mat[:, np.array([3, 0])].todense(), x[:, [3, 0]])
    np.testing.assert_array_equal(mat[np.array([0, 2]), np.array([1, 3])].todense(), x[[0, 2], [1, 3]])
    dims = (((1,), (1,)), ((), ()))
    product = x @ x.T
    indices = np.array([[0, 1], [2, 2], [3, 3]])
    sampled = sparse.bcoo_dot_general_sampled(x, x, indices, dimension_numbers=dims)
    np.testing.assert_allclose(sampled, [product[0, 1], product[2, 2], 0])
    batched = np.stack([x, 2 * x])
    sampled = sparse.bcoo_dot_general_sampled(
        batched, batched, np.stack([indices, indices[::-1]]), dimension_numbers=(((2,), (2,)), ((0,), (0,)))
    )
    np.testing.assert_allclose(sampled, [[product[0, 1], product[2, 2], 0], [0, 4 * product[2, 2], 4 * product[0, 1]]])


def test_iteration_length_and_repr():
    mat = BCOO.fromdense(np.eye(3, dtype=np.float32), n_batch=1)
    assert repr(mat) == "BCOO(float32[3, 3], nse=1, n_batch=1)"
    assert repr(BCOO.fromdense(np.eye(3), n_dense=1)) == "BCOO(float32[3, 3], nse=3, n_dense=1)"
    assert len(mat) == 3 and [row.shape for row in mat] == [(3,)] * 3
    np.testing.assert_array_equal([row.todense() for row in mat], np.eye(3))
    assert mat.block_until_ready() is mat
    assert repr(sw.tree.map(lambda _: 0, mat)) == "BCOO(0, 0)"


@pytest.mark.slow
@pytest.mark.parametrize("n_batch", [0, 1, 2])
@pytest.mark.parametrize("n_dense", [0, 1])
def test_random(n_batch, n_dense):
    shape = (2, 3, 4, 5)
    mat = sparse.random_bcoo(sw.random.key(1), shape, nse=2, n_batch=n_batch, n_dense=n_dense, sorted_indices=True)
    assert (mat.shape, mat.nse, mat.n_batch, mat.n_dense) == (shape, 2, n_batch, n_dense)
    assert mat.sum_duplicates().nse == 2
    assert sparse.random_bcoo(sw.random.key(1), (5, 4), nse=0.2).nse == 4
    with pytest.raises(ValueError, match="nse=21 must be between 0 and 20"):
        sparse.random_bcoo(sw.random.key(1), (5, 4), nse=21)
