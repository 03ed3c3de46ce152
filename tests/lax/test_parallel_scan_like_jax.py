"""associative_scan against JAX: values, dtypes and weak types."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax
from tests.lax.test_slicing_like_jax import same

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax


@pytest.mark.table(default=1)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("axis", [0, 1])
def test_associative_scan(axis, reverse):
    rng = np.random.default_rng(0)
    for count in (0, 1, 2, 3, 6, 9):
        shape = (count, 3) if axis == 0 else (3, count)
        elems = {"a": rng.uniform(0.5, 1.5, shape).astype(np.float32), "b": rng.normal(size=shape).astype(np.float32)}

        def combine(f, g):
            return {"a": f["a"] * g["a"], "b": g["a"] * f["b"] + g["b"]}

        ours = sw.jit(lambda e: lax.associative_scan(combine, e, reverse=reverse, axis=axis))(elems)
        theirs = jax.jit(lambda e: jax.lax.associative_scan(combine, e, reverse=reverse, axis=axis))(elems)
        same(ours, theirs)
