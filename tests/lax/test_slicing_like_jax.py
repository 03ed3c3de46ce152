"""Slicing against JAX: values, dtypes and weak types."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax


def same(ours, theirs):
    for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (got.shape, got.dtype, got.weak_type) == (want.shape, want.dtype, want.weak_type)
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-6)


def test_slicing():
    x = np.arange(20, dtype=np.float32).reshape(5, 4)

    def calls(numpy, lax, x):
        weak = numpy.full((5, 4), 2)
        return [
            lax.slice(x, (1, 0), (4, 4), (2, 1)),
            lax.slice_in_dim(x, -3, None, 2, axis=-1),
            lax.pad(x, 1.5, [(2, -1, 1), (-3, 2, 0)]),
            lax.pad(x, 1.5, [(-7, 9, 1), (0, -4, 0)]),
            lax.concatenate([x, x], 1),
            lax.rev(x, (1,)),
            numpy.concatenate([x, weak], axis=1),
            numpy.concatenate([weak, weak]),
            numpy.stack([x, x.astype(numpy.int8)], axis=-2),
            numpy.stack([2, 3.5]),
            numpy.flip(weak),
            *numpy.split(weak, [1, 4], axis=0),
            numpy.pad(x, ((0, 2), (1, 1)), constant_values=3),
            numpy.pad(weak, 1),
            x[7],
            x[-9, -2:],
            x[1, None, ::-2],
            weak[0, 0],
            *x,
        ]

    same(sw.jit(lambda x: calls(jnp, lax, x))(x), jax.jit(lambda x: calls(jax.numpy, jax.lax, x))(x))


def test_indexing_an_empty_dim_is_an_error():
    for numpy in (jnp, jax.numpy):
        with pytest.raises(IndexError):
            numpy.zeros((0, 3))[0]
