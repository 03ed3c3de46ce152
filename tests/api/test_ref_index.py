"""Indices of Refs: windows with traced starts, arrays, and bounds, compared with JAX's."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp

X = np.arange(60, dtype=np.float32).reshape(3, 4, 5)


def reads_and_writes(jax, ds):
    """Return the elements at each index, and the array after a write of other elements there."""

    def run(x, i, beyond, negative):
        rows, columns = np.array([0, 2]), np.array([[1], [3]])
        indices = [
            *(i, (i, ds(1, 2)), (ds(1, 2), ds(i, 2)), (ds(0, 3), ds(beyond, 2)), (0, beyond), (negative,)),
            *((rows,), (slice(None), rows), (rows, ds(1, 2)), (ds(0, 2), rows), (slice(None), columns, rows)),
            *((rows, slice(None), rows), (i, slice(None), rows), (1, slice(1, 3)), (..., 0), (-1,)),
            (0, ..., ds(i, 2)),
        ]
        results = []
        for index in indices:
            ref = jax.new_ref(x)
            elements = ref[index]
            ref[index] = -elements
            results.append((elements, ref[...]))
        return results

    return jax.tree.leaves(jax.jit(run)(X, np.int32(2), np.int32(9), np.int32(-1)))


@pytest.mark.jax
def test_reads_and_writes_are_those_of_jax():
    jax = pytest.importorskip("jax")
    ds = pytest.importorskip("jax.experimental.pallas").ds
    for own, expected in zip(reads_and_writes(sw, sw.ds), reads_and_writes(jax, ds), strict=True):
        np.testing.assert_array_equal(own, expected)


def test_a_value_broadcasts_to_the_window():
    ref = sw.new_ref(X)
    ref[jnp.int32(1), sw.ds(1, 2)] = np.arange(5)
    expected = X.copy()
    expected[1, 1:3] = np.arange(5)
    np.testing.assert_array_equal(ref[...], expected)


@pytest.mark.parametrize(
    ("index", "text"),
    [
        ((0, 4), "4 is out of bounds for dim 1, of size 4"),
        ((sw.ds(0, 1), -5), "-5 is out of bounds for dim 1"),
        ((sw.ds(2, 2),), r"ds\(2, 2, stride=1\) is out of bounds for dim 0, of size 3"),
        ((0, 0, 0, sw.ds(0, 1)), "4 entries are too many"),
    ],
)
def test_static_indices_are_checked(index, text):
    ref = sw.new_ref(X)
    with pytest.raises(IndexError, match=text):
        ref[index]
    with pytest.raises(IndexError, match=text):
        ref[index] = 0
