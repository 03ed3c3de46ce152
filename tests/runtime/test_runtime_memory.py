"""Memory: calls do not leak, unreferenced arrays are freed, and caches of programs are bounded."""

import gc
import os
import tracemalloc

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.ir import dispatch
from shardwise.execute.lru import LruCache
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

CALLS = 10_000
X = np.ones(1024, np.float32)  # 4 KiB: if each call leaked one, the test would leak 40 MiB


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def buffers():
    gc.collect()
    return len(sw.devices()[0].client.live_arrays())


def jitted(x):
    @sw.jit
    def f(x, pair):
        return {"sum": x + pair[0], "product": x * pair[1]}

    return lambda: f(x, (x, x))


def donating(x):
    f = sw.jit(lambda y: y + 1, donate_argnums=0)
    return lambda: f(f(x + x))


RUNS = {
    "jitted function": jitted,
    "op": lambda x: lambda: x * x,
    "op with a number": lambda x: lambda: x + 1.5,
    "numpy argument": lambda x: lambda: jnp.add(x, X),
    "donated": donating,
}


QUICK = ("donated",)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in RUNS])
def test_calls_do_not_leak_memory(name):
    run = RUNS[name](jnp.asarray(X))
    calls = CALLS if name in ("jitted function", "op") else CALLS // 5
    for _ in range(200):
        run()
    count, before = buffers(), resident()
    for _ in range(calls):
        run()
    assert buffers() == count
    assert resident() - before < 10 * 2**20 * calls / CALLS + 4 * 2**20
    tracemalloc.start()
    try:
        run()
        grown = []
        for _ in range(3):  # transfers in progress hold memory for a while; a leak grows every time
            gc.collect()
            first = tracemalloc.get_traced_memory()[0]
            for _ in range(300):
                run()
            gc.collect()
            grown.append(tracemalloc.get_traced_memory()[0] - first)
        assert min(grown) < 300 * 40
    finally:
        tracemalloc.stop()


def test_sharded_calls_do_not_leak_memory(mesh):
    x = sw.device_put(np.ones((64, 64), np.float32), NamedSharding(mesh, P("data", "model")))
    step = sw.jit(lambda x: x @ x / 64)
    for _ in range(20):
        x = step(x)
    count, before = buffers(), resident()
    for _ in range(500):
        x = step(x)
    x.block_until_ready()
    assert buffers() == count
    assert resident() - before < 4 * 2**20


def test_unreferenced_arrays_are_freed(mesh):
    count = buffers()
    kept = [jnp.full(10, float(index)) for index in range(5)]
    kept.append(sw.device_put(np.ones(8, np.float32), NamedSharding(mesh, P("data"))))
    kept += kept[-1].addressable_shards
    assert buffers() > count
    made = jnp.ones(10) + kept[0]
    made.block_until_ready()
    del kept, made
    assert buffers() <= count + 2  # scalars are cached


def test_the_programs_of_an_unreferenced_function_are_freed():
    client = sw.devices()[0].client

    def loaded():
        gc.collect()
        return len(client.live_executables())

    sw.jit(lambda x: x + 1.25)(jnp.ones(3))
    before = loaded()
    for _ in range(5):
        sw.jit(lambda x: x + 1.25)(jnp.ones(3))
    assert loaded() <= before


def test_the_cache_of_single_op_programs_is_bounded():
    table = dispatch.executor._launches
    assert isinstance(table, LruCache) and table._half == 2048
