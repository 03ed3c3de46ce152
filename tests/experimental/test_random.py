"""The stateful generator draws the numbers of JAX's, also under jit and vmap."""

import numpy as np
import pytest

import shardwise as sw
from shardwise.experimental import random


def draws(module, jit, vmap):
    rng = module.stateful_rng(42)
    draw = jit(lambda: rng.uniform(size=2))
    return [
        *(rng.uniform(), rng.normal(size=2), rng.integers(5, size=(3,)), rng.random(3), rng.integers(2, 9)),
        rng.uniform(np.zeros(2), np.array([2.0, 3.0]), dtype="float16"),
        rng.normal(1.0, np.array([0.1, 10.0])),
        *(child.integers(0, 10, 2) for child in rng.spawn(2)),
        *(draw(), draw(), jit(lambda rng: rng.uniform())(rng), rng.uniform()),
        vmap(lambda rng, x: x + rng.uniform())(rng.split(3), np.zeros(3, np.float32)),
    ]


@pytest.mark.slow
@pytest.mark.jax
def test_like_jax():
    jax = pytest.importorskip("jax")
    from jax.experimental import random as jax_random  # noqa: PLC0415 - without jax, the other tests run

    ours, theirs = draws(random, sw.jit, sw.vmap), draws(jax_random, jax.jit, jax.vmap)
    for x, y in zip(ours, theirs, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, rtol=1e-6)


def test_seeds():
    assert random.stateful_rng(1).random() == random.stateful_rng(1).random()
    assert random.stateful_rng().random() != random.stateful_rng().random()
    assert random.stateful_rng(0, impl="rbg").key().dtype == sw.random.key_dtype("rbg")


def test_errors():
    with pytest.raises(TypeError, match="inside of a function that is being traced, pass a seed"):
        sw.jit(lambda: random.stateful_rng().random())()
    with pytest.raises(ValueError, match="`split` returned must be vmapped over"):
        random.stateful_rng(0).split(2).random()
    with pytest.raises(ValueError, match="must be a typed PRNG key"):
        random.StatefulPRNG(np.zeros(2), sw.new_ref(0)).key()
