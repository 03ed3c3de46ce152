"""The time and memory that `autoshard` needs for a GPT of 96 layers on 4,096 GPUs.

    python -m benchmarks.autoshard [number of devices] [pipeline]

The model has the sizes of GPT-3 (175 billion parameters); layers are scanned and recomputed in the backward pass, the
compute is in bf16, and Adam has f32 state. With `pipeline`, the layers are a pipeline, whose stages, microbatches and
chunks are chosen too.
"""

import resource
import sys
import time
from typing import Any

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import lax, nn
from shardwise.parallel import pipeline

LAYERS, WIDTH, HEADS, WORDS, LENGTH, BATCH = 96, 12288, 96, 51200, 2048, 4096
BF16 = jnp.bfloat16


def _norm(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def _layer(x: Any, p: Any) -> Any:
    h = _norm(x, p["scale1"])
    q, k, v = (jnp.einsum("btd,dhe->bthe", h, p[name].astype(BF16)) for name in ("query", "key", "value"))
    x = x + jnp.einsum("bthe,hed->btd", nn.dot_product_attention(q, k, v, is_causal=True), p["out"].astype(BF16))
    return x + nn.gelu(_norm(x, p["scale2"]) @ p["up"].astype(BF16)) @ p["down"].astype(BF16)


def _stage(layers: Any, x: Any) -> Any:
    return lax.scan(lambda x, p: (jax.checkpoint(_layer)(x, p), None), x, layers)[0]


def _embed(tokens: Any, embed: Any) -> Any:
    return embed.astype(BF16)[tokens]


def _cross_entropy(x: Any, targets: Any, embed: Any) -> Any:
    logits = (x @ embed.astype(BF16).T).astype(jnp.float32)
    return -jnp.mean(jnp.take_along_axis(nn.log_softmax(logits), targets[..., None], -1))


def loss(params: Any, batch: Any) -> Any:
    """Return the cross entropy of the next tokens."""
    x = _stage(params["layers"], _embed(batch["tokens"], params["embed"]))
    return _cross_entropy(x, batch["targets"], params["embed"])


def _adam(loss: Any, state: Any, batch: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(state["params"], batch)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], grads)
    square = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["square"], grads)
    params = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), state["params"], mean, square)
    return {"params": params, "mean": mean, "square": square}, value


def train_step(state: Any, batch: Any) -> Any:
    """Return the state after one step of Adam, and the loss."""
    return _adam(loss, state, batch)


def pipelined_step(state: Any, batch: Any, *, mesh: Any, microbatches: int, chunks: int) -> Any:
    """Return the state after one step of Adam, and the loss, with the layers as a pipeline.

    Each device has adjacent layers of the stacked parameters; with chunks, they are not adjacent in the model.
    """
    stages = mesh.shape["stage"]
    schedule = "interleaved" if chunks > 1 else "1f1b"
    run = pipeline(_stage, microbatches, "stage", schedule, mesh=mesh, chunks=chunks)
    mean_loss = run.with_loss(_cross_entropy, _embed)

    def split(w: Any) -> Any:
        if chunks == 1:
            return w.reshape(stages, -1, *w.shape[1:])
        return w.reshape(stages, chunks, -1, *w.shape[1:]).swapaxes(0, 1)

    def pipelined_loss(params: Any, batch: Any) -> Any:
        layers = jax.tree.map(split, params["layers"])
        return mean_loss(layers, batch["tokens"], batch["targets"], params["embed"])

    return _adam(pipelined_loss, state, batch)


def arguments(layers: int = LAYERS) -> tuple[Any, Any]:
    """Return the types of the state and the batch."""
    size = WIDTH // HEADS
    shapes = {
        **dict.fromkeys(("query", "key", "value"), (layers, WIDTH, HEADS, size)),
        "out": (layers, HEADS, size, WIDTH),
        "up": (layers, WIDTH, 4 * WIDTH),
        "down": (layers, 4 * WIDTH, WIDTH),
        "scale1": (layers, WIDTH),
        "scale2": (layers, WIDTH),
    }
    params = {
        "embed": jax.ShapeDtypeStruct((WORDS, WIDTH), jnp.float32),
        "layers": {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()},
    }
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    return {"params": params, "mean": params, "square": params}, {"tokens": tokens, "targets": tokens}


def main() -> None:
    """Print the table of alternatives, the time and the memory of planning."""
    options = [option for option in sys.argv[1:] if option != "pipeline"]
    count = int(options[0]) if options else 4096
    step = pipelined_step if "pipeline" in sys.argv else train_step
    start, cpu = time.perf_counter(), time.process_time()
    result = jax.autoshard(jax.jit(step, donate_argnums=0), hardware="h100", count=count)(*arguments())
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    print(result)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"\nplanned in {seconds:.1f} s ({cpu_seconds:.1f} s of CPU), with at most {memory:.2f} GB of memory")


if __name__ == "__main__":
    main()
