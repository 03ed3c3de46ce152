"""Times of our own kernels on a GPU, beside the plain ops that XLA compiles.

    python -m benchmarks.kernel_times [--small]

Each function runs alone, many times. Rates are those of the bytes that must be read and written, or of the flops of
products. `--small` runs small arrays, to try the program on a CPU.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, final

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp


@final
class Case(NamedTuple):
    """A function, its arguments, and the work of one call.

    Attributes:
        name: its name.
        function: arguments → results, of which those of `donated` replace arguments in the next call.
        arguments: the arguments.
        donated: the number of leading arguments that are updated.
        gigabytes: the bytes that must be read and written, or 0.
        teraflops: the flops of products, or 0.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: int
    gigabytes: float
    teraflops: float


def cases(scale: int) -> Iterator[Case]:
    """Yield the cases. Dims are divided by `scale`."""
    rng = np.random.default_rng(0)

    def random(*shape: int, dtype: Any = jnp.bfloat16) -> Any:
        return jnp.asarray(rng.standard_normal(shape, np.float32), dtype)

    shapes = [(8192 // scale, 2048 // scale)] * 24 + [(2048 // scale,)] * 24
    params, means = ([random(*shape, dtype=np.float32) for shape in shapes] for _ in range(2))
    squares, grads = [x * x for x in means], [random(*shape) for shape in shapes]
    optimizer = sw.kernels.adam(1e-3, compute_dtype=jnp.bfloat16)

    def update(params: Any, means: Any, squares: Any, copy: Any, grads: Any) -> Any:
        state = sw.kernels.AdamState(jnp.int32(5), means, squares, copy)
        params, (_, means, squares, copy) = optimizer.apply(grads, state, params)
        return params, means, squares, copy

    size = sum(x.size for x in params)
    copy = [jnp.asarray(x, jnp.bfloat16) for x in params]
    yield Case("adam", update, (params, means, squares, copy, grads), 4, size * 28e-9, 0)

    rows, inner, columns, experts = 16384 // scale, 2048 // scale, 5632 // scale, 8
    x, weights = random(rows, inner), random(experts, inner, columns)
    sizes = jnp.asarray(rng.multinomial(rows, np.ones(experts) / experts).astype(np.int32))
    flops = 2e-12 * rows * inner * columns
    yield Case("grouped_dot", sw.kernels.grouped_dot, (x, weights, sizes), 0, 0, flops)

    def gradients(x: Any, weights: Any, sizes: Any) -> Any:
        product = lambda x, weights: (sw.kernels.grouped_dot(x, weights, sizes) ** 2).sum()  # noqa: E731
        return sw.grad(product, (0, 1))(x, weights)

    yield Case("grouped_dot, with gradients", gradients, (x, weights, sizes), 0, 0, 3 * flops)

    sequences, heads, key_heads, width, page, length = 64, 32, 8, 128, 16, 4096 // scale
    listed = length // page
    pools = [random(key_heads, sequences * listed, page, width) for _ in range(2)]
    tables = jnp.asarray(rng.permutation(sequences * listed).reshape(sequences, listed).astype(np.int32))
    lengths = jnp.full((sequences,), length, np.int32)
    arguments = (random(sequences, heads, width), *pools, tables, lengths)
    yield Case("paged_attention", sw.kernels.paged_attention, arguments, 0, 2e-9 * pools[0].nbytes, 0)


def milliseconds(case: Case, repeats: int) -> float:
    """Return the least mean time of a call, of three runs."""
    function = sw.jit(case.function, donate_argnums=tuple(range(case.donated)))
    arguments = sw.tree.map(lambda x: x + 0, case.arguments)
    times = []
    for run in range(4):  # the first one compiles
        start = time.perf_counter()
        for _ in range(repeats):
            results = function(*arguments)
            if case.donated:
                arguments = (*results, *arguments[case.donated :])
        sw.block_until_ready(results)
        times += [(time.perf_counter() - start) / repeats] if run else []
    return 1e3 * min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    print(f"{'':28} {'kernel':>10} {'plain ops':>10}  rate of the kernel")
    for case in cases(32 if options.small else 1):
        ours = milliseconds(case, options.repeats)
        with sw.config.override("own_kernels", False):
            plain = milliseconds(case, options.repeats)
        rate = f"{case.gigabytes / ours:.2f} TB/s" if case.gigabytes else f"{1e3 * case.teraflops / ours:.0f} TFLOP/s"
        print(f"{case.name:28} {ours:7.3f} ms {plain:7.3f} ms  {rate}", flush=True)


if __name__ == "__main__":
    main()
