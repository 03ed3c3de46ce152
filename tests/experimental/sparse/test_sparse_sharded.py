"""Sparse arrays whose leaves are sharded over 8 devices compute what one device does, also under shard_map."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.experimental import sparse
from shardwise.experimental.sparse import BCOO, BCSR
from tests.experimental.sparse.calls import Layout, calls
from tests.experimental.sparse.test_bcoo import OURS, dense

CASES = {
    "elements": (Layout((4, 5), nse=16), sw.P(("data", "model")), sw.P(("data", "model"))),
    "batch": (Layout((8, 3, 4), n_batch=1), sw.P(("data", "model")), sw.P(("data", "model"))),
    "batch_and_elements": (Layout((4, 3, 4), n_batch=1), sw.P("data", "model"), sw.P("data", "model")),
    "dense": (Layout((4, 5, 4), n_dense=1, nse=8), sw.P("model", "data"), sw.P("model")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_results_equal_those_of_one_device(mesh, name):
    layout, data_spec, indices_spec = CASES[name]
    data, indices = layout.arrays()
    table = calls(layout)
    x = layout.dense(data, indices)
    mat = BCOO((data, indices), shape=layout.shape)
    specs = [sw.NamedSharding(mesh, spec) for spec in (data_spec, indices_spec)]
    sharded = sw.device_put(mat, sw.tree.unflatten(sw.tree.structure(mat), specs))
    assert sharded.data.sharding.spec == data_spec and sharded.shape == layout.shape
    results = sw.jit(lambda mat: {name: dense(call.sparse(OURS, mat)) for name, call in table.items()})(sharded)
    expected = sw.jit(lambda x: {name: call.expected(OURS, x) for name, call in table.items()})(x)
    for function in table:
        np.testing.assert_allclose(results[function], expected[function], rtol=1e-4, atol=1e-5, err_msg=function)


def test_gradients_of_sharded_elements(mesh):
    layout = Layout((16, 12), nse=32)
    data, indices = layout.arrays()
    sharding = sw.NamedSharding(mesh, sw.P(("data", "model")))
    mat = sw.device_put(BCOO((data, indices), shape=layout.shape), sharding)
    right = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)

    def loss(mat, right):
        return jnp.sin(mat @ right).sum()

    gradient, right_gradient = sw.jit(sparse.grad(loss, (0, 1)))(mat, right)
    x = layout.dense(data, indices)
    expected, expected_right = sw.grad(loss, (0, 1))(x, right)
    np.testing.assert_allclose(right_gradient, expected_right, rtol=1e-4, atol=1e-5)
    padded = np.pad(np.asarray(expected), ((0, 1), (0, 1)))
    np.testing.assert_allclose(gradient.data, padded[tuple(indices.T)], rtol=1e-4, atol=1e-5)


def test_shard_map_divides_elements_and_batch_dims(mesh):
    layout = Layout((8, 5), nse=16)
    data, indices = layout.arrays()
    mat = BCOO((data, indices), shape=layout.shape)
    vector = np.arange(5.0, dtype=np.float32)

    def partial_product(mat, vector):
        assert mat.nse == 2 and mat.shape == (8, 5)
        return lax.psum(mat @ vector, ("data", "model"))

    product = sw.shard_map(partial_product, mesh=mesh, in_specs=(sw.P(("data", "model")), sw.P()), out_specs=sw.P())(
        mat, vector
    )
    np.testing.assert_allclose(product, layout.dense(data, indices) @ vector, rtol=1e-5, atol=1e-5)
    layout = Layout((8, 3, 5), n_batch=1)
    data, indices = layout.arrays()

    def own_product(mat, vector):
        assert mat.shape == (1, 3, 5)
        return mat @ vector

    product = sw.shard_map(
        own_product, mesh=mesh, in_specs=(sw.P(("data", "model")), sw.P()), out_specs=sw.P(("data", "model"))
    )(BCOO((data, indices), shape=layout.shape), vector)
    np.testing.assert_allclose(product, layout.dense(data, indices) @ vector, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("format_class", [BCOO, BCSR])
def test_scan_and_vmap_pass_batch_elements(format_class):
    x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    mat = format_class.fromdense(x, n_batch=1)
    total, rows = lax.scan(lambda total, m: (total + m.todense(), m @ jnp.ones(5)), jnp.zeros((4, 5)), mat)
    np.testing.assert_allclose(total, x.sum(0), rtol=1e-5)
    np.testing.assert_allclose(rows, x.sum(2), rtol=1e-4, atol=1e-5)
    mapped = sw.vmap(lambda m: format_class.fromdense(2 * m.todense(), nse=m.nse))(mat)
    assert (mapped.shape, mapped.n_batch) == ((3, 4, 5), 1)
    np.testing.assert_allclose(mapped.todense(), 2 * x)
