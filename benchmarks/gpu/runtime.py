"""Checks of the runtime: callbacks, donation, the compilation cache, memory, transfers and profiles."""

import gc
import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from benchmarks.gpu.check import Check, relative_error

F = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)


def callback() -> float:
    shape = sw.ShapeDtypeStruct(F.shape, np.float32)
    return relative_error(sw.jit(lambda x: sw.pure_callback(np.sin, shape, x) * 2)(F), np.sin(F) * 2)


def failing_callback() -> float:
    """The exception of a callback reaches the caller, and the device stays usable."""

    def fail(x: Any) -> Any:
        raise KeyError("raised on purpose")

    try:
        sw.jit(lambda x: sw.pure_callback(fail, sw.ShapeDtypeStruct((), np.float32), x[0, 0]))(F)
    except KeyError:
        return relative_error(sw.jit(lambda x: x + 1)(F), F + 1)
    raise AssertionError("the exception of the callback was lost")


def donation() -> float:
    x = jnp.asarray(np.ones((512, 512), np.float32))
    pointer = x.unsafe_buffer_pointer()
    y = sw.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.is_deleted(), "the donated array was not deleted"
    assert y.unsafe_buffer_pointer() == pointer, "the donated buffer was not reused"
    return 0.0


def compilation_cache() -> float:
    with tempfile.TemporaryDirectory() as folder:
        sw.config.update("compilation_cache_dir", f"{folder}/cache")
        try:
            first, second = (sw.jit(lambda x, again=again: jnp.cos(x) * 3)(F) for again in range(2))
        finally:
            sw.config.update("compilation_cache_dir", "")
        assert len(list(Path(folder, "cache").glob("*.executable"))) == 1, "the second compilation missed the cache"
    return relative_error(first, second)


def compiled_for_a_topology() -> float:
    """A program that was compiled for a topology is loaded from the cache for the real device."""
    device = sw.devices()[0]
    if device.platform != "gpu":
        return 0.0
    topology = sw.experimental.topologies.get_topology_desc("", "cuda", topology="1x1x1")
    absent = sw.experimental.topologies.make_mesh(topology, (1,), ("data",))
    present = sw.make_mesh((1,), ("data",), devices=[device])
    spec = sw.P("data")
    function = sw.jit(lambda x: jnp.tanh(x @ x.T) * 7)
    hits: list[str] = []
    listener = lambda event, **_: hits.append(event)  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        sw.config.update("compilation_cache_dir", f"{folder}/cache")
        sw.monitoring.register_event_listener(listener)
        try:
            struct = sw.ShapeDtypeStruct(F.shape, F.dtype, sharding=sw.NamedSharding(absent, spec))
            function.lower(struct).compile(compiler_options={"xla_gpu_autotune_level": 0})
            x = sw.device_put(F, sw.NamedSharding(present, spec))
            y = function(x)
        finally:
            sw.monitoring.unregister_event_listener(listener)
            sw.config.update("compilation_cache_dir", "")
    assert "/jax/compilation_cache/cache_hits" in hits, f"the entry of the topology was not loaded: {hits}"
    return relative_error(y, np.tanh(F @ F.T) * 7)


def memory_is_freed() -> float:
    device = sw.devices()[0]
    if device.memory_stats() is None:
        return 0.0
    gc.collect()
    before = device.memory_stats()["bytes_in_use"]
    x = sw.block_until_ready(jnp.zeros((1 << 20, 16)))
    assert device.memory_stats()["bytes_in_use"] - before >= x.nbytes, "bytes_in_use does not count the array"
    del x
    gc.collect()
    assert device.memory_stats()["bytes_in_use"] <= before, "the memory of a deleted array was not freed"
    return 0.0


def memory_analysis() -> float:
    """`memory_analysis` predicts the allocator's peak to 5 %.

    XLA autotunes matrix products while it compiles, which also raises the peak: the program's own temporaries must
    exceed that.
    """

    def program(x: Any) -> Any:
        kept = [x]
        for _ in range(20):
            kept.append(jnp.sin(kept[-1] @ x))
        for other in reversed(kept):
            x = jnp.cos(x @ other)
        return x

    device = sw.devices()[0]
    x = sw.block_until_ready(jnp.full((4096, 4096), 1e-4))
    compiled = sw.jit(program).lower(x).compile()
    analysis = compiled.memory_analysis()
    assert analysis.argument_size_in_bytes == analysis.output_size_in_bytes == x.nbytes
    if device.memory_stats() is None:
        return 0.0
    gc.collect()
    before = device.memory_stats()["bytes_in_use"]
    y = sw.block_until_ready(compiled(x))
    after = device.memory_stats()
    held, peak = after["bytes_in_use"] - before, after["peak_bytes_in_use"] - before
    expected = analysis.output_size_in_bytes + analysis.temp_size_in_bytes
    assert held == y.nbytes, f"{held} bytes in use for a result of {y.nbytes}"
    assert abs(peak - expected) <= 0.05 * expected, f"a peak of {peak} bytes, {expected} predicted"
    return 0.0


def memory_kinds() -> float:
    host = sw.sharding.SingleDeviceSharding(sw.devices()[0], memory_kind="pinned_host")
    x = sw.device_put(F, host)
    kept, total = sw.jit(lambda x: (sw.device_put(jnp.sin(x), host), sw.device_put(x * 2, host).sum()))(x)
    out = sw.jit(lambda x: x * 3, out_shardings=host)(x)
    assert x.sharding == kept.sharding == out.sharding == host, f"{kept.sharding}, {out.sharding}"
    assert total.sharding.memory_kind == "device"
    pairs = ((kept, np.sin(F)), (out, F * 3), (total, (F * 2).sum()), (x + 1, F + 1))
    return max(relative_error(actual, expected) for actual, expected in pairs)


def transfers() -> float:
    """Arrays are copied to the CPU and back."""
    cpu = sw.devices("cpu")[0]
    copy = sw.device_put(jnp.asarray(F), cpu)
    assert copy.devices() == {cpu}
    return relative_error(sw.device_put(copy * 2, sw.devices()[0]) + 1, F * 2 + 1)


def out_of_memory() -> float:
    """A program that does not fit raises, and the device stays usable."""
    try:
        sw.block_until_ready(sw.jit(lambda x: jnp.broadcast_to(x[:, None], (x.size, 1 << 38)) * 2.0)(jnp.ones(4)))
    except (RuntimeError, MemoryError):
        return relative_error(jnp.asarray(F) + 1, F + 1)
    raise AssertionError("a program of 4 TiB did not run out of memory")


def profile() -> float:
    """The Perfetto trace names kernels by the program's scopes, files and lines."""

    def loss(w: Any, x: Any) -> Any:
        with sw.named_scope("encoder"):
            return jnp.sum(jnp.tanh(x @ w) ** 2)

    step, w, x = sw.jit(sw.grad(loss)), jnp.full((256, 256), 0.01), jnp.ones((128, 256))
    sw.block_until_ready(step(w, x))
    with tempfile.TemporaryDirectory() as folder:
        with sw.profiler.trace(folder):
            sw.block_until_ready(step(w, x))
        events = json.loads(gzip.decompress(Path(folder, "perfetto_trace.json.gz").read_bytes()))["traceEvents"]
    kernels = [event["name"] for event in events if event.get("cat") == "compute"]
    prefix = f"encoder/{Path(__file__).name}:"
    assert any(name.startswith(prefix) and name.endswith("/dot") for name in kernels), kernels
    return 0.0


def checks() -> Iterator[tuple[str, Check]]:
    """Yield the checks; the one that runs out of memory is the last."""
    yield "callback", callback
    yield "failing callback", failing_callback
    yield "donation", donation
    yield "compilation cache", compilation_cache
    yield "compiled for a topology", compiled_for_a_topology
    yield "memory is freed", memory_is_freed
    yield "memory analysis", memory_analysis
    yield "memory kinds", memory_kinds
    yield "transfers between platforms", transfers
    yield "profile", profile
    yield "usable after running out of memory", out_of_memory
