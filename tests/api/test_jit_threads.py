"""Concurrent threads: traces do not mix, and results are correct."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def test_calls_and_traces_from_many_threads(mesh):
    shared = sw.jit(lambda x, n: jnp.exp(x) * n)
    sharded = sw.device_put(np.arange(10.0, dtype=np.float32), NamedSharding(mesh, P("data")))

    def work(seed):
        size = 2 + seed % 5
        x = np.full(size, seed / 10, np.float32)
        own = sw.jit(sw.grad(lambda y: (jnp.exp(y) * y * float(seed)).sum()))
        for _ in range(3):
            np.testing.assert_allclose(shared(x, float(seed)), np.exp(x) * seed, rtol=1e-5)
            np.testing.assert_allclose(own(x), np.exp(x) * (x + 1) * seed, rtol=1e-5)
            np.testing.assert_allclose(sw.vmap(lambda y: y * seed)(x), x * seed, rtol=1e-6)
            np.testing.assert_allclose(sharded * float(seed), np.arange(10.0) * seed, rtol=1e-6)
        return seed

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(24))) == list(range(24))


def test_enable_x64_is_part_of_the_cache_key():
    f = sw.jit(lambda x: x + jnp.zeros(2))
    assert f(1.0).dtype == np.float32
    sw.config.update("jax_enable_x64", True)
    try:
        assert f(1.0).dtype == np.float64
        assert (jnp.zeros(2) + 1.0).dtype == np.float64
    finally:
        sw.config.update("jax_enable_x64", False)
    assert f(1.0).dtype == np.float32
    assert (jnp.zeros(2) + 1.0).dtype == np.float32


def test_programs_with_collectives_launched_by_many_threads():
    """Each thread launches them in a different order, which would deadlock in XLA alone."""
    mesh = sw.make_mesh((8,), ("x",))
    cut = NamedSharding(mesh, P("x"))
    x = sw.device_put(np.arange(8.0, dtype=np.float32), cut)
    w = sw.device_put(np.ones((16, 16), np.float32), cut)
    ring = [(n, (n + 1) % 8) for n in range(8)]

    @sw.jit
    @sw.shard_map(mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    def turned(x):
        return sw.lax.fori_loop(0, 16, lambda _, y: sw.lax.ppermute(y, "x", ring), x)

    @sw.jit
    def summed(w):
        return (w @ w.T).sum(0)

    heard = []

    @sw.jit
    def told(w):  # is awaited, and calls back while it runs
        sw.debug.callback(lambda total: heard.append(total + float(jnp.ones(3).sum())), w.sum())
        return w.sum()

    def work(number):
        found = [(turned(x), summed(w), told(w))[:: 1 if number % 2 else -1] for _ in range(12)]
        return [sorted(np.asarray(y).sum().item() for y in three) for three in found]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(work, range(4), timeout=100):
            assert found == [[28.0, 256.0, 4096.0]] * 12
    assert heard == [256.0 + 3.0] * 48
