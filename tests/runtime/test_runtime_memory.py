"""Memory: calls do not leak, unreferenced arrays are freed, caches are bounded, and out-of-memory errors."""

import gc
import os
import tracemalloc

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.base._jaxlib import RuntimeFailure
from shardwise.compiler.ir import dispatch
from shardwise.errors import JaxRuntimeError, OutOfMemoryError
from shardwise.execute.lru import LruCache
from shardwise.runtime.out_of_memory import check_memory, size
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


def test_lru_cache_keeps_recently_used_entries():
    table = LruCache(4)

    def find(key):
        found = table.get(key)
        return found if found is not None else table.promote(key)

    for number in range(3):
        table.insert(number, str(number))
    assert [find(number) for number in (2, 1, 0)] == ["2", "1", "0"]
    for number in range(10, 20):
        table.insert(number, str(number))
        assert find(0) == "0"  # used in every iteration
    assert find(1) is None and find(19) == "19"
    assert len(table) + len(table._old) <= 4
    table.clear()
    assert find(0) is None


def test_the_cache_of_single_op_programs_is_bounded():
    table = dispatch.executor._launches
    assert isinstance(table, LruCache) and table._half == 2048


def test_out_of_memory_error_names_the_function_and_the_memory_it_needs():
    with pytest.raises(OutOfMemoryError) as caught:
        jnp.zeros((1 << 45,))  # more than the address space
    text = str(caught.value)
    assert text.startswith(
        "`full` ran out of memory. Each device needs 128.0 TiB: 128.0 TiB for results.\n  XLA says: "
    )
    assert "Shard its arrays over more devices" in text
    assert isinstance(caught.value, JaxRuntimeError) and isinstance(caught.value.__cause__, RuntimeFailure)


def test_an_asynchronous_failure_is_raised_by_block_until_ready(mesh):
    """The call itself returns before the failure, and other programs still run."""
    enormous = sw.jit(lambda x: jnp.broadcast_to(x, (1 << 35, 1024)) * 2)
    for wait in (np.asarray, sw.block_until_ready, lambda x: x.block_until_ready()):
        with pytest.raises(OutOfMemoryError, match=r"ran out of memory\."):
            wait(enormous(jnp.ones(1024)))
    made = sw.jit(lambda: jnp.zeros((1 << 46, 2)), out_shardings=NamedSharding(mesh, P("data")))
    with pytest.raises(OutOfMemoryError, match=r"ran out of memory\."):
        made().block_until_ready()
    assert float(sw.jit(jnp.sum)(sw.device_put(np.ones(8), NamedSharding(mesh, P("data"))))) == 8.0


def test_check_memory_ignores_other_failures():
    check_memory(RuntimeFailure("INVALID_ARGUMENT: no"), "`f`")
    with pytest.raises(
        OutOfMemoryError, match=r"^the compilation of `f` ran out of memory\.\n  XLA says: Out of memory"
    ):
        check_memory(RuntimeFailure("RESOURCE_EXHAUSTED: Out of memory while it folds"), "the compilation of `f`")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 * 2**29, "1.5 GiB"), (2**50, "1024.0 TiB")],
)
def test_byte_counts_are_formatted_with_units(count, text):
    assert size(count) == text
