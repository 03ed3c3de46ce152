"""Training steps at the size of GPUs, for a library with JAX's names: a transformer under six kinds of parallelism.

Arguments are ShapeDtypeStructs, so that a step can be compiled for a topology that is not present.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

LAYERS, MODEL, HIDDEN, HEADS, VOCABULARY, LENGTH = 8, 4096, 16384, 32, 32768, 2048
WEIGHTS = {
    **dict.fromkeys(("query", "key", "value", "out"), (MODEL, MODEL)),
    "up": (MODEL, HIDDEN),
    "down": (HIDDEN, MODEL),
}
COLUMNS = ("query", "key", "value", "up", "logits")  # sharded by columns under tensor parallelism; the others by rows
Axes = str | tuple[str, ...] | None


@final
@dataclass(frozen=True)
class Parallelism:
    """How a step is sharded.

    Attributes:
        axes: the names of the mesh axes.
        sizes: their sizes for a number of devices.
        columns: the axes of the rows and columns of weights that are sharded by columns.
        rows: those of the other weights.
        batch: the axes of the batch.
        state: the axes of the rows and columns of optimizer states; None if they are those of the weights.
    """

    axes: tuple[str, ...]
    sizes: Callable[[int], tuple[int, ...]]
    columns: tuple[Axes, Axes]
    rows: tuple[Axes, Axes]
    batch: Axes
    state: tuple[Axes, Axes] | None = None


def _all(devices: int) -> tuple[int, ...]:
    return (devices,)


KINDS = {
    "data parallel": Parallelism(("data",), _all, (None, None), (None, None), "data"),
    "ZeRO-1": Parallelism(("data",), _all, (None, None), (None, None), "data", ("data", None)),
    "FSDP": Parallelism(("data",), _all, ("data", None), ("data", None), "data"),
    "tensor parallel": Parallelism(("model",), _all, (None, "model"), ("model", None), None),
    "FSDP × tensor": Parallelism(
        ("data", "model"), lambda devices: (devices // 4, 4), ("data", "model"), ("model", "data"), "data"
    ),
    "HSDP": Parallelism(
        ("node", "data"), lambda devices: (devices // 8, 8), ("data", None), ("data", None), ("node", "data")
    ),
}


def training_step(library: Any, scanned: bool) -> Callable[..., Any]:
    """Return a training step with Adam: weights and states in f32, products in bf16, layers recomputed."""
    jnp, lax, nn = library.numpy, library.lax, library.nn

    def norm(x: Any) -> Any:
        wide = x.astype(jnp.float32)
        return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)

    def layer(x: Any, weights: Any) -> Any:
        w = {name: weight.astype(jnp.bfloat16) for name, weight in weights.items()}
        heads = (*x.shape[:2], HEADS, MODEL // HEADS)
        normed = norm(x)
        query, key, value = ((normed @ w[name]).reshape(heads) for name in ("query", "key", "value"))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32) * (HEADS / MODEL) ** 0.5
        causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        attention = nn.softmax(jnp.where(causal, scores, -1e30)).astype(x.dtype)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", attention, value).reshape(x.shape) @ w["out"]
        return x + nn.gelu(norm(x) @ w["up"]) @ w["down"]

    def loss(params: Any, tokens: Any) -> Any:
        x = params["embed"].astype(jnp.bfloat16)[tokens[:, :-1]]
        block = library.checkpoint(layer)
        if scanned:
            x, _ = lax.scan(lambda x, weights: (block(x, weights), None), x, params["layers"])
        else:
            for weights in params["layers"]:
                x = block(x, weights)
        logits = (norm(x) @ params["logits"].astype(jnp.bfloat16)).astype(jnp.float32)
        labels = nn.one_hot(tokens[:, 1:], VOCABULARY, dtype=jnp.float32)
        return -(nn.log_softmax(logits) * labels).sum(-1).mean()

    def step(params: Any, mean: Any, square: Any, tokens: Any) -> Any:
        value, grads = library.value_and_grad(loss)(params, tokens)
        mean = library.tree.map(lambda a, g: 0.9 * a + 0.1 * g, mean, grads)
        square = library.tree.map(lambda a, g: 0.99 * a + 0.01 * g * g, square, grads)
        params = library.tree.map(lambda p, m, s: p - 1e-3 * m / (jnp.sqrt(s) + 1e-8), params, mean, square)
        return params, mean, square, value

    return step


def lower_step(library: Any, devices: list[Any], kind: str, scanned: bool, rows: int) -> Any:
    """Lower a step for devices, present or not.

    Args:
        library: JAX, or a library with its names.
        devices: its devices.
        kind: a key of KINDS.
        scanned: whether the layers are a scan.
        rows: the rows of the batch per device along its axes.
    """
    sharding, how = library.sharding, KINDS[kind]
    sizes = how.sizes(len(devices))
    mesh = sharding.Mesh(np.array(devices).reshape(sizes), how.axes)

    def struct(shape: tuple[int, ...], dtype: Any, *spec: Axes) -> Any:
        placed = sharding.NamedSharding(mesh, sharding.PartitionSpec(*spec))
        return library.ShapeDtypeStruct(shape, dtype, sharding=placed)

    def weight(name: str, shape: tuple[int, ...], state: bool) -> Any:
        spec = how.state if state and how.state else how.columns if name in COLUMNS else how.rows
        return struct(shape, library.numpy.float32, *[None] * (len(shape) - 2), *spec)

    def tree(state: bool) -> Any:
        if scanned:
            layers: Any = {name: weight(name, (LAYERS, *shape), state) for name, shape in WEIGHTS.items()}
        else:
            layers = [{name: weight(name, shape, state) for name, shape in WEIGHTS.items()} for _ in range(LAYERS)]
        ends = {"embed": (VOCABULARY, MODEL), "logits": (MODEL, VOCABULARY)}
        return {"layers": layers, **{name: weight(name, shape, state) for name, shape in ends.items()}}

    batch_axes = (how.batch,) if isinstance(how.batch, str) else how.batch or ()
    batch = rows * int(np.prod([size for axis, size in zip(how.axes, sizes, strict=True) if axis in batch_axes]))
    tokens = struct((batch, LENGTH + 1), library.numpy.int32, how.batch)
    arguments = tree(False), tree(True), tree(True)
    outs = library.tree.map(lambda each: each.sharding, arguments)
    loss = sharding.NamedSharding(mesh, sharding.PartitionSpec())
    jitted = library.jit(training_step(library, scanned), out_shardings=(*outs, loss), donate_argnums=(0, 1, 2))
    return jitted.lower(*arguments, tokens)
