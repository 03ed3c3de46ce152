"""Files of arrays."""

import io

import shardwise.numpy as jnp


def test_save_and_load_round_trip():
    for x in (jnp.arange(3), jnp.ones((2, 2), jnp.bfloat16) * 1.5, jnp.array(2.5)):
        file = io.BytesIO()
        jnp.save(file, x)
        file.seek(0)
        loaded = jnp.load(file)
        assert loaded.dtype == x.dtype
        assert loaded.tolist() == x.tolist()
    file = io.BytesIO()
    jnp.savez(file, a=jnp.arange(2), b=jnp.ones(3))
    file.seek(0)
    with jnp.load(file) as arrays:
        assert arrays["a"].tolist() == [0, 1]
        assert arrays["b"].tolist() == [1, 1, 1]
