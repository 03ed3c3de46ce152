"""More programs for JAX: conv nets, diffusion, recurrent networks, nested loops, shard_map, and reported problems.

They are written for a library with JAX's names, as in `patterns.py`.
"""

from typing import Any

import numpy as np

from benchmarks.patterns import DATA_MODEL, EIGHT, Program, descent, normal
from benchmarks.workload import Pin, Put, Workload


def conv_net(library: Any, pin: Pin) -> Program:
    """Return a training step of four residual convolutions and a classifier."""
    jnp, lax, nn = library.numpy, library.lax, library.nn

    def conv(x: Any, kernel: Any, stride: int = 1) -> Any:
        return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(params: Any, images: Any, labels: Any) -> Any:
        x = nn.relu(conv(images, params["first"], 2))
        for kernel in params["blocks"]:
            y = conv(x, kernel)
            y = (y - y.mean((1, 2), keepdims=True)) * lax.rsqrt(y.var((1, 2), keepdims=True) + 1e-5)
            x = x + nn.relu(y)
        logits = x.mean((1, 2)) @ params["head"]
        return -jnp.mean(jnp.take_along_axis(nn.log_softmax(logits), labels[:, None], 1))

    return descent(library, loss)


def conv_net_arguments(spec: tuple[Any, ...]) -> Any:
    def arguments(put: Put) -> tuple[Any, ...]:
        params = {
            "first": put(normal(3, 3, 3, 16) * 0.2),
            "blocks": [put(normal(3, 3, 16, 16, seed=n) * 0.1) for n in range(3)],
            "head": put(normal(16, 10)),
        }
        return params, put(normal(32, 32, 32, 3), *spec), put(np.arange(32, dtype=np.int32) % 10, *spec[:1])

    return arguments


def diffusion(library: Any, pin: Pin) -> Program:
    """Return a training step of a denoiser: noise and times from a key, a U-Net of two levels, the squared error."""
    jnp, lax, nn, random = library.numpy, library.lax, library.nn, library.random

    def conv(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def denoise(params: Any, x: Any, time: Any) -> Any:
        angles = time[:, None] * jnp.exp(-jnp.arange(8.0))
        embedding = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], 1) @ params["time"]
        high = nn.silu(conv(x, params["down"]) + embedding[:, None, None])
        batch, height, width, channels = high.shape
        low = high.reshape(batch, height // 2, 2, width // 2, 2, channels).mean((2, 4))
        low = nn.silu(conv(low, params["middle"]))
        joined = jnp.concatenate([jnp.repeat(jnp.repeat(low, 2, 1), 2, 2), high], -1)
        return conv(joined, params["up"])

    def loss(params: Any, images: Any, seed: Any) -> Any:
        noise_key, time_key = random.split(random.key(seed))
        noise = random.normal(noise_key, images.shape)
        time = random.uniform(time_key, images.shape[:1])
        keep = jnp.cos(time * np.pi / 2)[:, None, None, None]
        noisy = keep * images + jnp.sqrt(1 - keep**2) * noise
        return jnp.mean((denoise(params, noisy, time) - noise) ** 2)

    return descent(library, loss)


def diffusion_arguments(weights: Any) -> Any:
    def arguments(put: Put) -> tuple[Any, ...]:
        params = {
            "time": put(normal(16, 32), None, weights),
            "down": put(normal(3, 3, 3, 32) * 0.2, None, None, None, weights),
            "middle": put(normal(3, 3, 32, 32) * 0.1, None, None, None, weights),
            "up": put(normal(3, 3, 64, 3) * 0.1, None, None, weights),
        }
        return params, put(normal(16, 16, 16, 3), "data"), np.int32(7)

    return arguments


def lstm(library: Any, pin: Pin) -> Program:
    """Return a training step of an LSTM over a sequence."""
    jnp, lax, nn = library.numpy, library.lax, library.nn

    def loss(params: Any, x: Any, y: Any) -> Any:
        def turn(state: Any, row: Any) -> Any:
            hidden, cell = state
            gates = row @ params["input"] + hidden @ params["hidden"]
            forget, write, out, new = jnp.split(gates, 4, axis=-1)
            cell = nn.sigmoid(forget) * cell + nn.sigmoid(write) * jnp.tanh(new)
            hidden = nn.sigmoid(out) * jnp.tanh(cell)
            return (hidden, cell), hidden

        zeros = jnp.zeros((x.shape[1], params["hidden"].shape[0]))
        (hidden, _), _ = lax.scan(turn, (zeros, zeros), x)
        return jnp.mean((hidden @ params["head"] - y) ** 2)

    return descent(library, loss)


def lstm_arguments(weights: Any) -> Any:
    def arguments(put: Put) -> tuple[Any, ...]:
        params = {
            "input": put(normal(32, 256) * 0.1, weights),
            "hidden": put(normal(64, 256) * 0.1, weights),
            "head": put(normal(64, 8), weights),
        }
        return params, put(normal(12, 64, 32), None, "data"), put(normal(64, 8), "data")

    return arguments


def nested_loops(library: Any, pin: Pin) -> Program:
    """Return a fixed-point iteration, a while loop, in a loop over steps, a scan."""
    jnp, lax = library.numpy, library.lax

    def solve(w: Any, x: Any) -> Any:
        def iterate(state: Any) -> Any:
            z, _, count = state
            new = jnp.tanh(z @ w * 0.1 + x)
            return new, jnp.max(jnp.abs(new - z)), count + 1

        def step(z: Any, _: Any) -> Any:
            z, error, _ = lax.while_loop(lambda s: (s[1] > 1e-4) & (s[2] < 20), iterate, (z, jnp.inf, 0))
            return z, error

        return lax.scan(step, x, None, length=3)

    return solve


def ring(library: Any, pin: Pin) -> Program:
    """Return a function with a manual region in it: a ring of permutes that multiplies all blocks, between products."""
    jnp, lax = library.numpy, library.lax
    P, auto = library.sharding.PartitionSpec, library.sharding.AxisType.Auto

    def function(x: Any, w: Any) -> Any:
        mesh = library.make_mesh((8,), ("x",), axis_types=(auto,))

        def blocks(x: Any, w: Any) -> Any:
            def turn(state: Any, _: Any) -> Any:
                total, block = state
                return (total + x @ block, lax.ppermute(block, "x", [(n, (n + 1) % 8) for n in range(8)])), None

            start = lax.pcast(jnp.zeros((x.shape[0], w.shape[1])), "x", to="varying")
            return lax.scan(turn, (start, w), None, length=8)[0][0]

        region = library.shard_map(blocks, mesh=mesh, in_specs=(P("x"), P(None, "x")), out_specs=P("x"))
        return jnp.tanh(region(jnp.tanh(x), w)) @ jnp.ones((w.shape[1] // 8, 4))

    return function


def microbatches(library: Any, pin: Pin) -> Program:
    """Return the gradient of a loss over a loop of microbatches. xla#13306: the reshape replicates everything."""
    jnp, lax = library.numpy, library.lax

    def loss(w: Any, x: Any) -> Any:
        def micro(total: Any, rows: Any) -> Any:
            return total + jnp.sum(jnp.tanh(rows @ w) ** 2), None

        return lax.scan(micro, jnp.zeros(()), x.reshape(4, 256, 128))[0]

    return library.grad(loss)


def heads(library: Any, pin: Pin) -> Program:
    """Return heads that are split and merged under tensor parallelism. marin#7247."""
    jnp = library.numpy

    def function(x: Any, w: Any) -> Any:
        split = jnp.swapaxes((x @ w).reshape(8, 16, 4, 8), 1, 2)
        scores = jnp.einsum("bhqd,bhkd->bhqk", split, split)
        return jnp.swapaxes(jnp.einsum("bhqk,bhkd->bhqd", scores, split), 1, 2).reshape(8, 16, 32) @ w.T

    return function


def transposed(library: Any, pin: Pin) -> Program:
    """Return a product with a transposed operand. xla#4062: both operands are gathered."""
    return lambda x, w: library.numpy.tanh(x @ w.T)


def sums_in_a_loop(library: Any, pin: Pin) -> Program:
    """Return a scan whose iterations depend on a sum over devices. xla#49143: it is hoisted out of the loop."""
    jnp, lax = library.numpy, library.lax

    def function(x: Any) -> Any:
        def turn(carry: Any, row: Any) -> Any:
            total = jnp.sum(row * carry)
            return carry / (1 + jnp.abs(total)), total

        return lax.scan(turn, jnp.ones(x.shape[1:]), x)

    return function


def reverse_cumsum(library: Any, pin: Pin) -> Program:
    """Return cumulative sums from both ends. jax#21403: wrong when partitioned."""
    return lambda x: library.numpy.cumsum(x, 0) + library.lax.cumsum(x, 0, reverse=True)


def two(*specs: tuple[tuple[int, ...], tuple[Any, ...]]) -> Any:
    """Return the arguments with these shapes and specs."""
    return lambda put: tuple(put(normal(*shape, seed=n), *spec) for n, (shape, spec) in enumerate(specs))


WORKLOADS = (
    Workload("conv net, data parallel", DATA_MODEL, conv_net, conv_net_arguments((("data", "model"),))),
    Workload("conv net, spatial", DATA_MODEL, conv_net, conv_net_arguments(("data", "model"))),
    Workload("diffusion, data parallel", DATA_MODEL, diffusion, diffusion_arguments(None)),
    Workload("diffusion, FSDP", DATA_MODEL, diffusion, diffusion_arguments("data")),
    Workload("LSTM, data parallel", DATA_MODEL, lstm, lstm_arguments(None)),
    Workload("LSTM, tensor parallel", DATA_MODEL, lstm, lstm_arguments("model")),
    Workload("loops in loops", DATA_MODEL, nested_loops, two(((64, 64), (None, "model")), ((128, 64), ("data",)))),
    Workload("ring in shard_map", EIGHT, ring, two(((64, 32), ("x",)), ((32, 64), (None, "x")))),
    Workload("microbatches", EIGHT, microbatches, two(((128, 128), ()), ((1024, 128), ("x",)))),
    Workload("heads", DATA_MODEL, heads, two(((8, 16, 32), ("data",)), ((32, 32), (None, "model")))),
    Workload(
        "transposed product", DATA_MODEL, transposed, two(((64, 32), ("data", "model")), ((48, 32), (None, "model")))
    ),
    Workload("sums in a loop", DATA_MODEL, sums_in_a_loop, two(((5, 16), (None, "data")))),
    Workload("cumulative sums", DATA_MODEL, reverse_cumsum, two(((16, 3), (("data", "model"),)))),
)
