"""Transformed functions are named after the function, if that has a name."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp

TRANSFORMATIONS = {
    "vmap": sw.vmap,
    "grad": lambda f: sw.vmap(sw.grad(f)),
    "value_and_grad": lambda f: sw.vmap(sw.value_and_grad(f)),
    "jacfwd": lambda f: sw.vmap(sw.jacfwd(f)),
    "checkpoint": lambda f: sw.vmap(sw.checkpoint(f)),
    "jit": lambda f: sw.vmap(sw.jit(f)),
}


class Named:
    """A callable object whose names are whatever its creator wants."""

    def __init__(self, name):
        self.__name__ = self.__qualname__ = self.__annotations__ = name

    def __call__(self, x):
        return jnp.sin(x)


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
def test_callables_without_a_text_as_name(transformation):
    transform, x = TRANSFORMATIONS[transformation], np.arange(3, dtype=np.float32)
    expected = sw.tree.leaves(transform(jnp.sin)(x))
    for name in (None, object(), 42):
        for result, value in zip(sw.tree.leaves(transform(Named(name))(x)), expected, strict=True):
            np.testing.assert_array_equal(result, value)


def test_names_are_kept():
    assert sw.vmap(Named("layer")).__name__ == "layer"
    assert sw.grad(Named("layer")).__wrapped__.__name__ == "layer"
