"""frompyfunc and vectorize against numpy."""

import numpy as np

import shardwise.numpy as jnp


def test_frompyfunc_methods():
    weighted = jnp.frompyfunc(lambda x, y: x + 2 * y, 2, 1)
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(weighted(x, jnp.ones(3)), np.asarray(x) + 2)
    assert weighted.reduce(jnp.array([1, 2, 3])).tolist() == 11
    assert weighted.reduce(x, axis=1, keepdims=True).tolist() == [[6.0], [21.0]]
    assert weighted.reduce(x, axis=None, initial=100).tolist() == 130.0
    assert weighted.reduce(x, initial=1.0, where=x > 2).tolist() == [7.0, 9.0, 11.0]
    assert weighted.accumulate(x, axis=1).tolist() == [[0.0, 2.0, 6.0], [3.0, 11.0, 21.0]]
    assert weighted.outer(jnp.arange(2), jnp.arange(3)).tolist() == [[0, 2, 4], [1, 3, 5]]
    assert weighted.at(jnp.zeros(3), jnp.array([0, 0, 2]), jnp.array([1.0, 2.0, 3.0]), inplace=False).tolist() == [
        6,
        0,
        6,
    ]
    plus = jnp.frompyfunc(lambda x, y: x + y, 2, 1, identity=0)
    assert (
        plus.reduceat(jnp.arange(6), np.array([0, 3, 1])).tolist() == np.add.reduceat(np.arange(6), [0, 3, 1]).tolist()
    )
    assert plus.reduce(jnp.zeros((0, 2))).tolist() == [0.0, 0.0]
    increment = jnp.frompyfunc(lambda x: x + 1, 1, 1)
    assert increment.at(jnp.zeros(3), jnp.array([0, 0, 1]), inplace=False).tolist() == [2, 1, 0]
    assert (plus.nin, plus.nout, plus.nargs, plus.identity) == (2, 1, 2, 0)
    overridden = jnp.ufunc(jnp.add, 2, 1, name="plus", reduce=lambda x, **options: "override")
    assert overridden.reduce(x) == "override"
    assert repr(overridden) == "<shardwise.numpy.ufunc 'plus'>"


def test_vectorize_broadcasts_core_functions():
    dot = jnp.vectorize(jnp.dot, signature="(n),(n)->()")
    assert dot(jnp.ones((4, 1, 3)), jnp.arange(6.0).reshape(2, 3)).shape == (4, 2)
    assert jnp.vectorize(lambda x, y, z: x + y * z, excluded={2})(
        jnp.arange(2), jnp.arange(2)[:, None], 3
    ).tolist() == [
        [0, 1],
        [3, 4],
    ]
    assert jnp.vectorize(lambda x, k: x * k, excluded={"k"})(jnp.arange(3), k=2).tolist() == [0, 2, 4]
    assert jnp.vectorize(lambda x, k: x * k)(jnp.arange(3), k=jnp.arange(3)).tolist() == [0, 1, 4]
    assert jnp.vectorize(lambda x, k: x if k is None else k)(jnp.arange(3), None).tolist() == [0, 1, 2]
    outer = jnp.vectorize(lambda x, y: (x[:, None] * y, x.sum()), signature="(n),(m)->(n,m),()")
    first, second = outer(jnp.ones((5, 2)), jnp.ones(3))
    assert first.shape == (5, 2, 3)
    assert second.tolist() == [2.0] * 5
    assert jnp.vectorize(lambda x: x + 1)(jnp.zeros((2, 0))).shape == (2, 0)
