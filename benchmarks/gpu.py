"""The same programs on a GPU: a sample of every family against numpy or the CPU, in one call, as a table.

    python -m benchmarks.gpu [--json FILE]

Exits with 1 if a row fails. Where there is no GPU it says so, and checks the CPU.
"""

import argparse
import gc
import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, nn, random

Check = Callable[[], float]  # the largest error, or an AssertionError
TOLERANCE = 2e-3
_rng = np.random.default_rng(0)
F = _rng.normal(size=(6, 5)).astype(np.float32)
IMAGE = _rng.normal(size=(2, 3, 9, 9)).astype(np.float32)
KERNEL = _rng.normal(size=(4, 3, 3, 3)).astype(np.float32)
SQUARE = _rng.normal(size=(3, 8, 8)).astype(np.float32)
POSITIVE = SQUARE @ SQUARE.transpose(0, 2, 1) + 4 * np.eye(8, dtype=np.float32)


def error(found: Any, wanted: Any) -> float:
    """The largest difference, relative to the largest element."""
    ours, other = (
        np.asarray(x).astype(complex if np.iscomplexobj(np.asarray(wanted)) else float) for x in (found, wanted)
    )
    assert ours.shape == other.shape, f"{ours.shape}, not {other.shape}"
    if not other.size:
        return 0.0
    assert (np.isnan(ours) == np.isnan(other)).all(), "NaN elsewhere"
    return float(np.nanmax(np.abs(ours - other)) / max(1.0, np.nanmax(np.abs(other))))


def like_cpu(function: Callable[..., Any], *args: Any) -> Check:
    """The function compiled here and for the CPU."""

    def check() -> float:
        cpu = sw.devices("cpu")[0]
        here = sw.tree.leaves(sw.jit(function)(*args))
        there = sw.tree.leaves(sw.jit(function)(*(sw.device_put(x, cpu) for x in args)))
        return max(error(x, y) for x, y in zip(here, there, strict=True))

    return check


def _loops(x: Any) -> list[Any]:
    summed = lax.scan(lambda carry, row: (carry + row, carry.sum()), x[0], x)
    return [summed, lax.fori_loop(0, 4, lambda i, carry: carry * x[i], x[0])]


def families() -> Iterator[tuple[str, Check]]:
    """A sample of every family of ops."""
    yield "elementwise", like_cpu(lambda x: [jnp.tanh(x), jnp.exp(x), jnp.log1p(x * x), x**3, jnp.floor(x)], F)
    yield "special functions", like_cpu(lambda x: [lax.erf(x), lax.lgamma(x * x + 1), lax.digamma(x * x + 1)], F)
    yield "reductions", like_cpu(lambda x: [x.sum(0), x.max(1), x.prod(), x.argmax(0), jnp.var(x)], F)
    yield "narrow types", like_cpu(lambda x: [x.astype(t) for t in ("bfloat16", "float16", "float8_e5m2")], F)
    yield "integers", like_cpu(lambda x: [x * 7 % 5, x >> 1, lax.population_count(x)], np.arange(40, dtype=np.int32))
    yield "dot", like_cpu(lambda x: [x @ x.T, jnp.einsum("ij,ik->jk", x, x)], F)
    yield "convolution", like_cpu(lambda x, w: lax.conv(x, w, (2, 1), "SAME"), IMAGE, KERNEL)
    yield (
        "pooling",
        like_cpu(lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "SAME"), IMAGE),
    )
    yield "slices and pads", like_cpu(lambda x: [x[::2, 1:], jnp.pad(x, 2), jnp.roll(x, 2, 0), x[::-1]], F)
    yield "gather, scatter", like_cpu(lambda x: [x[jnp.array([4, 0, -1])], x.at[1].add(2.0), x.at[9].set(1.0)], F)
    yield "sort, top_k", like_cpu(lambda x: [jnp.sort(x, 0), jnp.argsort(x), *lax.top_k(x, 3)], F)
    yield "NaN in top_k", like_cpu(lambda x: lax.top_k(x, 2), np.array([[1.0, np.nan, 3.0, 2.0]], np.float32))
    yield "cumulative", like_cpu(lambda x: [jnp.cumsum(x, 0), lax.cummax(x, 1), lax.cumlogsumexp(x, 0)], F)
    yield "fft", like_cpu(lambda x: [jnp.fft.fft2(x), jnp.fft.rfft(x), jnp.fft.irfft(jnp.fft.rfft(x), 5)], F)
    yield "control flow", like_cpu(_loops, F)
    yield "gradients", like_cpu(sw.grad(lambda x: jnp.sum(nn.gelu(x @ x.T) ** 2)), F)
    yield "vmap", like_cpu(sw.vmap(lambda x: jnp.outer(x, x).sum(0)), F)
    yield (
        "random bits",
        like_cpu(lambda x: [random.bits(random.PRNGKey(3), (40,)), random.normal(random.key(1), (40,))], F),
    )


def factors() -> Iterator[tuple[str, Check]]:
    """Linear algebra: what factors multiply to, because signs are free."""

    def made(parts: Callable[..., list[Any]], wanted: Any, *args: Any) -> Check:
        def check() -> float:
            product, *rest = (np.asarray(x) for x in sw.jit(parts)(*args))
            for factor in rest:
                product = product @ factor
            return error(product, wanted)

        return check

    tall = SQUARE[:, :, :5]
    yield "cholesky", made(lambda a: [(c := jnp.linalg.cholesky(a)), c.mT], POSITIVE, POSITIVE)
    yield "qr", made(lambda a: list(jnp.linalg.qr(a)), tall, tall)
    yield "svd", made(lambda a: [(u := jnp.linalg.svd(a, full_matrices=False))[0] * u[1][:, None], u[2]], tall, tall)
    yield "eigh", made(lambda a: [(e := jnp.linalg.eigh(a))[1] * e[0][:, None], e[1].mT], POSITIVE, POSITIVE)
    yield "solve", made(lambda a, b: [a, jnp.linalg.solve(a, b)], SQUARE, POSITIVE, SQUARE)
    yield "inv", made(lambda a: [jnp.linalg.inv(a), a], np.broadcast_to(np.eye(8), (3, 8, 8)), POSITIVE)


def attention() -> Iterator[tuple[str, Check]]:
    """cuDNN's kernel beside the plain form."""
    q, k, v = (_rng.normal(size=(2, 128, 4, 64)).astype(ml_dtypes.bfloat16) for _ in range(3))
    way = "cudnn" if sw.default_backend() == "gpu" else "xla"
    for name, keywords in (("attention", {}), ("causal attention", {"is_causal": True})):

        def check(keywords: dict[str, Any] = keywords) -> float:
            def total(implementation: str) -> Any:
                def loss(q: Any, k: Any, v: Any) -> Any:
                    found = nn.dot_product_attention(q, k, v, implementation=implementation, **keywords)
                    return (found.astype(np.float32) * np.cos(np.arange(64))).sum()

                return sw.jit(sw.grad(loss, (0, 1, 2)))(q, k, v)

            both = zip(total(way), total("xla"), strict=True)
            # bf16 has 8 bits: what is small beside that is small.
            return max(error(x.astype(np.float32), y.astype(np.float32)) for x, y in both) / 20

        yield name, check


def runtime() -> Iterator[tuple[str, Check]]:
    """Callbacks, donation, the cache, memory, errors."""

    def callback() -> float:
        shape = sw.ShapeDtypeStruct(F.shape, np.float32)
        return error(sw.jit(lambda x: sw.pure_callback(np.sin, shape, x) * 2)(F), np.sin(F) * 2)

    def failing_callback() -> float:
        def fail(x: Any) -> Any:
            raise KeyError("meant to be")

        try:
            sw.jit(lambda x: sw.pure_callback(fail, sw.ShapeDtypeStruct((), np.float32), x[0, 0]))(F)
        except KeyError:
            return error(sw.jit(lambda x: x + 1)(F), F + 1)
        raise AssertionError("the exception is lost")

    def donation() -> float:
        x = jnp.asarray(np.ones((512, 512), np.float32))
        pointer = x.unsafe_buffer_pointer()
        y = sw.jit(lambda x: x + 1, donate_argnums=0)(x)
        assert x.is_deleted(), "the donated array is still there"
        assert y.unsafe_buffer_pointer() == pointer, "the memory is not reused"
        return 0.0

    def cache() -> float:
        with tempfile.TemporaryDirectory() as folder:
            sw.config.update("compilation_cache_dir", f"{folder}/cache")
            try:
                first, second = (sw.jit(lambda x, again=again: jnp.cos(x) * 3)(F) for again in range(2))
            finally:
                sw.config.update("compilation_cache_dir", "")
            assert len(list(Path(folder, "cache").glob("*.executable"))) == 1, "not found again"
        return error(first, second)

    def memory() -> float:
        device = sw.devices()[0]
        if device.memory_stats() is None:
            return 0.0
        gc.collect()
        before = device.memory_stats()["bytes_in_use"]
        x = sw.block_until_ready(jnp.zeros((1 << 20, 16)))
        assert device.memory_stats()["bytes_in_use"] - before >= x.nbytes, "the array is not counted"
        del x
        gc.collect()
        assert device.memory_stats()["bytes_in_use"] <= before, "the memory of a dropped array stays"
        return 0.0

    def account() -> float:
        """What `memory_analysis` says is what the allocator does, to 5 %. XLA tries products while it compiles: what
        lies between must be more than that takes."""

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
        said = compiled.memory_analysis()
        assert said.argument_size_in_bytes == said.output_size_in_bytes == x.nbytes
        if device.memory_stats() is None:
            return 0.0
        gc.collect()
        before = device.memory_stats()["bytes_in_use"]
        y = sw.block_until_ready(compiled(x))
        after = device.memory_stats()
        held, peak = after["bytes_in_use"] - before, after["peak_bytes_in_use"] - before
        expected = said.output_size_in_bytes + said.temp_size_in_bytes
        assert held == y.nbytes, f"{held} bytes for a result of {y.nbytes}"
        assert abs(peak - expected) <= 0.05 * expected, f"{peak} bytes at the peak, where {expected} are said"
        return 0.0

    def kinds() -> float:
        there = sw.sharding.SingleDeviceSharding(sw.devices()[0], memory_kind="pinned_host")
        x = sw.device_put(F, there)
        kept, total = sw.jit(lambda x: (sw.device_put(jnp.sin(x), there), sw.device_put(x * 2, there).sum()))(x)
        out = sw.jit(lambda x: x * 3, out_shardings=there)(x)
        assert x.sharding == kept.sharding == out.sharding == there, f"{kept.sharding}, {out.sharding}"
        assert total.sharding.memory_kind == "device"
        return max(error(kept, np.sin(F)), error(out, F * 3), error(total, (F * 2).sum()), error(x + 1, F + 1))

    def moves() -> float:
        cpu = sw.devices("cpu")[0]
        there = sw.device_put(jnp.asarray(F), cpu)
        assert there.devices() == {cpu}
        return error(sw.device_put(there * 2, sw.devices()[0]) + 1, F * 2 + 1)

    def too_much() -> float:
        try:
            sw.block_until_ready(sw.jit(lambda x: jnp.broadcast_to(x[:, None], (x.size, 1 << 38)) * 2.0)(jnp.ones(4)))
        except (RuntimeError, MemoryError):
            return error(jnp.asarray(F) + 1, F + 1)
        raise AssertionError("it should not fit")

    def profile() -> float:
        """What ran on the device bears the names and lines of the program, in a file for Perfetto."""

        def loss(w: Any, x: Any) -> Any:
            with sw.named_scope("encoder"):
                return jnp.sum(jnp.tanh(x @ w) ** 2)

        step, w, x = sw.jit(sw.grad(loss)), jnp.full((256, 256), 0.01), jnp.ones((128, 256))
        sw.block_until_ready(step(w, x))
        with tempfile.TemporaryDirectory() as folder:
            with sw.profiler.trace(folder):
                sw.block_until_ready(step(w, x))
            events = json.loads(gzip.decompress(Path(folder, "perfetto_trace.json.gz").read_bytes()))["traceEvents"]
        computed = [event["name"] for event in events if event.get("cat") == "compute"]
        assert any(name.startswith("encoder/gpu.py:") and name.endswith("/dot") for name in computed), computed
        return 0.0

    yield "callback", callback
    yield "failing callback", failing_callback
    yield "donation", donation
    yield "compilation cache", cache
    yield "memory is freed", memory
    yield "memory is accounted for", account
    yield "memory kinds", kinds
    yield "moves between platforms", moves
    yield "profile", profile
    yield "usable after running out of memory", too_much


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = sw.devices()[0]
    if sw.default_backend() != "gpu":
        print("There is no GPU here: this checks the CPU.")
    print(f"{device.device_kind}\n{'family':36} {'':4} {'error':>9} {'seconds':>8}")
    rows = []
    for name, check in (*families(), *factors(), *attention(), *runtime()):
        start = time.perf_counter()
        try:
            found = check()
            state = "ok" if found <= TOLERANCE else "BAD"
            shown = f"{found:9.1e}"
        except Exception as failure:
            state, shown = "BAD", f"{type(failure).__name__}: {failure}"
        taken = time.perf_counter() - start
        rows.append({"family": name, "state": state, "error": shown.strip(), "seconds": taken})
        print(f"{name:36} {state:4} {shown:>9} {taken:8.2f}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))
    failed = [row["family"] for row in rows if row["state"] != "ok"]
    print(f"{len(rows) - len(failed)} of {len(rows)} ok" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
