"""Axes of reductions that are arrays, as in JAX: integers in scalar or 1-d arrays."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp

X = np.arange(6.0, dtype=np.float32).reshape(2, 3)
AXES = {
    "array scalar": (jnp.array(0), 0),
    "numpy scalar": (np.array(1), 1),
    "tuple with an array": ((jnp.array(0), 1), (0, 1)),
    "1-d array": (jnp.array([0, 1]), (0, 1)),
    "1-d numpy array": (np.array([1]), (1,)),
}


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "var", "std", "any", "all"])
@pytest.mark.parametrize("kind", AXES)
def test_reductions_accept_arrays_as_axes(name, kind):
    axis, expected = AXES[kind]
    np.testing.assert_allclose(getattr(jnp, name)(X, axis=axis), getattr(np, name)(X, axis=expected), rtol=1e-6)


def test_methods_and_argmax_accept_array_scalars():
    np.testing.assert_array_equal(jnp.asarray(X).sum(jnp.array(0)), X.sum(0))
    np.testing.assert_array_equal(jnp.argmax(X, axis=jnp.array(1)), X.argmax(1))
    np.testing.assert_array_equal(jnp.argmin(X, axis=np.array(0)), X.argmin(0))


@pytest.mark.parametrize("axis", [1.0, jnp.array(0.0), jnp.array(True), np.array([0.5])], ids=repr)
def test_other_axes_are_rejected(axis):
    jnp.sum(X, axis=1)  # 1.0 equals 1, but a cached program must not accept it
    with pytest.raises(TypeError):
        jnp.sum(X, axis=axis)


def test_traced_axes_are_rejected():
    with pytest.raises(sw.errors.ConcretizationTypeError):
        sw.jit(lambda axis: jnp.sum(X, axis=axis))(0)
