"""Views of Refs: indices, shapes, dtypes and orders of dims, read and written in place, compared with numpy's views."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp


def test_views_of_refs_are_read_and_written():
    ref = sw.new_ref(jnp.arange(24, dtype=jnp.int32).reshape(4, 6))
    expected = np.arange(24, dtype=np.int32).reshape(4, 6)
    ref.at[1:3].at[sw.ds(1, 1), sw.ds(0, 3, 2)][...] = jnp.array([[7, 8, 9]])
    expected[2:3, 0:6:2] = [[7, 8, 9]]
    ref.reshape(2, 12).at[1][sw.ds(jnp.int32(2), 3)] = -1
    expected.reshape(2, 12)[1, 2:5] = -1
    ref.T[5, jnp.int32(0)] = 100
    expected.T[5, 0] = 100
    ref.bitcast(jnp.uint16)[1, 0] = 3
    expected[0, 0] += 3 << 16
    np.testing.assert_array_equal(ref[...], expected)
    np.testing.assert_array_equal(ref[jnp.array([0, 2]), sw.ds(1, 2)], expected[[0, 2], 1:3])
    assert ref.at[sw.ds(0, 2), 3].shape == (2,) and ref.bitcast(jnp.uint16).shape == (8, 6)


def test_views_in_traced_functions():
    @sw.jit
    def f(x, i):
        ref = sw.new_ref(x)
        view = ref.at[i]
        sw.lax.fori_loop(0, 3, lambda k, _: view.__setitem__(k, view[k] + k), None)
        return ref[...]

    np.testing.assert_array_equal(f(np.zeros((2, 3), np.float32), 1), [[0, 0, 0], [0, 1, 2]])


def test_views_are_pytrees_whose_leaves_are_the_ref_and_traced_indices():
    view = sw.new_ref(jnp.arange(6)).at[sw.ds(jnp.int32(2), 3)].at[1:]
    leaves, structure = sw.tree.flatten(view)
    assert len(leaves) == 2
    np.testing.assert_array_equal(structure.unflatten(leaves)[...], [3, 4])


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (lambda ref: ref.reshape(5, -1), "has 24 elements"),
        (lambda ref: ref.transpose(0, 0), "not a permutation"),
        (lambda ref: ref.at[0].bitcast(jnp.uint16), "cannot be packed"),
    ],
)
def test_errors_of_views(view, text):
    with pytest.raises(ValueError, match=text):
        view(sw.new_ref(jnp.zeros((4, 6))))[...]
